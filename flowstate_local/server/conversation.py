"""What of a chat is new: clients send all of their history or just the last turn, and the memory knows the rest."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowstate_local.errors import UsageError
from flowstate_local.events import ToolStarted
from flowstate_local.nodes import EvidenceId, RequestId

_CALL = re.compile(r"call_(r[1-9][0-9]*)_(t[1-9][0-9]*)")


@dataclass(frozen=True)
class Turn:
    """What the client adds."""

    text: str
    """The new request; "" if there are only results."""
    results: Mapping[str, str] = field(default_factory=dict)
    """Id of a tool call -> what it brought, in order."""
    instructions: str = ""
    """All system and developer messages."""


def read_turn(messages: Sequence[Mapping[str, Any]]) -> Turn:
    """Find what comes after the last message of the assistant.

    Args:
        messages: as OpenAI's API has them.

    Raises:
        UsageError: nothing is new, or a message has no text where one is needed; names its place.
    """
    instructions = [
        _text(message, place)
        for place, message in enumerate(messages)
        if message.get("role") in ("system", "developer")
    ]
    start = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=-1) + 1
    texts: list[str] = []
    results: dict[str, str] = {}
    for place, message in enumerate(messages[start:], start=start):
        if message.get("role") == "user":
            texts.append(_text(message, place))
        elif message.get("role") == "tool":
            results[str(message.get("tool_call_id") or "")] = _text(message, place)
    text = "\n\n".join(one for one in texts if one.strip())
    if not text and not results:
        raise UsageError("messages hold nothing new: the last one must come from the user or a tool")
    return Turn(text, results, "\n\n".join(instructions))


def call_id(call: ToolStarted) -> str:
    """The id under which a client sees a call: `call_r3_t7`."""
    return f"call_{call.request}_{call.evidence}"


def read_call_id(said: str) -> tuple[RequestId, EvidenceId]:
    """Request and evidence of an id that `call_id` made.

    Raises:
        UsageError: it's none.
    """
    found = _CALL.fullmatch(said)
    if found is None:
        raise UsageError(f"tool_call_id {said!r} is none of this server's")
    return RequestId(found[1]), EvidenceId(found[2])


def _text(message: Mapping[str, Any], place: int) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UsageError(f"messages.{place}: content is neither a text nor a list of parts")
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text"):
            raise UsageError(f"messages.{place}: a part of type {kind!r}; only text is taken")
        parts.append(str(part.get("text", "")))
    return "".join(parts)
