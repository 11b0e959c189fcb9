"""What a step's references lead to, in the task as it stands: by reference for the log, by value for the tool."""

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from flowstate_local.errors import UsageError
from flowstate_local.nodes import EvidenceId, NodeId
from flowstate_local.repository import Reader
from flowstate_local.task_events import StepName, Value
from flowstate_local.task_state import TaskState
from flowstate_local.tasks.graph import output_of
from flowstate_local.tasks.references import Reference, follow, references, resolve
from flowstate_local.tasks.values import from_value


def resolved(
    template: JsonValue, state: TaskState, reader: Reader, extra: Mapping[str, Any] | None = None
) -> Any:
    """The template with its references replaced by what they lead to; blobs are read here.

    Args:
        template: arguments, a request, or a result.
        state: the task as it stands.
        reader: the read side of the task's space.
        extra: `output` and `key`, where these may be referred to.

    Raises:
        UsageError: a reference leads nowhere.
        CorruptValue: a blob is damaged.
    """
    return resolve(template, lambda reference: _look_up(reference, state, reader, extra or {}))


def inputs_of(template: JsonValue, state: TaskState, reader: Reader) -> dict[str, Value]:
    """Reference as written -> the whole value it begins at, by reference. Unresolvable ones are left out."""
    found: dict[str, Value] = {}
    for reference in references(template):
        value = _pointer(reference, state, reader)
        if value is not None:
            found[reference.text] = value
    return found


def _pointer(reference: Reference, state: TaskState, reader: Reader) -> Value | None:
    if reference.root == "steps" and reference.path[1] == "output" and reference.step in state.steps:
        return output_of(state, StepName(reference.step))
    if reference.root == "evidence":
        record = reader.evidence(EvidenceId(reference.path[0]))
        if record is not None:
            return Value(form="text", digest=record.digest, size_bytes=record.size_bytes)
    return None


def _look_up(reference: Reference, state: TaskState, reader: Reader, extra: Mapping[str, Any]) -> Any:
    root, path = reference.root, reference.path
    if root in ("output", "key"):
        if root not in extra:
            raise UsageError(f"${{{reference.text}}} has a meaning in undo and probe only")
        return follow(extra[root], path, reference)
    if root == "steps":
        return _of_step(reference, state, reader)
    if root == "node":
        node = reader.node(NodeId(path[0]))
        if node is None:
            raise UsageError(f"${{{reference.text}}}: there is no such node")
        return follow(node.model_dump(mode="json"), path[1:], reference)
    if root == "evidence":
        record = reader.evidence(EvidenceId(path[0]))
        if record is None:
            raise UsageError(f"${{{reference.text}}}: there is no such raw result")
        return reader.blob(record.digest).decode(errors="replace")
    plain: dict[str, Any] = {
        "params": state.params,
        "state": state.state,
        "task": {"id": state.id, "owner": state.owner, "goal": state.workflow.goal},
    }
    return follow(plain[root], path, reference)


def _of_step(reference: Reference, state: TaskState, reader: Reader) -> Any:
    if reference.step not in state.steps:
        raise UsageError(f"${{{reference.text}}}: there is no step {reference.step!r}")
    step, what = StepName(reference.step), reference.path[1]
    if what == "error":
        error = state.steps[step].error
        return follow(error.model_dump() if error else None, reference.path[2:], reference)
    value = output_of(state, step)
    content = None if value is None else from_value(value, reader)
    return follow(content, reference.path[2:], reference)
