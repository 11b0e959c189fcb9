"""References in arguments: `${steps.fetch.output.price}`, and what they lead to.

    ${params.NAME}                 a parameter of the task
    ${steps.NAME.output}           the output of a step, or of the fallback that stood in for it
    ${steps.NAME.error.message}    why it failed; null if it didn't
    ${state.FIELD}                 the user's own state
    ${task.id}                     the task itself: id, owner, goal
    ${node:n12}  ${evidence:t4}    a node (its fields as JSON), a raw tool result of the task's space
    ${output}  ${key}              in undo and probe: the step's output, its idempotency key

A path goes on into objects by name and into lists by number. A text that is nothing but a reference becomes the value
itself, whatever its type; inside other text it is written out. `$${` is a literal `${`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from flowstate_local.errors import UsageError
from flowstate_local.tools import canonical_json

REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
"""A reference, or a literal `${`."""
_HEAD = re.compile(r"^(params|steps|state|task|output|key|node|evidence)$")
_NAME = re.compile(r"^[A-Za-z0-9_-]+$")


@dataclass(frozen=True)
class Reference:
    """One reference: where it begins, and the path from there."""

    root: str
    """params, steps, state, task, output, key, node or evidence."""
    path: tuple[str, ...]
    text: str
    """As written, without `${` and `}`."""

    @property
    def step(self) -> str:
        """The step it refers to, or ""."""
        return self.path[0] if self.root == "steps" else ""


def parse(text: str) -> Reference:
    """The reference that `text` (without `${` and `}`) is. Raises UsageError."""
    head, colon, rest = text.strip().partition(":")
    parts = [head, *rest.split(".")] if colon else text.strip().split(".")
    root, path = parts[0], tuple(parts[1:])
    if not _HEAD.match(root) or not all(_NAME.match(part) for part in path):
        raise UsageError(f"${{{text}}} is not a reference", hint=_HINT)
    if (root in ("node", "evidence")) != bool(colon) or (root in _WITH_PATH and not path):
        raise UsageError(f"${{{text}}} is not a reference", hint=_HINT)
    if root == "steps" and (len(path) < 2 or path[1] not in ("output", "error")):
        raise UsageError(f"${{{text}}}: of a step there are output and error", hint=_HINT)
    return Reference(root, path, text.strip())


_WITH_PATH = ("params", "steps", "state", "task", "node", "evidence")
_HINT = "References look like ${steps.NAME.output}, ${params.NAME}, ${state.FIELD}, ${task.id}, ${node:n1} or ${evidence:t1}."


def references(template: JsonValue) -> Iterator[Reference]:
    """All references in a value, in order. Raises UsageError."""
    if isinstance(template, str):
        for found in REFERENCE.finditer(template):
            if found[1] is not None:
                yield parse(found[1])
    elif isinstance(template, Mapping):
        for item in template.values():
            yield from references(item)
    elif isinstance(template, list):
        for item in template:
            yield from references(item)


def resolve(template: JsonValue, look_up: Callable[[Reference], Any]) -> Any:
    """The value with its references replaced.

    Raises:
        UsageError: a reference is malformed, or `look_up` knows nothing there.
    """
    if isinstance(template, str):
        whole = REFERENCE.fullmatch(template)
        if whole is not None and whole[1] is not None:
            return look_up(parse(whole[1]))
        return REFERENCE.sub(lambda found: _written(found, look_up), template)
    if isinstance(template, Mapping):
        return {key: resolve(item, look_up) for key, item in template.items()}
    if isinstance(template, list):
        return [resolve(item, look_up) for item in template]
    return template


def _written(found: re.Match[str], look_up: Callable[[Reference], Any]) -> str:
    if found[1] is None:
        return "${"
    value = look_up(parse(found[1]))
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else canonical_json(value)


def follow(value: Any, path: tuple[str, ...], reference: Reference) -> Any:
    """What the rest of a reference's path leads to inside a value; null has nothing inside, and stays null.

    Raises:
        UsageError: there's nothing of that name.
    """
    for part in path:
        if value is None:
            return None
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise UsageError(f"${{{reference.text}}}: there is no {part!r} in {_shape(value)}")
    return value


def _shape(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"an object with {', '.join(map(str, list(value)[:8])) or 'no fields'}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"a {type(value).__name__}"
