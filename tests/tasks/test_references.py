"""References in arguments, and values that go by pointer."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstate_local.errors import UsageError
from flowstate_local.stores.base import digest
from flowstate_local.task_events import MAX_INLINE_BYTES
from flowstate_local.tasks.references import Reference, follow, parse, references, resolve
from flowstate_local.tasks.values import from_value, to_value

KNOWN: dict[str, Any] = {
    "params.city": "Rome",
    "steps.a.output": {"price": 7, "rows": [{"n": 1}, {"n": 2}]},
    "state.n": 3,
    "node:n1": "a node",
    "output": [1, 2],
    "key": "k",
}


def look_up(reference: Reference) -> Any:
    return KNOWN[reference.text]


def test_a_whole_reference_becomes_the_value_and_one_in_text_is_written_out() -> None:
    template = {
        "whole": "${steps.a.output}",
        "text": "in ${params.city}: ${steps.a.output} ${state.n}",
        "list": ["${key}", {"deep": "${output}"}, 7, None, True],
        "plain": "no $ here, {none} and $${params.city}",
    }
    assert resolve(template, look_up) == {
        "whole": KNOWN["steps.a.output"],
        "text": 'in Rome: {"price":7,"rows":[{"n":1},{"n":2}]} 3',
        "list": ["k", {"deep": [1, 2]}, 7, None, True],
        "plain": "no $ here, {none} and ${params.city}",
    }


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        "params",
        "params.",
        "steps.a",
        "steps.a.input",
        "secrets.x",
        "node.n1",
        "params:x",
        "evidence:",
        "steps..output",
        "params.a b",
        "params.a/b",
        "a.b",
        "__class__.x",
    ],
)
def test_what_is_no_reference_is_refused_with_an_example(bad: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(bad)
    assert caught.value.hint or "output and error" in str(caught.value)


def test_a_path_goes_into_objects_and_lists_and_null_stays_null() -> None:
    reference = parse("steps.a.output.rows.1.n")
    assert (reference.step, reference.path) == ("a", ("a", "output", "rows", "1", "n"))
    assert follow(KNOWN["steps.a.output"], reference.path[2:], reference) == 2
    assert follow(None, reference.path[2:], reference) is None
    for value, part in (
        (KNOWN["steps.a.output"], "nope"),
        ([1], "1"),
        ([1], "x"),
        ("text", "0"),
        (7, "real"),
    ):
        with pytest.raises(UsageError, match="there is no"):
            follow(value, (part,), reference)


@given(st.text())
def test_any_text_is_either_resolved_or_refused(text: str) -> None:
    try:
        found = list(references(text))
        resolve(text, lambda reference: reference.text)
    except UsageError:
        return
    assert all("${" + reference.text + "}" in text or reference.text != "" for reference in found)


plain = (
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=50,
    )
    | st.binary()
)


class Blobs:
    def __init__(self, blobs: dict[str, bytes]) -> None:
        self.blobs = blobs

    def blob(self, key: str) -> bytes:
        return self.blobs[key]


@settings(deadline=None)
@given(plain, st.sampled_from([1, 400, 30_000]))
def test_a_value_comes_back_as_it_was_whatever_its_size(content: Any, times: int) -> None:
    if isinstance(content, (str, bytes)) and len(content) < 20:
        content = content * times
    blobs: dict[str, bytes] = {}
    try:
        value = to_value(content, blobs)
    except UsageError:
        return  # half a surrogate pair
    assert from_value(value, Blobs(blobs)) == content
    assert all(digest(raw) == key for key, raw in blobs.items())
    assert bool(blobs) == (value.size_bytes > MAX_INLINE_BYTES or value.form == "bytes")
    assert len(value.model_dump_json()) < 8 * MAX_INLINE_BYTES
