"""Model calls for the upkeep of a memory: constrained, accounted for, and never the end of an episode."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from flowstate_local.baselines.base import Usage
from flowstate_local.baselines.react import React
from flowstate_local.completion import Completion, Sampling
from flowstate_local.engines.base import complete
from flowstate_local.errors import PromptTooLong
from flowstate_local.grammar import json_constraint

MAX_SHARE = 4
"""An output gets at most a quarter of the window, so that the rest can hold what it is about."""
Output = TypeVar("Output", bound=BaseModel)

LEFT_OUT = "\n[...]\n"


@dataclass(frozen=True)
class MemoryCall(Generic[Output]):
    """What is asked, and how."""

    name: str
    """For errors, such as "memory items"."""
    rules: str
    """The system message."""
    text: str
    """The user message: what the memory is about. Too long a text loses its middle."""
    output: type[Output]
    """What the answer must be: its JSON Schema is the grammar."""
    max_tokens: int
    temperature: float


async def call_for_memory(agent: React, call: MemoryCall[Output], usage: list[Usage]) -> Output | None:
    """Make the call and add it to `usage`.

    Returns:
        The answer, or None if it was empty, cut off or unparsable; `usage` says which.

    Raises:
        EngineError: the engine failed, or the rules alone don't fit its window.
    """
    engine, given = agent.engine, agent.budget.sampling
    max_tokens = min(call.max_tokens, engine.context_window // MAX_SHARE)
    prompt = _prompt(agent, call, engine.context_window - max_tokens)
    completion = await complete(
        engine,
        [i for part in prompt.values() for i in part],
        json_constraint(engine.profile, call.output.model_json_schema(), max_tokens, name=call.name),
        Sampling(call.temperature, given.top_p, max_tokens, given.seed),
    )
    output, fault = _read(completion, call.output)
    usage.append(_usage(agent.n_asked, len(usage) + 1, prompt, completion, fault))
    return output


def _prompt(agent: React, call: MemoryCall[Output], room: int) -> dict[str, list[int]]:
    tokenizer = agent.engine.tokenizer
    encode, frame = tokenizer.encode, tokenizer.frame
    prompt = {
        "rules": tokenizer.encode_frame(frame.system_open) + encode(call.rules),
        "frame": tokenizer.encode_frame(frame.user_open),
        "memory": encode(call.text),
        "end": tokenizer.encode_frame(frame.reply_open),
    }
    fixed = sum(len(ids) for name, ids in prompt.items() if name != "memory")
    gap = encode(LEFT_OUT)
    if room - fixed <= len(gap):
        raise PromptTooLong(f"{call.name}: {fixed} tokens of rules leave no room in a prompt of {room}")
    prompt["memory"] = shorten(prompt["memory"], room - fixed, gap)
    return prompt


def shorten(ids: list[int], room: int, gap: list[int]) -> list[int]:
    """`ids`, or their beginning and end around a gap: how a request began and ended says most about it."""
    if len(ids) <= room:
        return ids
    kept = room - len(gap)
    return ids[: kept - kept // 2] + gap + ids[len(ids) - kept // 2 :]


def _read(completion: Completion, kind: type[Output]) -> tuple[Output | None, str]:
    if completion.finish_reason != "stop":
        return None, "cut_off" if completion.finish_reason == "length" else "empty"
    try:
        return kind.model_validate_json(completion.text), ""
    except ValidationError:
        return None, "unparsable" if completion.text.strip() else "empty"


def _usage(
    request: int, step: int, prompt: dict[str, list[int]], completion: Completion, fault: str
) -> Usage:
    return Usage(
        request=request,
        step=step,
        segments={name: len(ids) for name, ids in prompt.items()},
        cached_tokens=completion.cached_tokens,
        generated_tokens=completion.generated_tokens,
        total_s=completion.total_s,
        cause="memory",
        fault=fault,
    )


def fill(agent: React, head: str, pieces: list[str], tail: str = "") -> list[int]:
    """Token ids of `head`, the pieces that fit `budget.memory_tokens` with it, in their order, and `tail`.

    A piece that is too long is left out, not cut: half a memory misleads. Nothing if none fits.
    """
    encode = agent.engine.tokenizer.encode
    start, end = encode(head), encode(tail) if tail else []
    left = agent.budget.memory_tokens - len(start) - len(end)
    chosen: list[int] = []
    for piece in pieces:
        ids = encode(piece)
        if len(ids) <= left:
            chosen += ids
            left -= len(ids)
    return start + chosen + end if chosen else []
