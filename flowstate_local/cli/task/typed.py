"""What people type: parameters, values, versions, durations."""

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from flowstate_local.errors import UsageError
from flowstate_local.tasks.workflow import Template
from flowstate_local.tasks.workflow_file import duration_s


def params_of(pairs: Sequence[str], file: Path | None, template: Template) -> dict[str, JsonValue]:
    """The parameters of the command line over those of the file. Raises UsageError."""
    given: dict[str, JsonValue] = {}
    if file is not None:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"can't read parameters from {file}: {error}") from error
        if not isinstance(content, dict):
            raise UsageError(f"{file} holds a {type(content).__name__}, not an object of parameters")
        given.update(content)
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"{pair!r} is not NAME=VALUE", hint="For example --param city=Lisbon")
        value, declared = json_or_text(text), template.params.get(name)
        # A number is a text, too, where a text is asked for.
        given[name] = text if declared and declared.type == "string" and not isinstance(value, str) else value
    return given


def json_or_text(text: str) -> JsonValue:
    """JSON if it is JSON, else the text."""
    try:
        value: JsonValue = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text
    return value


def _no_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is no JSON")


def version_of(text: str) -> int:
    """A version of a task: the number of an event. Raises UsageError."""
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{text!r} is no version", hint="`flowstate task log ID` shows the numbers.")
    return int(text)


def seconds_of(text: str) -> float:
    """A duration such as 90s or 30d, as workflow files write it. Raises UsageError."""
    try:
        return float(duration_s(text.strip().lower()))
    except ValueError:
        raise UsageError(f"{text!r} is no duration", hint="Write 90s, 15m, 12h or 30d.") from None


def moment_of(text: str, now: float) -> float:
    """An age or a date (UTC unless it says otherwise) as seconds since the epoch. Raises UsageError."""
    with suppress(UsageError):
        return now - seconds_of(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        hint = "Write an age such as 2h or 30d, or a date such as 2026-12-01."
        raise UsageError(f"{text!r} is no time", hint=hint) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
