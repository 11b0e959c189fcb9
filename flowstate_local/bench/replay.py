"""Replay: the recorded words of the model, played again through today's code. Does it still come to the same?"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowstate_local.baselines.base import Budget, Method, Setting
from flowstate_local.bench.methods import METHODS
from flowstate_local.bench.records import Record, RunConfig, read_config, read_records, read_traces
from flowstate_local.bench.suite import Suite
from flowstate_local.bench.suites import make_suite
from flowstate_local.completion import Completion, Sampling
from flowstate_local.errors import FlowStateError
from flowstate_local.testing import ScriptedEngine
from flowstate_local.tools import Toolbox

ROOM = 16
"""The word tokenizer of a replay makes more tokens of a text than a model's; the window grows by this factor."""


@dataclass(frozen=True)
class Replayed:
    """One episode, played again."""

    record: Record
    scores: Mapping[str, float | None]
    skipped: str = ""
    """Why it couldn't be played again."""

    @property
    def same(self) -> bool:
        """Whether it came to the same scores."""
        return not self.skipped and dict(self.scores) == dict(self.record.scores)


async def replay(path: Path) -> AsyncIterator[Replayed]:
    """Play the episodes of a run again, without a model.

    Token counts aren't compared: only the model's own tokenizer has them.

    Raises:
        UsageError: there's no run there, it is damaged, or its suite can't be made here.
    """
    config, records = read_config(path), read_records(path)
    suite = make_suite(config.suite, config.settings)
    for trace in read_traces(path):
        record = records.get((trace["task"], trace["method"], trace["trial"]))
        if record is not None:
            yield await _again(suite, config, record, trace["calls"])


async def _again(suite: Suite, config: RunConfig, record: Record, calls: list[dict[str, Any]]) -> Replayed:
    if record.error:
        return Replayed(record, {}, "it ended in an error")
    if any(answer.outcome == "overflow" for answer in record.answers):
        return Replayed(
            record, {}, "it overflowed the model's window, which only the model's tokenizer can tell"
        )
    if record.method not in METHODS:
        return Replayed(record, {}, "there is no such method any more")
    engine = ScriptedEngine(map(_completion, calls), context_window=config.window * ROOM)
    made: list[Method] = []

    def seat(toolbox: Toolbox, instructions: str) -> Method:
        made.append(METHODS[record.method].make(Setting(engine, toolbox, _budget(config), instructions)))
        return made[-1]

    try:
        played = await suite.play(record.task, seat, seed=config.seed + 1_000 * record.trial)
    except FlowStateError as error:
        return Replayed(record, {}, f"it went another way: {error}")
    finally:
        for method in made:
            await method.close()
    return Replayed(record, played.scores)


def _budget(config: RunConfig) -> Budget:
    sampling = Sampling(config.temperature, config.top_p, config.max_tokens)
    return replace(
        Budget(), max_steps=config.max_steps, sampling=sampling, memory_tokens=config.memory_tokens * ROOM
    )


def _completion(call: dict[str, Any]) -> Completion:
    return Completion(
        text=call["output"],
        token_ids=(),
        finish_reason=call["finish_reason"],
        prompt_tokens=call["prompt_tokens"],
        cached_tokens=call["cached_tokens"],
        generated_tokens=call["generated_tokens"],
        ttft_s=call["ttft_s"],
        total_s=call["total_s"],
    )
