"""ISU: every rule of DESIGN section 2, whatever the grammar did; and properties over arbitrary deltas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstate_local import isu
from flowstate_local.events import (
    DeltaCommitted,
    Disclosed,
    RequestStarted,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from flowstate_local.nodes import IndexLine, Node
from flowstate_local.protocol import StepOutput
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.state import ActiveState


class History:
    """A repository of one old node `n1` that cites `t1`."""

    def __init__(self) -> None:
        self.old = node("n1", "the old decision", request="r1")
        self.record = EvidenceRecord(
            id="t1", digest="0" * 64, size_bytes=3, tool="look", request="r1", step=1
        )

    def node(self, node_id: str) -> Node | None:
        return self.old if node_id == "n1" else None

    def evidence(self, evidence_id: str) -> EvidenceRecord | None:
        return self.record if evidence_id == "t1" else None

    def blob(self, key: str) -> bytes:
        return b"raw"

    def request(self, request_id: str) -> RequestRecord | None:
        return None

    def lines(self, request_id: str) -> list[IndexLine]:
        return []


def node(node_id: str, summary: str, *, request: str = "r2", refs: tuple[dict[str, str], ...] = ()) -> Node:
    return Node.model_validate(
        {
            "id": node_id,
            "type": "knowledge",
            "summary": summary,
            "refs": refs,
            "request": request,
            "step": 1,
            "created_at": 0.0,
        }
    )


def running() -> ActiveState:
    """A request that has one node `n2` and one tool result `t2`."""
    state = ActiveState()
    common = {"request": "r2", "step": 1, "at": 0.0}
    for event in (
        RequestStarted(text="x", first_node=2, first_evidence=2, **(common | {"step": 0})),
        StepStarted(**common),
        ToolStarted(evidence="t2", name="look", arguments={}, idempotency_key="k", **common),
        ToolFinished(evidence="t2", name="look", digest="0" * 64, size_bytes=3, **common),
        DeltaCommitted(added=(node("n2", "a new thing"),), **common),
    ):
        state.apply(event)
    return state


def commit(*operations: dict[str, object]) -> DeltaCommitted:
    output = StepOutput.model_validate(
        {"state_focus": [], "state_delta": operations, "tool_calls": [], "assistant_message": ""}
    )
    return isu.commit(output.state_delta, running(), History(), at=1.0)


def add(node_id: str, summary: str = "something else", **fields: object) -> dict[str, object]:
    return {"op": "add", "type": "judgement", "id": node_id, "summary": summary, **fields}


def test_a_legal_add_is_committed_with_its_origin() -> None:
    done = commit(add("n3", refs=[{"relation": "derives", "target": "n1"}], evidence=["t1", "t2", "t1"]))
    (added,) = done.added
    assert (added.id, added.request, added.step, added.created_at) == ("n3", "r2", 1, 1.0)
    assert added.evidence == ("t1", "t2")
    assert done.refused == ()


@pytest.mark.parametrize(
    ("operation", "rule"),
    [
        (add("n1"), "id_taken"),
        (add("n2"), "id_taken"),
        (add("N3"), "id_malformed"),
        (add("t3"), "id_malformed"),
        (add("r3"), "id_malformed"),
        (add("s1_10"), "id_malformed"),
        (add("x" * 33), "id_malformed"),
        (add("n3", " \n "), "summary_empty"),
        (add("n3", refs=[{"relation": "derives", "target": "n9"}]), "ref_unresolved"),
        (add("n3", refs=[{"relation": "derives", "target": "n3"}]), "ref_self"),
        (add("n3", refs=[{"relation": "supersedes", "target": "n1"}]), "supersedes_unread"),
        (add("n3", evidence=["t9"]), "evidence_unknown"),
        ({"op": "add", "type": "knowledge", "id": "n3", "summary": "A  New thing"}, "duplicate"),
        ({"op": "update", "id": "n1", "summary": "rewritten history"}, "history_immutable"),
        ({"op": "remove", "id": "n1"}, "history_immutable"),
        ({"op": "update", "id": "n9", "summary": "?"}, "unknown_id"),
        ({"op": "remove", "id": "n9"}, "unknown_id"),
        ({"op": "update", "id": "n2", "summary": "a new thing"}, "no_change"),
        ({"op": "update", "id": "n2", "refs": [{"relation": "derives", "target": "n2"}]}, "ref_self"),
    ],
)
def test_an_illegal_operation_is_refused_and_the_legal_one_beside_it_is_kept(
    operation: dict[str, object], rule: str
) -> None:
    done = commit(operation, add("n5", "a bystander"))
    assert [refusal.rule for refusal in done.refused] == [rule]
    assert [n.id for n in done.added] == ["n5"]
    assert done.refused[0].advice


def test_what_was_opened_or_made_here_can_be_superseded() -> None:
    state = running()
    state.apply(Disclosed(request="r2", step=1, at=0.0, granted=("n1",)))
    adds = [
        add("n3", "one", refs=[{"relation": "supersedes", "target": "n1"}]),
        add("n4", "two", refs=[{"relation": "supersedes", "target": "n2"}]),
    ]
    output = {"state_focus": [], "state_delta": adds, "tool_calls": [], "assistant_message": ""}
    done = isu.commit(StepOutput.model_validate(output).state_delta, state, History(), at=1.0)
    assert (len(done.added), done.refused) == (2, ())


def test_later_operations_see_earlier_ones() -> None:
    done = commit(
        add("n3", "one"),
        add("n4", "two", refs=[{"relation": "follows", "target": "n3"}]),
        {"op": "update", "id": "n3", "summary": "one, corrected"},
        {"op": "remove", "id": "n2"},
    )
    assert [(n.id, n.summary) for n in done.added] == [("n3", "one, corrected"), ("n4", "two")]
    assert done.removed == ("n2",)


def test_a_node_that_another_refers_to_stays() -> None:
    done = commit(add("n3", refs=[{"relation": "derives", "target": "n2"}]), {"op": "remove", "id": "n2"})
    assert [r.rule for r in done.refused] == ["still_referenced"]
    assert done.removed == ()


def test_an_update_cannot_close_a_cycle() -> None:
    done = commit(
        add("n3", refs=[{"relation": "derives", "target": "n2"}]),
        {"op": "update", "id": "n2", "refs": [{"relation": "derives", "target": "n3"}]},
    )
    assert [r.rule for r in done.refused] == ["ref_unresolved"]


def test_a_removed_id_is_not_used_again() -> None:
    done = commit(add("n3", "one"), {"op": "remove", "id": "n3"}, add("n3", "another"))
    assert [r.rule for r in done.refused] == ["id_taken"]
    assert done.added == ()


ids = st.sampled_from(["n1", "n2", "n3", "n4", "n5", "t1", "BAD", ""])
refs = st.lists(
    st.fixed_dictionaries({"relation": st.sampled_from(["supports", "supersedes"]), "target": ids}),
    max_size=3,
)
operations = st.one_of(
    st.builds(
        lambda i, s, r, e: {"op": "add", "type": "artifact", "id": i, "summary": s, "refs": r, "evidence": e},
        ids,
        st.text(min_size=1, max_size=20),
        refs,
        st.lists(st.sampled_from(["t1", "t2", "t3"]), max_size=2),
    ),
    st.builds(
        lambda i, s, r: {"op": "update", "id": i, "summary": s, "refs": r}, ids, st.text(min_size=1), refs
    ),
    st.builds(lambda i: {"op": "remove", "id": i}, ids),
)


@settings(max_examples=300)
@given(st.lists(operations, max_size=8))
def test_whatever_is_asked_the_state_stays_whole(delta: list[dict[str, object]]) -> None:
    state, history = running(), History()
    output = StepOutput.model_validate(
        {"state_focus": [], "state_delta": delta, "tool_calls": [], "assistant_message": ""}
    )
    done = isu.commit(output.state_delta, state, history, at=1.0)
    state.apply(done)
    assert "n1" not in state.own
    order = list(state.own)
    for position, (node_id, own) in enumerate(state.own.items()):
        assert own.id == node_id
        assert own.summary == " ".join(own.summary.split()) != ""
        for ref in own.refs:
            assert ref.target == "n1" or order.index(ref.target) < position
        assert set(own.evidence) <= {"t1", "t2"}
    n_done = len(done.added) + len(done.updated) + len(done.removed) + len(done.refused)
    assert n_done <= len(delta)
