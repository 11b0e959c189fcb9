"""What every store promises. A new store adds one line to `STORES`."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_space import (
    delta,
    finished,
    node,
    replied,
    started,
    tool_finished,
    tool_started,
    write_request,
)

from flowstate_local.errors import BadSpaceName, ConflictError, CorruptValue, UsageError
from flowstate_local.nodes import EvidenceId, IndexLine, NodeId, Ref, RequestId
from flowstate_local.stores.base import Head, Store, digest
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.stores.memory import MemoryStore

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda path: MemoryStore(),
    "lmdb": lambda path: LmdbStore.open(path / "store"),
}


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = STORES[request.param](tmp_path)
    yield store
    store.close()


# --- an unknown space ---------------------------------------------------------------------------------------


def test_an_unknown_space_is_empty_and_asking_does_not_create_it(store: Store) -> None:
    assert store.head("alice") == Head()
    assert list(store.events("alice")) == []
    assert list(store.requests("alice")) == []
    assert list(store.nodes("alice")) == []
    assert store.verify("alice") == []
    reader = store.reader("alice")
    assert reader.node(NodeId("k1")) is None
    assert reader.lines(RequestId("r1")) == []
    assert store.append("alice", [], expected_seq=0) == Head()
    assert store.spaces() == []


@pytest.mark.parametrize("name", ["", "a/b", "a\0b", "a\nb", "x" * 201, "ü" * 101, "\x7f", "\ud800"])
def test_a_bad_space_name_is_refused_by_every_call(store: Store, name: str) -> None:
    done = finished([])
    calls: list[Callable[[], object]] = [
        lambda: store.head(name),
        lambda: store.reader(name),
        lambda: store.append(name, [started()], expected_seq=0),
        lambda: store.persist(name, done, expected_version=0, expected_seq=0),
        lambda: store.events(name),
        lambda: store.requests(name),
        lambda: store.nodes(name),
        lambda: store.verify(name),
    ]
    for call in calls:
        with pytest.raises(BadSpaceName):
            call()
    assert store.spaces() == []


def test_the_longest_and_strangest_names_work(store: Store) -> None:
    names = sorted(["x" * 200, "ü" * 100, " ", "..", "日本 😀", "a", "A"])
    for name in names:
        store.append(name, [started()], expected_seq=0)
    assert store.spaces() == names


# --- append -------------------------------------------------------------------------------------------------


def test_append_numbers_the_events_and_moves_the_head(store: Store) -> None:
    raw = b"Adlon, 200 EUR"
    head = store.append("s", [started(7), tool_started("t3", 7)], expected_seq=0)
    assert head == Head(seq=2, evidence=3, requests=7, open_request=RequestId("r7"), open_seq=1)
    events = [
        tool_finished("t3", raw, 7),
        delta(node("k9", 7), node("hotel_2024", 7), node("j4", 7), number=7),
    ]
    head = store.append("s", events, {digest(raw): raw}, expected_seq=2)
    assert head == Head(seq=4, nodes=9, evidence=3, requests=7, open_request=RequestId("r7"), open_seq=1)
    assert store.head("s") == head
    assert [(e.seq, e.kind) for e in store.events("s")] == [
        (1, "RequestStarted"),
        (2, "ToolStarted"),
        (3, "ToolFinished"),
        (4, "DeltaCommitted"),
    ]
    assert store.reader("s").blob(digest(raw)) == raw
    assert store.verify("s") == []


def test_events_come_back_as_they_were_written(store: Store) -> None:
    written = write_request(store, "s")
    assert list(store.events("s")) == written.events


@pytest.mark.parametrize(
    ("after", "upto", "seqs"),
    [
        (0, None, [1, 2, 3, 4]),
        (2, None, [3, 4]),
        (0, 2, [1, 2]),
        (1, 3, [2, 3]),
        (4, None, []),
        (9, 12, []),
        (-5, 1, [1]),
        (3, 2, []),
    ],
)
def test_events_of_a_range(store: Store, after: int, upto: int | None, seqs: list[int]) -> None:
    store.append("s", [started(), replied(), replied(step=2), replied(step=3)], expected_seq=0)
    assert [e.seq for e in store.events("s", after=after, upto=upto)] == seqs


def test_a_reader_who_is_behind_gets_a_conflict_and_nothing_is_written(store: Store) -> None:
    head = store.append("s", [started()], expected_seq=0)
    for wrong in (0, 2):
        with pytest.raises(ConflictError) as caught:
            store.append("s", [replied()], {digest(b"x"): b"x"}, expected_seq=wrong)
        assert caught.value.retryable
    assert store.head("s") == head
    assert len(list(store.events("s"))) == 1
    with pytest.raises(CorruptValue):
        store.reader("s").blob(digest(b"x"))


def test_a_second_request_waits_until_the_first_is_finished(store: Store) -> None:
    store.append("s", [started(1)], expected_seq=0)
    with pytest.raises(ConflictError, match="r1 is still open"):
        store.append("s", [started(2)], expected_seq=1)


def test_a_request_number_is_never_taken_twice(store: Store) -> None:
    head = write_request(store, "s", 3).head
    with pytest.raises(ConflictError, match="r3"):
        store.append("s", [started(3)], expected_seq=head.seq)


def test_an_append_is_whole_or_absent(store: Store) -> None:
    store.append("s", [started()], expected_seq=0)
    with pytest.raises(UsageError, match="RequestFinished"):
        store.append("s", [replied(), finished([]).events[-1]], expected_seq=1)
    with pytest.raises(UsageError, match="r2"):
        store.append("s", [replied(), replied(2)], expected_seq=1)
    with pytest.raises(UsageError, match="isn't stored"):
        store.append("s", [replied(), tool_finished("t1", b"nowhere")], expected_seq=1)
    with pytest.raises(UsageError, match="not the one its digest"):
        store.append("s", [replied()], {digest(b"a"): b"b"}, expected_seq=1)
    with pytest.raises(UsageError, match="there are none"):
        store.append("s", [], {digest(b"a"): b"a"}, expected_seq=1)
    bad = tool_started("t1").model_copy(update={"arguments": {"x": "\ud800"}})
    with pytest.raises(UsageError, match="JSON"):
        store.append("s", [replied(), bad], expected_seq=1)
    with pytest.raises(UsageError, match="t999"):
        store.append("s", [tool_started("t" + "9" * 30)], expected_seq=1)
    assert [e.kind for e in store.events("s")] == ["RequestStarted"]
    assert store.verify("s") == []


def test_events_need_an_open_request(store: Store) -> None:
    with pytest.raises(UsageError, match="no request is open"):
        store.append("s", [replied()], expected_seq=0)
    assert store.spaces() == []


@pytest.mark.parametrize("raw", [b"", b"\0\xff" * 40, b"a" * 300_000, bytes(range(256)) * 3])
def test_raw_results_come_back_byte_for_byte(store: Store, raw: bytes) -> None:
    store.append(
        "s", [started(), tool_started("t1"), tool_finished("t1", raw)], {digest(raw): raw}, expected_seq=0
    )
    assert store.reader("s").blob(digest(raw)) == raw
    assert store.verify("s") == []


# --- persist ------------------------------------------------------------------------------------------------


def test_persist_makes_a_request_readable(store: Store) -> None:
    reader = store.reader("s")
    written = write_request(store, "s")
    a, b = written.nodes
    assert written.head == Head(version=1, seq=7, nodes=3, evidence=1, requests=1)
    assert store.head("s") == written.head
    assert reader.node(a.id) == a
    assert reader.node(b.id) == b
    assert reader.node(NodeId("k3")) is None, "it was removed before the end"
    assert reader.lines(RequestId("r1")) == [IndexLine.of(a), IndexLine.of(b)]
    record = reader.request(RequestId("r1"))
    assert record is not None
    assert (record.first_seq, record.last_seq, record.nodes) == (1, 7, (a.id, b.id))
    evidence = reader.evidence(EvidenceId("t1"))
    assert evidence is not None
    assert reader.blob(evidence.digest) == written.raw
    assert store.verify("s") == []


def test_requests_and_nodes_come_in_the_order_they_were_kept(store: Store) -> None:
    nodes = [n for number in range(1, 13) for n in write_request(store, "s", number).nodes]
    assert [r.id for r in store.requests("s")] == [f"r{n}" for n in range(1, 13)]
    assert [r.id for r in store.requests("s", first=9, last=10)] == ["r9", "r10"]
    assert [r.id for r in store.requests("s", first=12)] == ["r12"]
    assert list(store.requests("s", first=13)) == []
    assert list(store.requests("s", last=0)) == []
    assert list(store.nodes("s")) == nodes
    assert store.head("s").version == 12
    assert store.verify("s") == []


def test_persist_sets_the_index_floor(store: Store) -> None:
    store.append("s", [started()], expected_seq=0)
    head = store.persist("s", finished([], index_floor=1), expected_version=0, expected_seq=1)
    assert head.index_floor == store.head("s").index_floor == 1


def test_the_loser_of_two_persists_changes_nothing(store: Store) -> None:
    head = write_request(store, "s", 1).head
    head = store.append("s", [started(2), delta(node("k4", 2), number=2)], expected_seq=head.seq)
    done = finished([node("k4", 2)], number=2, first_seq=8)
    for version, seq in [(0, head.seq), (2, head.seq), (1, head.seq - 1), (1, head.seq + 1)]:
        with pytest.raises(ConflictError):
            store.persist("s", done, expected_version=version, expected_seq=seq)
    assert store.head("s") == head
    assert store.reader("s").node(NodeId("k4")) is None
    store.persist("s", done, expected_version=1, expected_seq=head.seq)
    with pytest.raises(ConflictError):
        store.persist("s", done, expected_version=1, expected_seq=head.seq)
    assert store.verify("s") == []


def test_a_persisted_node_is_never_rewritten(store: Store) -> None:
    written = write_request(store, "s", 1)
    other = node("k1", 2, content="another truth")
    head = store.append("s", [started(2), delta(other, number=2)], expected_seq=written.head.seq)
    with pytest.raises(ConflictError, match="node k1 exists"):
        store.persist(
            "s", finished([other], number=2, first_seq=8), expected_version=1, expected_seq=head.seq
        )
    assert store.reader("s").node(NodeId("k1")) == written.nodes[0]


def test_evidence_is_never_rewritten(store: Store) -> None:
    written = write_request(store, "s", 1)
    result = tool_finished("t1", written.raw, 2)
    head = store.append(
        "s", [started(2), result], {digest(written.raw): written.raw}, expected_seq=written.head.seq
    )
    done = finished([], [result], number=2, first_seq=8)
    with pytest.raises(ConflictError, match="evidence t1 exists"):
        store.persist("s", done, expected_version=1, expected_seq=head.seq)


def test_parts_that_do_not_belong_together_are_refused(store: Store) -> None:
    head = store.append("s", [started(1)], expected_seq=0)
    good = finished([node("k1")])
    record = good.record
    bad = [
        (finished([node("k1", 2)]), "r2"),
        (finished([node("k1"), node("k1")]), "twice"),
        (finished([node("t1")]), "'t1' is not a node id"),
        (finished([], [tool_finished("t1", b"nowhere")]), "isn't stored"),
        (finished([], number=2), "r1 is open"),
        (type(good)(record, good.nodes, (), [], 0), "must end"),
        (type(good)(record, good.nodes, (), [*good.events, replied()], 0), "must end"),
        (type(good)(record, good.nodes, (), [*good.events, *good.events], 0), "must end"),
        (type(good)(record, [node("k2")], (), good.events, 0), "different ids"),
    ]
    for done, words in bad:
        with pytest.raises(UsageError, match=words):
            store.persist("s", done, expected_version=0, expected_seq=1)
    assert store.head("s") == head
    assert list(store.nodes("s")) == []


def test_a_whole_request_may_be_written_at_once_with_its_raw_results(store: Store) -> None:
    raw, kept = b"all of it", node("k1", cites=["t1"])
    result = tool_finished("t1", raw)
    before = [started(), tool_started("t1"), result, delta(kept)]
    bare = finished([kept], [result], before=before)
    for blobs, words in (({}, "isn't stored"), ({digest(b"other"): raw}, "is not the one")):
        with pytest.raises(UsageError, match=words):
            store.persist("s", replace(bare, blobs=blobs), expected_version=0, expected_seq=0)
    assert store.spaces() == []
    done = replace(bare, blobs={digest(raw): raw})
    with pytest.raises(ConflictError):
        store.persist("s", done, expected_version=0, expected_seq=1)
    head = store.persist("s", done, expected_version=0, expected_seq=0)
    assert head == store.head("s") == Head(version=1, seq=5, nodes=1, evidence=1, requests=1)
    assert store.reader("s").blob(digest(raw)) == raw
    assert store.verify("s") == []


# --- readers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "K1", "k1\n", "k" * 600, "日本", "t1", "r1", "\ud800"])
def test_an_impossible_id_is_simply_unknown(store: Store, name: str) -> None:
    write_request(store, "s")
    reader = store.reader("s")
    assert reader.node(NodeId(name)) is None
    if name != "t1":
        assert reader.evidence(EvidenceId(name)) is None
    if name != "r1":
        assert reader.request(RequestId(name)) is None
        assert reader.lines(RequestId(name)) == []
    with pytest.raises(CorruptValue):
        reader.blob(name)


def test_numbers_with_leading_zeros_and_giants_are_unknown(store: Store) -> None:
    write_request(store, "s")
    reader = store.reader("s")
    for name in ("01", "0", "1 ", str(2**64 + 1), "9" * 400):
        assert reader.evidence(EvidenceId("t" + name)) is None
        assert reader.request(RequestId("r" + name)) is None


def test_spaces_do_not_see_each_other(store: Store) -> None:
    mine = write_request(store, "alice", raw=b"alice's secret" * 10)
    write_request(store, "alice", 2)
    write_request(store, "bob", raw=b"bob's secret" * 10)
    reader = store.reader("bob")
    assert reader.node(NodeId("k4")) is None
    assert reader.request(RequestId("r2")) is None
    assert [r.id for r in store.requests("bob")] == ["r1"]
    assert store.head("bob").seq == 7
    with pytest.raises(CorruptValue, match="not in this space"):
        reader.blob(digest(mine.raw))
    head = store.append("bob", [started(2)], expected_seq=store.head("bob").seq)
    with pytest.raises(UsageError, match="isn't stored"):
        store.append("bob", [tool_finished("t2", mine.raw, 2)], expected_seq=head.seq)


def test_one_raw_result_may_be_cited_by_many(store: Store) -> None:
    for name in ("alice", "bob"):
        for number in (1, 2):
            write_request(store, name, number, raw=b"the same page" * 100)
        assert store.verify(name) == []
        assert store.reader(name).blob(digest(b"the same page" * 100))


def test_an_iterator_may_be_left_alone_and_sees_what_is_appended(store: Store) -> None:
    store.append("s", [started(), replied()], expected_seq=0)
    events = store.events("s", upto=2)
    assert next(events).seq == 1
    store.append("s", [replied(step=2)], expected_seq=2)
    assert [e.seq for e in events] == [2]


def test_many_more_events_than_one_batch(store: Store) -> None:
    n_events = 700
    store.append("s", [started(), *(replied(step=i) for i in range(1, n_events))], expected_seq=0)
    assert [e.seq for e in store.events("s")] == list(range(1, n_events + 1))
    assert store.verify("s") == []


# --- verification -------------------------------------------------------------------------------------------


def _problems(store: Store) -> list[tuple[str, str]]:
    return [(fault.subject, fault.problem) for fault in store.verify("s")]


def test_verify_names_a_ref_and_evidence_that_lead_nowhere(store: Store) -> None:
    lost = node("k1", refs=[Ref(relation="supports", target=NodeId("j9"))], cites=["t5"])
    store.append("s", [started(), delta(lost)], expected_seq=0)
    store.persist("s", finished([lost]), expected_version=0, expected_seq=2)
    assert _problems(store) == [
        ("k1", "supports j9, which does not exist"),
        ("k1", "rests on t5, which does not exist"),
    ]


def test_verify_names_a_node_that_the_log_does_not_lead_to(store: Store) -> None:
    store.append("s", [started(), delta(node("k1"))], expected_seq=0)
    other = [node("k1", content="changed on the way"), node("k2")]
    store.persist("s", finished(other), expected_version=0, expected_seq=2)
    assert _problems(store) == [
        ("k1", "differs from the node the log leads to"),
        ("k2", "differs from the node the log leads to"),
    ]


def test_verify_names_evidence_and_requests_that_differ_from_the_log(store: Store) -> None:
    raw = b"page"
    result = tool_finished("t1", raw)
    store.append("s", [started(), result, replied()], {result.digest: raw}, expected_seq=0)
    wrong = result.model_copy(update={"name": "another tool"})
    never = result.model_copy(update={"evidence": EvidenceId("t2")})
    store.persist("s", finished([], [wrong, never], first_seq=2), expected_version=0, expected_seq=3)
    assert _problems(store) == [
        ("r1", "first_seq is 2, the log says 1"),
        ("t1", "the record differs from the log"),
        ("t2", "kept, but the log has no result of this id"),
    ]


def test_verify_names_a_result_of_another_size(store: Store) -> None:
    result = tool_finished("t1", b"page").model_copy(update={"size_bytes": 5})
    store.append("s", [started(), result], {result.digest: b"page"}, expected_seq=0)
    assert _problems(store) == [("t1", "raw result has 4 bytes, recorded as 5")]


# --- life ---------------------------------------------------------------------------------------------------


def test_close_is_idempotent_and_final(store: Store) -> None:
    write_request(store, "s")
    reader = store.reader("s")
    store.close()
    store.close()
    for call in (
        store.spaces,
        lambda: store.head("s"),
        lambda: store.append("s", [started(2)], expected_seq=6),
        lambda: reader.node(NodeId("k1")),
        lambda: list(store.events("s")),
    ):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_threads_that_race_for_one_space_lose_nothing(store: Store) -> None:
    store.append("s", [started()], expected_seq=0)
    n_threads, n_each = 4, 10
    conflicts: list[int] = []

    def write(thread: int) -> None:
        for i in range(n_each):
            while True:
                try:
                    event = replied(text=f"{thread}:{i}")
                    store.append("s", [event], expected_seq=store.head("s").seq)
                    break
                except ConflictError:
                    conflicts.append(thread)

    threads = [threading.Thread(target=write, args=(t,)) for t in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = [e.text for e in store.events("s", after=1) if e.kind == "ModelReplied"]
    assert sorted(texts) == sorted(f"{t}:{i}" for t in range(n_threads) for i in range(n_each))
    for t in range(n_threads):
        assert [x for x in texts if x.startswith(f"{t}:")] == [f"{t}:{i}" for i in range(n_each)]
    assert store.verify("s") == []


# --- properties ---------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["start", "reply", "delta", "tool", "persist", "stale"]),
        st.sampled_from(["s", "other"]),
        st.integers(0, 3),
    ),
    max_size=25,
)


class _Writer:
    """Plays actions on a store, each by the rules, and keeps what it should lead to."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.active: dict[str, dict] = {"s": {}, "other": {}}
        self.heads = {"s": Head(), "other": Head()}
        self.kept: dict[str, list] = {"s": [], "other": []}

    def play(self, action: str, space: str, size: int) -> str:
        """The name of what happened: "ok" or the error's class."""
        try:
            head = getattr(self, f"_{action}")(space, self.heads[space], size)
        except (ConflictError, UsageError) as error:
            return type(error).__name__
        self.heads[space] = head
        return "ok"

    def _number(self, head: Head) -> int:
        return head.requests or 1

    def _start(self, space: str, head: Head, size: int) -> Head:
        head = self.store.append(space, [started(head.requests + 1)], expected_seq=head.seq)
        self.active[space] = {}
        return head

    def _reply(self, space: str, head: Head, size: int) -> Head:
        text = "ä" * size * 300
        return self.store.append(space, [replied(self._number(head), text=text)], expected_seq=head.seq)

    def _delta(self, space: str, head: Head, size: int) -> Head:
        number = self._number(head)
        known = [*self.active[space], *(n.id for n in self.kept[space])]
        refs = [Ref(relation="follows", target=known[0])] if known else []
        added = [
            node(f"k{head.nodes + i + 1}", number, content="x" * 400 * i, refs=refs) for i in range(size)
        ]
        loose = [n for n in self.active[space] if n not in (r.target for r in refs)]
        removed = loose[:1] if size == 3 else []
        result = self.store.append(
            space, [delta(*added, removed=removed, number=number)], expected_seq=head.seq
        )
        for each in added:
            self.active[space][each.id] = each
        for each in removed:
            del self.active[space][each]
        return result

    def _tool(self, space: str, head: Head, size: int) -> Head:
        number, raw = self._number(head), b"raw" * size * 200
        evidence = f"t{head.evidence + 1}"
        events = [tool_started(evidence, number), tool_finished(evidence, raw, number)]
        return self.store.append(space, events, {digest(raw): raw}, expected_seq=head.seq)

    def _persist(self, space: str, head: Head, size: int) -> Head:
        nodes = list(self.active[space].values())
        done = finished(nodes, number=self._number(head), first_seq=head.open_seq, index_floor=head.version)
        result = self.store.persist(space, done, expected_version=head.version, expected_seq=head.seq)
        self.kept[space] += nodes
        self.active[space] = {}
        return result

    def _stale(self, space: str, head: Head, size: int) -> Head:
        return self.store.append(space, [replied(self._number(head))], expected_seq=head.seq + 1 + size)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_any_history_stays_whole_and_all_stores_agree(
    actions: list[tuple[str, str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    writers = [_Writer(make(tmp_path_factory.mktemp("any"))) for make in STORES.values()]
    try:
        for action in actions:
            outcomes = [writer.play(*action) for writer in writers]
            assert len(set(outcomes)) == 1
        first = writers[0].store
        for writer in writers:
            _check(writer, first)
    finally:
        for writer in writers:
            writer.store.close()


def _check(writer: _Writer, other: Store) -> None:
    store = writer.store
    assert store.spaces() == other.spaces()
    for space in ("s", "other"):
        assert store.head(space) == writer.heads[space]
        assert store.verify(space) == []
        events = list(store.events(space))
        assert [e.seq for e in events] == list(range(1, store.head(space).seq + 1))
        assert events == list(other.events(space))
        assert list(store.requests(space)) == list(other.requests(space))
        assert list(store.nodes(space)) == writer.kept[space]
