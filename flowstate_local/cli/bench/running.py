"""`flowstate bench run`: play a suite with several methods on one model; goes on where it was left."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console

from flowstate_local.cli.bench.extra import evaluation_extra
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import (
    DEFAULT_MODEL,
    EngineChoice,
    Json,
    Model,
    ProfileOption,
    Url,
    opened_engine,
)
from flowstate_local.completion import Sampling
from flowstate_local.engines.base import Engine
from flowstate_local.errors import UsageError

if TYPE_CHECKING:
    from flowstate_local.bench.preset import Preset
    from flowstate_local.bench.records import Record, RunConfig
    from flowstate_local.bench.runner import Plan
    from flowstate_local.bench.suite import Suite

EXAMPLES = """Examples:

`flowstate bench run dependence-short --methods flowstate,full_context,bm25`

`flowstate bench run dependence --set requests=20 --set raw_chars=6000 --window 65536 --limit 8`

`flowstate bench run dependence-20 --engine oracle` token counts with perfect decisions, without a model

Ctrl-C keeps what is done; the same command goes on with the rest. `flowstate bench report DIR` draws it.

Exit codes: 0 played (whatever the scores), 2 usage, 3 model or engine, 130 interrupted.
"""


def run(
    suite: Annotated[
        str | None,
        typer.Argument(help="A preset, or the path of a preset file (YAML).", show_default=False),
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="The same, for those who prefer an option.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Names, separated by commas; or all. See `bench list`.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", "-e", help="vllm, server, transformers, or oracle (no model: perfect decisions)."
        ),
    ] = "vllm",
    url: Url = None,
    profile: ProfileOption = "guidance",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the run. Default: runs/PRESET.", show_default=False),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the suite, as name=value; may be repeated."),
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Of each task.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first tasks.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", min=1, help="Episodes at once.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of sampling.")] = None,
    window: Annotated[int | None, typer.Option("--window", help="Context window in tokens.")] = None,
    again: Annotated[
        bool, typer.Option("--retry-failed", help="Play episodes again that ended in an error.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Play a suite with several methods: same engine, same tools, same budget.

    Everything is kept in the folder of the run: a record and a full trace of each episode.
    """
    with reported(as_json=as_json):
        with evaluation_extra():
            from flowstate_local.bench.preset import load_all
        options = {
            "methods": methods,
            "trials": trials,
            "concurrency": concurrency,
            "seed": seed,
            "window": window,
        }
        given = {name: value for name, value in options.items() if value is not None}
        named = [one for one in (suite, preset) if one is not None]
        if len(named) != 1:
            raise UsageError("name one preset", hint="`flowstate bench list` shows them.")
        changed = {
            name: one.model_copy(update=given | {"settings": one.settings | _settings(setting or [])})
            for name, one in load_all(named[0]).items()
        }
        root = out or Path("runs") / Path(named[0]).stem
        # All are made before the first is run: what is missing is said at once, not after a night.
        runs = [
            _Run(
                one,
                EngineChoice(engine, model, url, profile, one.window),
                root if len(changed) == 1 else root / name,
                limit,
                again,
                as_json,
            )
            for name, one in changed.items()
        ]
        for one in runs:
            one.carry_out()


class _Run:
    """One call of the command."""

    def __init__(
        self, preset: "Preset", choice: EngineChoice, out: Path, limit: int | None, again: bool, as_json: bool
    ) -> None:
        from flowstate_local.bench.suites import make_suite

        self.preset, self.choice, self.out = preset, choice, out
        self.limit, self.again, self.as_json = limit, again, as_json
        self.console = Console(stderr=True, highlight=False)
        self.suite = make_suite(preset.suite, preset.settings)
        self.interrupted = False

    def carry_out(self) -> None:
        """Play what isn't done, then say what it came to."""
        from flowstate_local.bench.records import read_records, writing

        plan = self._plan()
        with writing(self.out, self._config(plan)) as folder:
            done = {k: r for k, r in read_records(self.out).items() if not (self.again and r.error)}
            records = {key: done[key] for key in plan.episodes() if key in done}
            try:
                asyncio.run(self._play(plan, folder, records))
            except (KeyboardInterrupt, asyncio.CancelledError):
                self.interrupted = True
        self._conclude(plan, records)

    def _plan(self) -> "Plan":
        from flowstate_local.baselines.base import Budget
        from flowstate_local.bench.methods import chosen
        from flowstate_local.bench.runner import Plan

        preset = self.preset
        sampling = Sampling(preset.temperature, preset.top_p, preset.max_tokens)
        return Plan(
            suite=self.suite,
            methods=chosen(preset.methods),
            tasks=self.suite.task_ids()[: self.limit],
            trials=preset.trials,
            seed=preset.seed,
            budget=Budget(preset.max_steps, sampling, preset.memory_tokens),
            concurrency=preset.concurrency,
        )

    def _config(self, plan: "Plan") -> "RunConfig":
        from flowstate_local.bench.records import RUN, RunConfig, read_config

        before = read_config(self.out).methods if (self.out / RUN).exists() else ()
        preset, choice = self.preset, self.choice
        return RunConfig(
            suite=preset.suite,
            settings=dict(self.suite.settings),
            methods=tuple(dict.fromkeys((*before, *plan.methods))),
            trials=preset.trials,
            seed=preset.seed,
            model="none" if choice.engine == "oracle" else choice.model,
            engine=choice.engine,
            profile=choice.profile,
            window=choice.window,
            max_steps=preset.max_steps,
            max_tokens=preset.max_tokens,
            memory_tokens=preset.memory_tokens,
            temperature=preset.temperature,
            top_p=preset.top_p,
            version=version("flowstate-local"),
        )

    async def _play(self, plan: "Plan", folder: Any, records: dict[Any, "Record"]) -> None:
        from flowstate_local.bench.runner import run as play
        from flowstate_local.cli.bench.progress import Score

        n_done = len(records)
        total = len(list(plan.episodes()))
        if n_done == total:
            return
        with Score(self.suite.primary, list(plan.methods), total, self.console, quiet=self.as_json) as score:
            for record in records.values():
                score.add(record)

            def note(record: "Record") -> None:
                records[record.key] = record
                score.add(record)
                if self.as_json:
                    write_json(_line(record))

            async with self._engines() as engine_of:
                score.start()
                await play(plan, engine_of, folder, done=dict(records), on_episode=note)

    @asynccontextmanager
    async def _engines(self) -> AsyncIterator[Callable[[str, str], Engine]]:
        if self.choice.engine == "oracle":
            yield _oracle(self.suite)
            return
        async with opened_engine(self.choice, self.console) as engine:
            yield lambda task, method: engine

    def _conclude(self, plan: "Plan", records: dict[Any, "Record"]) -> None:
        from flowstate_local.bench.summary import figures_json
        from flowstate_local.cli.bench.tables import summary_table, wide_console

        total = len(list(plan.episodes()))
        if self.as_json:
            write_json(figures_json(self.suite, records, list(plan.methods), plan.trials))
        else:
            wide_console().print(summary_table(self.suite, records, list(plan.methods), plan.trials))
            missing = f"[yellow]{total - len(records)} episodes missing[/]; " if len(records) < total else ""
            self.console.print(f"[dim]{missing}kept in {self.out}; flowstate bench report {self.out}[/]")
        if self.interrupted:
            self.console.print("[yellow]interrupted; the same command goes on with the rest[/]")
            raise typer.Exit(130)
        failed = sum(bool(record.error) for record in records.values())
        if failed:
            first = next(record for record in records.values() if record.error)
            self.console.print(
                f"[red]{failed} episodes ended in an error[/] (they count as failures; --retry-failed plays them "
                f"again), such as {first.task}, {first.method}: {first.error}",
                markup=True,
            )
        sys.stdout.flush()


def _oracle(suite: "Suite") -> Callable[[str, str], Engine]:
    from flowstate_local.bench.dependence.oracle import OracleEngine
    from flowstate_local.bench.dependence.suite import Dependence

    if not isinstance(suite, Dependence):
        raise UsageError(f"there is no oracle for {suite.name}", hint="Only dependence has one.")
    return lambda task, method: OracleEngine(suite.episode(task), method)


def _settings(given: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {one!r} is not name=value")
        try:
            settings[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            settings[name.strip()] = value
    return settings


def _line(record: "Record") -> dict[str, Any]:
    """A record without the usage of every call, which stands in the folder of the run."""
    return {
        "task": record.task,
        "method": record.method,
        "trial": record.trial,
        "scores": record.scores,
        "outcomes": [answer.outcome for answer in record.answers],
        "prompt_tokens": sum(u.prompt_tokens for a in record.answers for u in a.usage),
        "wall_s": round(record.wall_s, 3),
        "error": record.error,
    }
