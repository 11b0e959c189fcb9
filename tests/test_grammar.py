import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matchers import Guidance, Outlines, Xgrammar
from pydantic import BaseModel, Field

from flowstate_local.calculator import calculate
from flowstate_local.completion import Profile
from flowstate_local.errors import GrammarError
from flowstate_local.grammar import (
    _RUNGS,
    MARGIN,
    MAX_FOCUS,
    StepFacts,
    _delta_bytes,
    _regex_of,
    _Step,
    count_states,
    json_constraint,
    step_constraint,
)
from flowstate_local.nodes import EvidenceId, NodeId
from flowstate_local.protocol import Add, Remove, StepOutput, Update
from flowstate_local.schema_rules import (
    ROOMY,
    SMALLEST,
    Limits,
    bounded,
    check_tool_schema,
    text,
    worst_bytes,
)
from flowstate_local.tools import Toolbox, tool

IDS = [NodeId(f"n{i}") for i in range(1, 40)]
FACTS = StepFacts(
    openable=[*IDS[:30], "t12", "t12#2", "r3", "s1_10", "hôtel"],
    resolvable=IDS,
    evidence=[EvidenceId("t1"), EvidenceId("t12")],
    own=[NodeId("n38"), NodeId("n39")],
    replaceable=[IDS[0], NodeId("n38"), NodeId("n39")],
    next_number=40,
    again=True,
)


class Room(BaseModel):
    beds: Annotated[int, Field(ge=1, le=4)]
    view: Literal["sea", "town"] = "sea"


@tool
def book(
    city: str,
    rooms: list[Room],
    price: float = 1.0,
    limits: dict[str, bool] | None = None,
    code: Annotated[str, Field(pattern="^[A-Z]{2}[0-9]{1,4}$")] = "AB1",
) -> str:
    """Book rooms."""
    return city


@tool
def ping() -> str:
    """Say pong."""
    return "pong"


BOX = Toolbox([book, ping, calculate])
SMALL = Toolbox([ping])


def step(**parts: Any) -> str:
    whole = {"state_focus": [], "state_delta": [], "tool_calls": [], "assistant_message": ""} | parts
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def guidance(facts: StepFacts = FACTS, box: Toolbox = BOX, max_tokens: int = 4_000) -> Guidance:
    return Guidance(step_constraint("guidance", box, facts, max_tokens).text)


def add(number: int = 40, **fields: Any) -> dict[str, Any]:
    return {
        "op": "add",
        "type": "knowledge",
        "id": f"n{number}",
        "refs": [],
        "evidence": [],
        "summary": "x",
    } | fields


CALL = {"name": "ping", "arguments": {}}
REF = {"relation": "derives", "target": "n7"}
SIBLING = {"relation": "derives", "target": "n40"}


# --- what each profile admits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "legal"),
    [
        (step(state_focus=["n1", "t12#2"]), True),
        (step(state_focus=["s1_10", "r3"]), True),
        (step(state_focus=["hôtel"]), True),
        (step(state_focus=["n99"]), False),
        (step(state_focus=["n1"] * (MAX_FOCUS + 1)), False),
        (step(state_focus=["n1"], state_delta=[add()]), False),
        (step(state_focus=["n1"], tool_calls=[CALL]), False),
        (step(state_focus=["n1"], assistant_message="hi"), False),
        (step(tool_calls=[CALL, CALL], state_delta=[add()]), True),
        (step(tool_calls=[CALL] * 3, state_delta=[add()]), False),
        (step(tool_calls=[CALL]), False),
        (step(tool_calls=[CALL], assistant_message="hi"), False),
        (step(tool_calls=[{"name": "pong", "arguments": {}}]), False),
        (step(tool_calls=[{"name": "ping", "arguments": {"x": 1}}]), False),
        (step(assistant_message='hi "there"\n\\ é漢😀'), True),
        (step(assistant_message=" "), False),
        (step(assistant_message="\u3000x"), False),
        (step(), False),
        (step(state_delta=[add()]), True),
        (step(state_delta=[add(refs=[REF], evidence=["t12"])]), True),
        (step(state_delta=[add(refs=[REF | {"target": "n77"}])]), False),
        (step(state_delta=[add(refs=[SIBLING])]), False),
        (step(state_delta=[add(), add(41, refs=[SIBLING])]), True),
        (step(state_delta=[add(), add()]), False),
        (step(state_delta=[add(41)]), False),
        (step(state_delta=[add(evidence=["t2"])]), False),
        (step(state_delta=[add(summary="two\nlines")]), False),
        (step(state_delta=[add(summary="  ")]), False),
        (step(state_delta=[add(type="idea")]), False),
        (step(state_delta=[{"op": "update", "id": "n39", "summary": "y"}]), True),
        (step(state_delta=[{"op": "update", "id": "n1", "summary": "y"}]), False),
        (step(state_delta=[{"op": "remove", "id": "n38"}]), True),
        (step(state_delta=[{"op": "remove", "id": "n1"}]), False),
        (step(state_delta=[add(), {"op": "remove", "id": "n38"}]), True),
        (step(state_delta=[{"op": "remove", "id": "n38"}, add(41, refs=[SIBLING])]), False),
        (step(assistant_message="hi").replace(":[]", ": []"), False),
        (step(assistant_message="hi").replace('"hi"', '"\\u0041"'), False),
    ],
)
def test_strict_steps_under_guidance(output: str, legal: bool) -> None:
    assert guidance().accepts(output) is legal
    if legal:
        StepOutput.model_validate_json(output)


@pytest.mark.parametrize(
    ("output", "legal"),
    [
        (step(state_focus=["n1"], tool_calls=[CALL], assistant_message="hi", state_delta=[add()]), True),
        (step(tool_calls=[CALL], assistant_message="hi"), True),
        (step(assistant_message="hi"), True),
        (step(state_delta=[add()]), True),
        (step(state_focus=["n99"], assistant_message="hi"), False),
        (step(), False),
    ],
)
def test_trusted_steps_may_do_all_at_once(output: str, legal: bool) -> None:
    assert guidance(replace(FACTS, defer="trust")).accepts(output) is legal


@pytest.mark.parametrize(
    ("facts", "bare", "with_node"),
    [
        (replace(FACTS, again=False), True, False),
        (replace(FACTS, again=True), False, True),
        (replace(FACTS, again=False, fresh=True), False, True),
        (replace(FACTS, again=False, fresh=True, may_record=False), True, False),
    ],
)
def test_a_step_that_acts_writes_down_what_was_just_seen_and_nothing_else(
    facts: StepFacts, bare: bool, with_node: bool
) -> None:
    matcher = guidance(facts)
    assert matcher.accepts(step(tool_calls=[CALL])) is bare
    assert matcher.accepts(step(tool_calls=[CALL], state_delta=[add()])) is with_node
    assert matcher.accepts(step(assistant_message="hi")) is not facts.fresh or not facts.may_record


@pytest.mark.parametrize(("target", "legal"), [("n1", True), ("n38", True), ("n2", False), ("n99", False)])
def test_only_what_was_read_can_be_superseded(target: str, legal: bool) -> None:
    ref = {"relation": "supersedes", "target": target}
    assert guidance().accepts(step(state_delta=[add(refs=[ref])])) is legal


def test_what_has_no_ids_is_not_offered() -> None:
    bare = guidance(StepFacts())
    assert not bare.accepts(step(state_focus=["n1"]))
    assert bare.accepts(step(state_delta=[add(1)]))
    assert bare.accepts(step(state_delta=[add(1), add(2, refs=[REF | {"target": "n1"}])]))
    assert not bare.accepts(step(state_delta=[add(1, evidence=["t1"])]))
    assert not bare.accepts(step(state_delta=[{"op": "remove", "id": "n1"}]))


@pytest.mark.parametrize("defer", ["strict", "trust"])
def test_guards_leave_only_what_they_allow(defer: Literal["strict", "trust"]) -> None:
    facts = replace(FACTS, defer=defer, may_look=False, may_act=False, may_note=False)
    only_reply = guidance(facts)
    assert only_reply.accepts(step(assistant_message="hi", state_delta=[add()]))
    for other in (step(state_focus=["n1"]), step(tool_calls=[CALL]), step(state_delta=[add()])):
        assert not only_reply.accepts(other)
    with pytest.raises(GrammarError, match="guards"):
        step_constraint("guidance", BOX, replace(facts, may_reply=False), 4_000)


def test_the_optional_fields_come_with_room() -> None:
    full = add(
        content="c",
        slots=[{"name": "price", "value": '160 "net"'}],
        refs=[REF],
        evidence=["t1"],
        valid_until="2026-12-31",
        confidence=0.75,
    )
    ordered = {k: full[k] for k in ("op", "type", "id", "refs", "evidence", "summary", "content", "slots")}
    ordered |= {"valid_until": "2026-12-31", "confidence": 0.75}
    assert guidance(max_tokens=32_768).accepts(step(state_delta=[ordered]))
    assert not guidance(max_tokens=700).accepts(step(state_delta=[ordered]))


def test_xgrammar_steps() -> None:
    matcher = Xgrammar(step_constraint("xgrammar", BOX, replace(FACTS, again=False), 4_000).text)
    for output, legal in (
        (step(state_focus=["n1", "t12#2"]), True),
        (step(state_focus=["n99"]), False),
        (step(tool_calls=[CALL, CALL]), True),
        (step(assistant_message="hi é漢"), True),
        (step(assistant_message='"'), False),
        (step(), False),
        (step(state_delta=[add(), add(41, refs=[SIBLING, REF], evidence=["t1"])]), True),
        (step(state_delta=[add(), add()]), False),
        (step(state_delta=[{"op": "remove", "id": "n1"}]), False),
        (
            step(
                tool_calls=[
                    {"name": "book", "arguments": {"city": "Rom", "rooms": [{"beds": 2}], "price": -1.5}}
                ]
            ),
            True,
        ),
        (step(tool_calls=[{"name": "book", "arguments": {"city": "Rom", "rooms": [{"beds": 5}]}}]), False),
    ):
        assert matcher.accepts(output) is legal, output


@pytest.mark.parametrize("defer", ["strict", "trust"])
def test_outlines_steps(defer: Literal["strict", "trust"]) -> None:
    matcher = Outlines(step_constraint("outlines", BOX, replace(FACTS, defer=defer), 4_000).text)
    booking = {
        "name": "book",
        "arguments": {"city": "Rom", "rooms": [{"beds": 2, "view": "sea"}], "price": 1.5},
    }
    for output, legal in (
        (step(state_focus=["t12#2", "s1_10"]), True),
        (step(state_focus=["n1"], state_delta=[add()]), defer == "trust"),
        (step(state_focus=["N1"]), False),
        (step(tool_calls=[CALL, booking]), True),
        (step(tool_calls=[{"name": "ping", "arguments": {"x": 1}}]), False),
        (step(tool_calls=[{"name": "pong", "arguments": {}}]), False),
        (step(state_focus=["n1"], tool_calls=[CALL]), defer == "trust"),
        (step(assistant_message='hi "there"\n é漢'), True),
        (step(assistant_message=" "), False),
        (step(state_delta=[add(refs=[REF], evidence=["t12"]), {"op": "remove", "id": "n3"}]), True),
        (step(state_delta=[add(type="idea")]), False),
    ):
        assert matcher.accepts(output) is legal, output


def test_outlines_grammars_depend_on_the_tools_alone() -> None:
    first = step_constraint("outlines", BOX, FACTS, 4_000)
    assert first.kind == "regex"
    assert first == step_constraint("outlines", BOX, StepFacts(openable=["n1"], next_number=7), 100)
    last = step_constraint("outlines", BOX, replace(FACTS, may_look=False, may_act=False), 4_000)
    assert not Outlines(last.text).accepts(step(tool_calls=[CALL]))


def make_tools(count: int) -> Toolbox:
    def make(number: int) -> Any:
        def look_up(
            city: str, nights: Annotated[int, Field(ge=1, le=30)], tags: list[str] | None = None
        ) -> str:
            """Look something up."""
            return city

        return tool(name=f"tool_{number}")(look_up)

    return Toolbox([make(number) for number in range(count)])


def test_many_tools_share_open_arguments_under_outlines() -> None:
    many = step_constraint("outlines", make_tools(30), FACTS, 4_000).text
    assert count_states(many) < 3_000
    arguments = {"city": "Rom", "anything": [1, "x"], "more": {"deep": None}}
    assert Outlines(many).accepts(step(tool_calls=[{"name": "tool_7", "arguments": arguments}]))


def test_a_costly_automaton_is_refused_with_advice() -> None:
    rng = random.Random(1)
    names = Literal[tuple("".join(rng.choices("abcdefgh", k=60)) for _ in range(200))]  # type: ignore[valid-type]

    @tool
    def pick(a: names, b: names, c: names, d: names) -> None:  # type: ignore[valid-type]
        """Pick."""

    with pytest.raises(GrammarError, match="too costly") as caught:
        step_constraint("outlines", Toolbox([pick]), FACTS, 4_000)
    assert (caught.value.tool, caught.value.keyword) == ("pick", "states")
    assert "guidance" in caught.value.hint


# --- a step can't be cut off --------------------------------------------------------------------------------------


def check(said: bytes, facts: StepFacts) -> None:
    """Parse, and hold every id against the facts."""
    output = StepOutput.model_validate_json(said)
    assert output.shape != "empty"
    assert facts.defer == "trust" or output.shape != "mixed"
    assert set(output.state_focus) <= set(facts.openable)
    known: set[str] = set(facts.resolvable)
    used: set[str] = set()
    for op in output.state_delta:
        if isinstance(op, Remove):
            assert op.id in facts.own
            continue
        assert all(ref.target in known for ref in op.refs or ())
        assert set(op.evidence or ()) <= set(facts.evidence)
        if isinstance(op, Update):
            assert op.id in facts.own
        if isinstance(op, Add):
            assert op.id not in used
            used.add(op.id)
            known.add(op.id)
            assert op.summary.strip()
            assert "\n" not in op.summary


@pytest.mark.parametrize("adverse", [False, True])
@pytest.mark.parametrize("defer", ["strict", "trust"])
@pytest.mark.parametrize(("max_tokens", "box"), [(200, SMALL), (512, BOX), (1_000, BOX), (2_400, SMALL)])
def test_random_walks_end_in_time(
    max_tokens: int, box: Toolbox, defer: Literal["strict", "trust"], adverse: bool
) -> None:
    facts = replace(FACTS, defer=defer)
    matcher = guidance(facts, box, max_tokens)
    rng = random.Random(max_tokens)
    for _ in range(6):
        check(matcher.walk(rng, max_tokens - MARGIN, adverse=adverse), facts)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_longest_sentence_fits_whatever_the_facts(data: st.DataObject) -> None:
    nodes = [NodeId(f"n{i}") for i in range(1, data.draw(st.integers(0, 300)) + 1)]
    facts = StepFacts(
        openable=[
            *nodes[::2],
            *data.draw(st.lists(st.sampled_from(["t1", "r2", "s1_10", "t12#3"]), unique=True)),
        ],
        resolvable=nodes,
        evidence=[EvidenceId(f"t{i}") for i in range(1, data.draw(st.integers(0, 30)) + 1)],
        own=nodes[-data.draw(st.integers(0, 3)) :] if nodes else [],
        replaceable=nodes[::3],
        next_number=len(nodes) + 1,
        may_record=data.draw(st.booleans()),
        fresh=data.draw(st.booleans()),
        again=data.draw(st.booleans()),
        may_note=data.draw(st.booleans()),
        may_look=data.draw(st.booleans()),
        may_act=data.draw(st.booleans()),
        defer=data.draw(st.sampled_from(["strict", "trust"])),
    )
    max_tokens = data.draw(st.one_of(st.integers(500, 3_000), st.sampled_from([8_192, 32_768, 131_072])))
    profile: Profile = data.draw(st.sampled_from(["guidance", "xgrammar"]))
    schema = json.loads(step_constraint(profile, BOX, facts, max_tokens).text)
    assert worst_bytes(schema) <= max_tokens - MARGIN


def test_the_estimate_of_a_delta_is_no_less_than_its_schema() -> None:
    for facts in (FACTS, StepFacts(), StepFacts(resolvable=IDS[:3], next_number=9_999)):
        planned = _Step("guidance", BOX, facts, 100_000)
        for rung in _RUNGS:
            part = planned.delta(rung)
            defs = {name: json.loads(schema) for name, schema in planned.defs.items()}
            exact = worst_bytes(json.loads(part.text), defs)
            assert exact <= _delta_bytes(rung, planned.ids) <= exact + 300 + 40 * rung.ops


def test_room_is_used_well() -> None:
    """At 512 tokens a small model still has a whole paragraph of plain text to say, and a delta beside it."""
    matcher = guidance(max_tokens=512)
    said = "The Harbour Inn keeps its booking, for a change would cost 275 dollars. " * 2
    assert matcher.accepts(
        step(state_delta=[add(summary="Harbour Inn stays: 275 > 160")], assistant_message=said)
    )
    assert guidance(max_tokens=200, box=SMALL).accepts(
        step(assistant_message="Harbour Inn stays, at 160 dollars.")
    )


def test_a_tool_too_long_for_the_budget_is_named_with_what_it_needs() -> None:
    with pytest.raises(GrammarError, match="book.*max_tokens of") as caught:
        step_constraint("guidance", BOX, FACTS, 160)
    assert (caught.value.tool, caught.value.keyword) == ("book", "max_tokens")
    needed = int(str(caught.value).split("max_tokens of ")[1].split(",")[0])
    step_constraint("guidance", BOX, FACTS, needed)
    with pytest.raises(GrammarError):
        step_constraint("guidance", BOX, FACTS, needed - 1)


def test_no_shape_fits_a_few_tokens() -> None:
    with pytest.raises(GrammarError, match="no shape"):
        step_constraint("guidance", Toolbox(), StepFacts(), 60)


# --- keywords of tool schemas: each one that is accepted changes what the matcher accepts -------------------------

KEYWORDS: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    ("type string", {"type": "string"}, ["", 'é\n"\\'], [1, None, "\t"]),
    ("type boolean", {"type": "boolean"}, [True, False], ["true", 0]),
    ("type null", {"type": "null"}, [None], [0, ""]),
    ("type list", {"type": ["integer", "null"]}, [3, None], ["3", True]),
    ("enum", {"enum": ["é漢", 2, None, True, 2.5]}, ["é漢", 2, None, True, 2.5], ["e", 3, False]),
    ("const", {"const": "a\nb"}, ["a\nb"], ["a", ""]),
    ("minLength", {"type": "string", "minLength": 2}, ["ab", "abc"], ["a", ""]),
    ("maxLength", {"type": "string", "maxLength": 3}, ["abc", "漢字é"], ["abcd"]),
    ("pattern", {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"}, ["AB1", "AB12345"], ["A1", "ab1", "AB"]),
    ("alternatives", {"type": "string", "pattern": "^(cat|dog)$"}, ["cat", "dog"], ["catdog", "c"]),
    (
        "pattern and lengths",
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3},
        ["ab", "abc"],
        ["a", "abcd", "AB"],
    ),
    (
        "format date",
        {"type": "string", "format": "date"},
        ["2026-02-28"],
        ["2026-2-28", "2026-02-41", "today"],
    ),
    ("format uuid", {"type": "string", "format": "uuid"}, ["12345678-1234-1234-1234-123456789abc"], ["1234"]),
    ("format time", {"type": "string", "format": "time"}, ["10:00:00Z"], ["25:00:00Z", "10"]),
    (
        "format date-time",
        {"type": "string", "format": "date-time"},
        ["2026-02-28T10:00:00Z", "2026-02-28T10:00:00.5+01:00"],
        ["2026-02-28", "2026-02-28T10:00:00." + "1" * 40 + "Z"],
    ),
    ("format email", {"type": "string", "format": "email"}, ["a@b.example"], ["a", "@b"]),
    ("format uri", {"type": "string", "format": "uri"}, ["http://a.example/b"], ["a b", "//"]),
    ("format ipv4", {"type": "string", "format": "ipv4"}, ["10.0.0.1"], ["10.0.0", "256.0.0.1"]),
    ("integer", {"type": "integer"}, [0, -5, 999_999_999_999], [10**12, 1.5, "1"]),
    ("minimum", {"type": "integer", "minimum": 3}, [3, 40], [2, -3]),
    ("maximum", {"type": "integer", "maximum": 3}, [3, -40], [4]),
    ("exclusive bounds", {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 4}, [2, 3], [1, 4]),
    ("multipleOf", {"type": "integer", "minimum": 0, "multipleOf": 5}, [0, 15], [4, 16]),
    ("number", {"type": "number"}, [0, 0.5, 3.141593, "-33.86", "-5"], [3.1415926, 10**9, "5", "-0.1234567"]),
    ("number minimum", {"type": "number", "minimum": 1.5}, [1.5, 2], [1.4, 0]),
    ("number maximum", {"type": "number", "minimum": 0, "maximum": 2.5}, [2.5, 0], [2.6, 3, "-1"]),
    ("number exclusive", {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [0.01, 1], [0, 1.01]),
    ("number multipleOf", {"type": "number", "minimum": 0, "multipleOf": 0.25}, [0.25, 1.75], [0.3]),
    ("negative only", {"type": "number", "minimum": -5, "maximum": -1}, ["-1.5"], [-1.5, 1, "-55"]),
    ("items", {"type": "array", "items": {"type": "boolean"}}, [[], [True, False]], [[1], {}]),
    (
        "minItems",
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
        [[True, True]],
        [[True], []],
    ),
    (
        "maxItems",
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 1},
        [[True], []],
        [[True, True]],
    ),
    (
        "prefixItems",
        {
            "type": "array",
            "prefixItems": [{"type": "boolean"}, {"enum": ["x"]}],
            "minItems": 2,
            "maxItems": 2,
        },
        [[True, "x"]],
        [[True], ["x", True], [True, "x", 1]],
    ),
    (
        "object",
        {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": [1]}}, "required": ["b"]},
        [{"b": 1}, {"a": True, "b": 1}],
        [{}, {"a": True}, {"b": 1, "c": 1}],
    ),
    ("closed empty object", {"type": "object", "properties": {}}, [{}], [{"a": 1}]),
    (
        "map",
        {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
        [{}, {"a b": True, "c": False}],
        [{"a": 1}, {"é": True}, {"a": True, "b": True, "c": True}],
    ),
    ("anyOf", {"anyOf": [{"type": "boolean"}, {"enum": ["x"]}]}, [True, "x"], ["y", 1]),
    ("oneOf apart", {"oneOf": [{"type": "boolean"}, {"type": "null"}]}, [True, None], [1]),
    ("allOf of one", {"allOf": [{"type": "boolean"}]}, [True], [1]),
    ("$ref", {"$ref": "#/$defs/Flag"}, [True], [1]),
]
DEFS = {"Flag": {"type": "boolean"}}


def whole(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": schema}, "required": ["v"], "$defs": DEFS}


def instance(value: Any) -> str:
    return json.dumps({"v": value}, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [row[1:] for row in KEYWORDS], ids=[row[0] for row in KEYWORDS]
)
def test_every_accepted_keyword_is_enforced_by_guidance(
    schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    held = bounded("guidance", "t", whole(schema), ROOMY)
    matcher = Guidance(
        held.schema | {"x-guidance": {"whitespace_flexible": False, "json_allowed_escapes": 'n\\"'}}
    )
    for value in good:
        assert matcher.accepts(instance(value)), value
        assert len(instance(value).encode()) <= held.worst_bytes
    for value in bad:
        assert not matcher.accepts(instance(value)), value


OUTLINES_REFUSES = {"closed empty object": "properties"}
XGRAMMAR_REFUSES = {
    "multipleOf": "multipleOf",
    "number multipleOf": "multipleOf",
    "pattern and lengths": "pattern",
    "pattern": "pattern",
    "format time": "format",
    "format date-time": "format",
    "format email": "format",
    "format uri": "format",
}
XGRAMMAR_DIFFERS = {"type string", "const", "number", "negative only", "number maximum"}
"""Quotes and newlines can't be said, and negative decimals need no quotes."""


@pytest.mark.parametrize("row", KEYWORDS, ids=[row[0] for row in KEYWORDS])
def test_every_accepted_keyword_is_enforced_by_xgrammar(
    row: tuple[str, dict[str, Any], list[Any], list[Any]],
) -> None:
    name, schema, good, bad = row
    if name in XGRAMMAR_DIFFERS:
        return  # see the test below
    if name in XGRAMMAR_REFUSES:
        with pytest.raises(GrammarError) as caught:
            bounded("xgrammar", "t", whole(schema), ROOMY)
        assert (caught.value.tool, caught.value.keyword) == ("t", XGRAMMAR_REFUSES[name])
        return
    held = bounded("xgrammar", "t", whole(schema), ROOMY)
    matcher = Xgrammar(held.schema)
    for value in good:
        assert matcher.accepts(instance(value)), value
    for value in bad:
        assert not matcher.accepts(instance(value)), value


@pytest.mark.parametrize("row", KEYWORDS, ids=[row[0] for row in KEYWORDS])
def test_outlines_enforces_a_keyword_or_notes_that_the_tool_does(
    row: tuple[str, dict[str, Any], list[Any], list[Any]],
) -> None:
    name, schema, good, bad = row
    if name in OUTLINES_REFUSES:
        with pytest.raises(GrammarError) as caught:
            bounded("outlines", "t", whole(schema), ROOMY)
        assert caught.value.keyword == OUTLINES_REFUSES[name]
        return
    held = bounded("outlines", "t", whole(schema), ROOMY)
    matcher = Outlines(_regex_of(held.schema))
    for value in good:
        quoted_number = isinstance(value, str) and value[:1] == "-"
        assert matcher.accepts(instance(float(value) if quoted_number else value)), value
    if not held.notes and name not in ("integer", "number"):  # without bounds, nothing is promised
        for value in bad:
            assert value == "\t" or not matcher.accepts(instance(value)), value  # Outlines can escape a tab


@pytest.mark.parametrize("low", [0, 1, 150])
def test_xgrammar_texts_of_every_length(low: int) -> None:
    matcher = Xgrammar(bounded("xgrammar", "t", whole({"type": "string", "minLength": low}), ROOMY).schema)
    for length in (0, 1, 99, 100, 149, 150, 399, 400, 401):
        assert matcher.accepts(instance("é" * length)) is (low <= length <= 400), length


def test_xgrammar_texts_and_numbers() -> None:
    matcher = Xgrammar(bounded("xgrammar", "t", whole({"type": "string"}), ROOMY).schema)
    assert matcher.accepts(instance("é漢 x"))
    for value in ('"', "\\", "\n", "x" * 401):
        assert not matcher.accepts(instance(value)), value
    matcher = Xgrammar(
        bounded("xgrammar", "t", whole({"type": "number", "minimum": -90, "maximum": 90}), ROOMY).schema
    )
    for number, legal in ((-33.86, True), (90, True), (-33.1234567, False), (91, False)):
        assert matcher.accepts(instance(number)) is legal, number


LEFT_TO_THE_TOOL = {
    ("outlines", "minLength", 2),
    ("outlines", "maxLength", 3),
    ("xgrammar", "maxLength", 3),
    ("outlines", "multipleOf", 2),
}
"""(profile, keyword, keywords in the schema) of the rows below that become notes instead."""
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "", "type"),
    ({"description": "anything"}, "", "type"),
    ({"type": "object"} | {"additionalProperties": True}, "", "additionalProperties"),
    ({"type": "object", "properties": {}, "patternProperties": {"a": {}}}, "", "patternProperties"),
    ({"type": "object", "properties": {}, "minProperties": 1}, "", "minProperties"),
    ({"type": "object", "properties": {}, "required": ["gone"]}, "", "required"),
    ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "", "uniqueItems"),
    ({"type": "array", "items": {"type": "null"}, "contains": {}}, "", "contains"),
    ({"type": "array"}, "/items", "type"),
    ({"type": "array", "prefixItems": [{"type": "null"}]}, "", "prefixItems"),
    ({"type": "string", "format": "hostname"}, "", "format"),
    ({"type": "string", "pattern": "a"}, "", "pattern"),
    ({"type": "string", "pattern": "^a|b$"}, "", "pattern"),
    ({"type": "string", "pattern": "^(?=a)b$"}, "", "pattern"),
    ({"type": "string", "pattern": "^(?i)b$"}, "", "pattern"),
    ({"type": "string", "pattern": "^($"}, "", "pattern"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "", "minLength"),
    ({"type": "string", "minLength": 50_000}, "", "minLength"),
    ({"type": "string", "pattern": "^[a-z]{5}$", "maxLength": 4}, "", "maxLength"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "", "minimum"),
    ({"type": "integer", "maximum": 10**18}, "", "maximum"),
    ({"type": "integer", "multipleOf": 5}, "", "multipleOf"),
    ({"type": "number", "minimum": 0, "multipleOf": 1e-9}, "", "multipleOf"),
    ({"not": {"type": "null"}}, "", "not"),
    ({"if": {"type": "null"}, "then": {}}, "", "if"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "", "oneOf"),
    ({"allOf": [{"type": "null"}, {"type": "null"}]}, "", "allOf"),
    ({"anyOf": [{"type": "null"}], "properties": {}}, "", "properties"),
    ({"anyOf": [{"const": i} for i in range(33)]}, "", "anyOf"),
    ({"anyOf": []}, "", "anyOf"),
    ({"enum": list(range(1_001))}, "", "enum"),
    ({"enum": []}, "", "enum"),
    ({"enum": [["x"]]}, "", "enum"),
    ({"enum": ["a\tb"]}, "", "enum"),
    ({"$ref": "https://elsewhere.example/x"}, "", "$ref"),
    ({"$ref": "#/$defs/Gone"}, "", "$ref"),
    ({"type": "wish"}, "", "type"),
]


@pytest.mark.parametrize(
    ("schema", "path", "keyword"), REFUSED, ids=[f"{k}-{i}" for i, (_, _, k) in enumerate(REFUSED)]
)
@pytest.mark.parametrize("profile", ["guidance", "xgrammar", "outlines"])
def test_what_is_not_enforced_is_refused(
    profile: Profile, schema: dict[str, Any], path: str, keyword: str
) -> None:
    if (profile, keyword, len(schema)) in LEFT_TO_THE_TOOL:
        held = check_tool_schema(profile, "t", whole(schema))
        assert any(f": {keyword}: " in note for note in held.notes)
        return
    with pytest.raises(GrammarError) as caught:
        check_tool_schema(profile, "t", whole(schema))
    assert (caught.value.tool, caught.value.path) == ("t", f"/properties/v{path}")
    assert caught.value.keyword == keyword


def nest(levels: int) -> dict[str, Any]:
    return {"type": "boolean"} if levels == 0 else {"type": "array", "items": nest(levels - 1)}


def test_size_and_depth_are_limited() -> None:
    check_tool_schema("guidance", "t", whole(nest(7)))
    with pytest.raises(GrammarError, match="deeper"):
        check_tool_schema("guidance", "t", whole(nest(8)))
    wide = {"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/Big"} for i in range(100)}}
    big = {"type": "object", "properties": {f"q{i}": {"type": "boolean"} for i in range(100)}}
    with pytest.raises(GrammarError, match="subschemas"):
        check_tool_schema("guidance", "t", wide | {"$defs": {"Big": big}})


def test_recursion_is_refused_and_repetition_is_not() -> None:
    loop = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Loop"}}}
    with pytest.raises(GrammarError, match="contains itself"):
        check_tool_schema("guidance", "t", {"$ref": "#/$defs/Loop", "$defs": {"Loop": loop}})
    twice = {"type": "object", "properties": {k: {"$ref": "#/$defs/Flag"} for k in "ab"}, "$defs": DEFS}
    check_tool_schema("guidance", "t", twice)


def test_outlines_lists_what_it_leaves_to_the_tool() -> None:
    held = bounded(
        "outlines",
        "t",
        whole(
            {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 5_000}, "maxItems": 50}
        ),
        ROOMY,
    )
    assert [note.split(": ")[:2] for note in held.notes] == [
        ["/properties/v/items", "minimum"],
        ["/properties/v/items", "maximum"],
        ["/properties/v", "maxItems"],
    ]
    small = bounded("outlines", "t", whole({"type": "integer", "minimum": 1, "maximum": 4}), ROOMY)
    assert (small.notes, small.schema["properties"]["v"]) == ((), {"enum": [1, 2, 3, 4]})


@pytest.mark.parametrize("limits", [ROOMY, Limits(100, 3), SMALLEST])
def test_bounded_schemas_end_in_time(limits: Limits) -> None:
    held = bounded("guidance", "book", book.schema, limits)
    matcher = Guidance(
        held.schema | {"x-guidance": {"whitespace_flexible": False, "json_allowed_escapes": 'n\\"'}}
    )
    rng = random.Random(1)
    for _ in range(4):
        json.loads(matcher.walk(rng, held.worst_bytes, adverse=True))


WORDS: list[tuple[str, Callable[[int], int]]] = [
    ("a", lambda n: n),
    ("é", lambda n: n // 2),
    ("漢", lambda n: n // 3),
]


@pytest.mark.parametrize("room", [24, 40, 100, 239])
def test_tight_texts_use_their_bytes_exactly(room: int) -> None:
    schema = text(0, 1_000, room)
    assert worst_bytes(schema) <= room + 2
    matcher = Guidance(
        {"type": "object", "properties": {"v": schema}, "required": ["v"], "additionalProperties": False}
    )
    for letter, most in WORDS:
        assert matcher.accepts(instance(letter * most(room)))
        assert not matcher.accepts(instance(letter * (most(room) + 1)))
    assert matcher.accepts(instance("\n" * (room // 2)))
    assert matcher.accepts(instance("😀" * (room // 4)))


def test_characters_survive_in_the_schema_text() -> None:
    constraint = step_constraint("guidance", BOX, FACTS, 2_000)
    assert "hôtel" in constraint.text
    assert "\\u" not in constraint.text.replace("\\\\u", "")


# --- other objects: judges, memories ------------------------------------------------------------------------------

NOTES = {
    "$defs": {
        "Note": {
            "type": "object",
            "properties": {
                "title": {"type": "string", "minLength": 1, "maxLength": 40},
                "content": {"type": "string", "minLength": 1},
            },
            "required": ["title", "content"],
        }
    },
    "type": "object",
    "properties": {
        "verdict": {"enum": ["success", "failure"]},
        "notes": {"type": "array", "items": {"$ref": "#/$defs/Note"}, "maxItems": 3},
    },
    "required": ["verdict", "notes"],
}
MATCHERS: dict[Profile, Any] = {"guidance": Guidance, "xgrammar": Xgrammar, "outlines": Outlines}
profiles = pytest.mark.parametrize("profile", MATCHERS)


def notes(*said: dict[str, Any], verdict: str = "success") -> str:
    return json.dumps({"verdict": verdict, "notes": said}, ensure_ascii=False, separators=(",", ":"))


@profiles
def test_any_object_becomes_a_grammar(profile: Profile) -> None:
    matcher = MATCHERS[profile](json_constraint(profile, NOTES, 2_000).text)
    note = {"title": "Prices", "content": "Ask for the price first."}
    for output, legal in (
        (notes(), True),
        (notes(note, verdict="failure"), True),
        (notes(note, note, note), True),
        (notes(note, note, note, note), False),
        (notes(verdict="maybe"), False),
        (notes({"title": "x"}), False),
        (notes({**note, "more": 1}), False),
        ('{"notes":[]}', False),
    ):
        assert matcher.accepts(output) is legal, output


@profiles
def test_the_room_goes_to_the_texts_that_are_left_open(profile: Profile) -> None:
    matcher = MATCHERS[profile](json_constraint(profile, NOTES, 2_100).text)
    assert matcher.accepts(notes({"title": "x", "content": "y" * (120 if profile == "xgrammar" else 480)}))
    if profile != "outlines":  # which bounds short texts alone
        assert not matcher.accepts(notes({"title": "x" * 41, "content": "y"}))
        assert not matcher.accepts(notes({"title": "x", "content": "y" * 2_000}))


@pytest.mark.parametrize("max_tokens", [150, 400, 2_000, 4_096])
def test_the_longest_object_fits_its_tokens(max_tokens: int) -> None:
    for profile in ("guidance", "xgrammar"):
        schema = json.loads(json_constraint(profile, NOTES, max_tokens).text)  # type: ignore[arg-type]
        assert worst_bytes(schema) <= max_tokens - MARGIN
    matcher = Guidance(json_constraint("guidance", NOTES, max_tokens).text)
    for seed in range(6):
        said = matcher.walk(random.Random(seed), max_tokens - MARGIN, adverse=seed % 2 == 0)
        assert set(json.loads(said)) == {"verdict", "notes"}


def test_an_object_too_long_for_the_budget_names_what_it_needs() -> None:
    with pytest.raises(GrammarError, match="notes.*max_tokens of") as caught:
        json_constraint("guidance", NOTES, 60, name="notes")
    needed = int(str(caught.value).split("max_tokens of ")[1].split(",")[0])
    json_constraint("guidance", NOTES, needed)
    with pytest.raises(GrammarError, match="max_tokens"):
        json_constraint("guidance", NOTES, needed - 1)


@profiles
def test_an_object_that_no_grammar_holds_is_refused(profile: Profile) -> None:
    schema = {"type": "object", "properties": {"x": {}}, "required": ["x"]}
    with pytest.raises(GrammarError, match="any value at all") as caught:
        json_constraint(profile, schema, 1_000)
    assert caught.value.path == "/properties/x"
