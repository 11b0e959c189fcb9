"""What a finding may say: no number that was never read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstate_local import isu
from flowstate_local.events import Disclosed, RequestStarted, StepStarted, ToolFinished, ToolStarted
from flowstate_local.grounding import numbers_in
from flowstate_local.nodes import IndexLine, Node
from flowstate_local.protocol import StepOutput
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.state import ActiveState

REQUEST = "Hotel B costs 160 now. Calculate what changing would cost in all, then answer the offer of Hotel B today."


class History:
    """One old node `n1`, which says 200 and cites `t1`; raw results by digest."""

    blobs = {"old": b"cancelling costs 80 dollars", "new": b"a taxi costs 1,450.50 at 07:40"}

    def node(self, node_id: str) -> Node | None:
        return make("n1", "Booked for 200", request="r1", evidence=["t1"]) if node_id == "n1" else None

    def evidence(self, evidence_id: str) -> EvidenceRecord | None:
        if evidence_id != "t1":
            return None
        return EvidenceRecord(id="t1", digest="old", size_bytes=3, tool="look", request="r1", step=1)

    def blob(self, key: str) -> bytes:
        return self.blobs[key]

    def request(self, request_id: str) -> RequestRecord | None:
        return None

    def lines(self, request_id: str) -> list[IndexLine]:
        return []


def make(node_id: str, summary: str, **fields: object) -> Node:
    origin = {"request": "r2", "step": 1, "created_at": 0.0}
    return Node.model_validate({"id": node_id, "type": "knowledge", "summary": summary, **origin, **fields})


def refused(summary: str, *, opened: tuple[str, ...] = (), **fields: object) -> list[str]:
    """Rules that refuse a node of this summary, in a request with the tool result `t2`."""
    state = ActiveState()
    common = {"request": "r2", "step": 1, "at": 0.0}
    for event in (
        RequestStarted(text=REQUEST, first_node=2, first_evidence=2, **(common | {"step": 0})),
        StepStarted(**common),
        ToolStarted(evidence="t2", name="taxi", arguments={"people": 3}, idempotency_key="k", **common),
        ToolFinished(evidence="t2", name="taxi", digest="new", size_bytes=3, **common),
        Disclosed(granted=opened, **common),
    ):
        state.apply(event)
    add = {"op": "add", "id": "n2", "type": "knowledge", "summary": summary, **fields}
    output = {"state_focus": [], "state_delta": [add], "tool_calls": [], "assistant_message": ""}
    done = isu.commit(StepOutput.model_validate(output).state_delta, state, History(), at=1.0)
    return [refusal.rule for refusal in done.refused]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", set()),
        ("1,200 and 1200.0", {"1200"}),
        ("07:40", {"7", "40"}),
        ("1.50 or 1,5", {"1.5"}),
        ("-3 %", {"3"}),
        ("0, 00 and 0.0", {"0"}),
        ("3.11.7", {"3.11.7"}),
        ("T311 (31 dollars)", {"311", "31"}),
        ("1,450.50", {"1450.5"}),
    ],
)
def test_a_number_has_one_spelling(text: str, numbers: set[str]) -> None:
    assert numbers_in(text) == numbers


@given(st.integers(min_value=0, max_value=10**12))
def test_thousands_may_be_set_apart(number: int) -> None:
    assert numbers_in(f"about {number:,} in all") == numbers_in(str(number)) == {str(number)}


@pytest.mark.parametrize(
    "summary",
    [
        "Hotel B costs 160",  # the request
        "A taxi for 3 costs 1450.5",  # a call and its result
        "The taxi leaves at 7:40",
        "No number at all",
    ],
)
def test_a_fact_of_what_was_read_is_kept(summary: str) -> None:
    assert refused(summary) == []


def test_a_number_from_nowhere_is_refused() -> None:
    assert refused("A taxi costs 99") == ["ungrounded_number"]
    assert refused("A taxi is dear", content="It costs 99") == ["ungrounded_number"]
    assert refused("A taxi is dear", slots=[{"name": "price", "value": "99"}]) == ["ungrounded_number"]


def test_a_sum_that_is_right_needs_no_calculator_but_its_terms_do() -> None:
    assert refused("In all 160 + 1450.5 = 1610.5 dollars") == []
    assert refused("In all 160 dollars + 3 dollars = 163 dollars") == []
    assert refused("In all 160 + 3 = 164") == ["ungrounded_number"]
    assert refused("In all 160 + 99 = 259") == ["ungrounded_number"]


def test_what_is_not_open_was_not_read_unless_it_is_referred_to() -> None:
    assert refused("It was booked for 200") == ["ungrounded_number"]
    assert refused("It was booked for 200", refs=[{"relation": "derives", "target": "n1"}]) == []
    assert refused("It was booked for 200", opened=("n1",)) == []
    assert refused("Cancelling costs 80", opened=("n1",)) == ["ungrounded_number"]
    assert refused("Cancelling costs 80", opened=("n1", "t1")) == []
    assert refused("Cancelling costs 80", evidence=["t1"]) == []


@pytest.mark.parametrize("kind", ["judgement", "preference", "artifact"])
def test_plans_and_wishes_may_hold_any_number(kind: str) -> None:
    assert refused("Spend 99 at most", type=kind) == []


def test_the_request_again_is_no_fact() -> None:
    assert refused(REQUEST) == ["restates_request"]
    assert refused("So: calculate what changing would cost in all, then answer the offer of Hotel B") == [
        "restates_request"
    ]
    assert refused("Changing would cost 160 in all") == []
    assert refused(REQUEST, type="judgement") == refused(REQUEST, type="preference") == []


def test_the_refusal_says_where_to_look() -> None:
    state = ActiveState(text="Pay 12 or 15")
    node = {"op": "add", "id": "n2", "type": "attribute", "summary": "It costs 13"}
    output = {"state_focus": [], "state_delta": [node], "tool_calls": [], "assistant_message": ""}
    (refusal,) = isu.commit(StepOutput.model_validate(output).state_delta, state, History(), at=0.0).refused
    assert refusal.advice == "13 was read nowhere; open it, or call the tool first, or calculate"


def test_the_rule_can_be_turned_off() -> None:
    node = {"op": "add", "id": "n2", "type": "attribute", "summary": "It costs 13"}
    output = {"state_focus": [], "state_delta": [node], "tool_calls": [], "assistant_message": ""}
    delta = StepOutput.model_validate(output).state_delta
    assert isu.commit(delta, ActiveState(), History(), at=0.0, grounded=False).refused == ()
