"""The index: one line a node, append-only, folded within its budget while the repository grows."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstate_local import index as index_module
from flowstate_local.index import FAN_OUT, cover, gist, is_span, load, load_within
from flowstate_local.loop import Agent
from flowstate_local.nodes import IndexLine, Node
from flowstate_local.psa import inside
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine, step


class Long:
    """A repository of `n` requests with two nodes each, made up on reading."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.reads = 0

    def node(self, node_id: str) -> Node | None:
        return None

    def evidence(self, evidence_id: str) -> EvidenceRecord | None:
        return None

    def blob(self, key: str) -> bytes:
        return b""

    def request(self, request_id: str) -> RequestRecord | None:
        self.reads += 1
        number = int(request_id[1:])
        if not 1 <= number <= self.n:
            return None
        return RequestRecord(
            id=request_id,
            text=f"do the thing number {number} with care",
            date="2026-01-01",
            outcome="replied",
            message="done",
            nodes=(f"n{2 * number - 1}", f"n{2 * number}"),
            first_seq=1,
            last_seq=2,
            steps=1,
            at=0.0,
        )

    def lines(self, request_id: str) -> list[IndexLine]:
        number = int(request_id[1:])
        return [
            IndexLine(id=f"n{i}", type="knowledge", summary=f"fact {i}", request=request_id)
            for i in (2 * number - 1, 2 * number)
        ]


def words(line: str) -> int:
    return len(line.split())


@given(st.integers(0, 5_000))
def test_a_cover_is_exact_aligned_and_short(floor: int) -> None:
    expected = 1
    for line_id in cover(floor):
        if line_id.startswith("r"):
            first = last = int(line_id[1:])
        else:
            first, last = (int(part) for part in line_id[1:].split("_"))
            assert is_span(first, last)
        assert first == expected
        expected = last + 1
    assert expected == floor + 1
    assert len(cover(floor)) <= (FAN_OUT - 1) * len(str(max(floor, 1)))


@given(st.integers(1, 3_000), st.integers(1, 3_000))
def test_a_span_is_one_that_some_cover_makes(first: int, size: int) -> None:
    last = first + size - 1
    assert is_span(first, last) == (f"s{first}_{last}" in cover(last))


def test_opening_a_span_shows_ten_lines_down_to_the_nodes() -> None:
    assert inside("s1_100", Long(100)) == [f"s{start}_{start + 9}" for start in range(1, 100, 10)]
    assert inside("s11_20", Long(100)) == [f"r{number}" for number in range(11, 21)]
    assert inside("r11", Long(100)) == ["n21", "n22"]
    assert inside("n21", Long(100)) == []


def test_between_folds_the_text_only_grows_at_its_end() -> None:
    floor, text, folds = 0, "", 0
    for n in range(1, 60):
        index = load_within(Long(n), floor=floor, last_request=n, budget=300, count=words)
        if index.floor == floor and text:
            assert index.text.startswith(text)
        folds += index.floor != floor
        floor, text = index.floor, index.text
    assert 1 <= folds <= 8


@pytest.mark.parametrize("n", [10, 1_000, 20_000])
def test_it_fits_its_budget_however_long_the_history(n: int) -> None:
    # A long history is folded as it grows, so its floor is near its end.
    index = load_within(Long(n), floor=max(0, n - 30), last_request=n, budget=700, count=words)
    assert sum(map(words, index.lines)) <= 700
    assert f"n{2 * n}" in index.ids


def test_reading_a_long_history_touches_few_requests() -> None:
    short, long = Long(100), Long(100_000)
    load(short, floor=95, last_request=100)
    load(long, floor=99_995, last_request=100_000)
    assert long.reads < 3 * FAN_OUT * 6


def test_a_request_without_nodes_leaves_no_line() -> None:
    index = index_module.Index(floor=0, last_request=0)
    record = Long(1).request("r1")
    assert record is not None
    index_module.append(index, record, [])
    assert index.text == "(empty)\n"


def test_a_gist_is_one_line_cut_at_a_word() -> None:
    assert gist("a  b\nc") == "a b c"
    assert gist("word " * 40) == "word word word word word word word word word word word..."
    assert len(gist("x" * 500)) == 60


@pytest.mark.anyio
async def test_what_was_said_in_a_long_request_can_be_opened_later() -> None:
    told = (
        "Remember the plan. "
        + "Nothing here matters much. " * 30
        + "On the third day we dine at Nutri Punch for 47."
    )
    fact = {"type": "knowledge", "id": "n2", "summary": "Dinner on day three costs 47"}
    script = [
        step(delta=[{"type": "preference", "id": "n1", "summary": "The plan of the trip"}]),
        step(message="Noted."),
        step(focus=["r1"]),
        step(delta=[fact], message="It costs 47."),
        step(message="Hello."),
    ]
    engine = ScriptedEngine(script, check=False)
    store = MemoryStore()
    agent = Agent(engine, store)
    await agent.run(told)
    await agent.run("What does dinner cost on day three?")
    assert "asked: Remember the plan." in engine.prompts[3]
    assert "Nutri Punch for 47." in engine.prompts[3]
    assert [node.id for node in store.nodes("default")] == ["n1", "n2"], "its numbers were read"
    offered = json.loads(engine.constraints[2].text)["$defs"]["open"]["enum"]  # type: ignore[union-attr]
    assert offered == ["r1", "n1"]
    await agent.run("Hi")
    offered = json.loads(engine.constraints[-1].text)["$defs"]["open"]["enum"]  # type: ignore[union-attr]
    assert offered == ["r1", "n1", "n2"], "a short request isn't offered"
    assert store.verify("default") == []
