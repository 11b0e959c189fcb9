"""What a run leaves on disk: `run.json` (what was asked for), `episodes.jsonl` and `traces.jsonl` (a line an episode).

Both files are valid at every moment but for a last line that a kill cut short, which is dropped when the run goes on.
An episode's trace is written before its record, so a record always has its trace.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from flowstate_local.baselines.base import Answer
from flowstate_local.errors import UsageError
from flowstate_local.jsonl import JsonLines, whole_lines

EPISODES = "episodes.jsonl"
TRACES = "traces.jsonl"
RUN = "run.json"


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunConfig(_Line):
    """What a run was asked for; a run goes on only with the same, but for methods, trials and tasks added."""

    suite: str
    settings: dict[str, Any]
    """Of the suite."""
    methods: tuple[str, ...]
    trials: int
    seed: int
    model: str
    engine: str
    profile: str
    window: int
    max_steps: int
    max_tokens: int
    memory_tokens: int
    temperature: float
    top_p: float
    version: str
    """Of this package."""


class Record(_Line):
    """One episode played by one method."""

    task: str
    method: str
    trial: int
    started_at: float
    """Seconds since the epoch."""
    wall_s: float
    engine_s: float
    """This episode's share of the time in which the engine worked."""
    scores: dict[str, float | None] = {}
    answers: tuple[Answer, ...] = ()
    detail: dict[str, Any] = {}
    error: str = ""
    """Why it has no score; then it counts as a failure."""

    @property
    def key(self) -> tuple[str, str, int]:
        """Task, method, trial: what is played once."""
        return self.task, self.method, self.trial


_RECORD = TypeAdapter(Record)


@dataclass
class RunFolder:
    """The folder of a run, for the one process that writes it. Made by `writing`."""

    path: Path
    _episodes: JsonLines
    _traces: JsonLines

    def write(self, record: Record, trace: Mapping[str, Any]) -> None:
        """Keep an episode. When this returns, it is on disk."""
        self._traces.append(trace)
        self.amend(record)

    def amend(self, record: Record) -> None:
        """Keep a record anew; its trace stays, and of two records the last counts."""
        self._episodes.append(_RECORD.dump_python(record, mode="json"))


@contextmanager
def writing(path: Path, config: RunConfig) -> Iterator[RunFolder]:
    """Open the folder of a run to begin it or to go on with it.

    Raises:
        UsageError: it holds another run, another process writes it, or it can't be written.
    """
    with JsonLines.open(path / EPISODES) as episodes, JsonLines.open(path / TRACES) as traces:
        _check_same(path, config)
        _write_config(path, config)
        yield RunFolder(path, episodes, traces)


@contextmanager
def rewriting(path: Path, config: RunConfig) -> Iterator[RunFolder]:
    """Open the folder of a run to change its settings and amend its records. Raises UsageError."""
    read_config(path)
    with JsonLines.open(path / EPISODES) as episodes, JsonLines.open(path / TRACES) as traces:
        _write_config(path, config)
        yield RunFolder(path, episodes, traces)


def _write_config(path: Path, config: RunConfig) -> None:
    try:
        (path / f"{RUN}.new").write_text(config.model_dump_json(indent=1))
        os.replace(path / f"{RUN}.new", path / RUN)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror or error}") from error


def read_config(path: Path) -> RunConfig:
    """What a run was asked for.

    Raises:
        UsageError: there's no run there, or it isn't readable.
    """
    try:
        return RunConfig.model_validate_json((path / RUN).read_bytes())
    except FileNotFoundError:
        raise UsageError(
            f"{path} holds no run", hint="`flowstate bench run SUITE --out DIR` makes one."
        ) from None
    except ValidationError as error:
        raise UsageError(f"{path / RUN}: {error.errors()[0]['msg']}") from None


def read_records(path: Path) -> dict[tuple[str, str, int], Record]:
    """The episodes of a run, the last record of each; a last line that was cut short is left out.

    Raises:
        UsageError: a line in the middle is damaged; says which.
    """
    records: dict[tuple[str, str, int], Record] = {}
    for number, line in whole_lines(path / EPISODES):
        try:
            record = _RECORD.validate_json(line)
        except ValidationError as error:
            fault = error.errors()[0]
            raise UsageError(f"{path / EPISODES}, line {number}: {fault['msg']}") from None
        records[record.key] = record
    return records


def read_traces(path: Path) -> Iterator[dict[str, Any]]:
    """The traces of a run, in the order in which they were written. Raises UsageError."""
    for number, line in whole_lines(path / TRACES):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path / TRACES}, line {number}: {error.msg}") from None


def _check_same(path: Path, config: RunConfig) -> None:
    if not (path / RUN).exists():
        return
    before, now = read_config(path).model_dump(), config.model_dump()
    for may_grow in ("methods", "trials", "version"):
        before.pop(may_grow), now.pop(may_grow)
    changed = [f"{name}: {before[name]} there, {now[name]} now" for name in now if before[name] != now[name]]
    if changed:
        raise UsageError(
            f"{path} holds a run with other settings: {'; '.join(changed)}",
            hint="Use another --out, or the same settings.",
        )
