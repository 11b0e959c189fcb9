"""What every store promises about tasks. A new store adds one line to `STORES` of test_store_conformance."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_store_conformance import STORES

sys.path.insert(0, str(Path(__file__).parent.parent / "tasks"))
from made import call, created, flow, put, record

from flowstate_local.errors import BadSpaceName, ConflictError, CorruptValue, UsageError
from flowstate_local.stores.base import Head, Lease, Store, TaskHead, TaskQuery, digest
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.task_events import (
    TaskEvent,
    TaskId,
    TaskLogged,
    TaskResultSet,
    TaskStatusChanged,
    Value,
)
from flowstate_local.task_state import fold

T = TaskId("t")


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = STORES[request.param](tmp_path)
    yield store
    store.close()


def logged(message: str = "hello", task: str = "t", at: float = 2.0) -> TaskLogged:
    return TaskLogged(task=TaskId(task), at=at, message=message)


def test_an_unknown_task_is_empty_and_asking_does_not_create_it(store: Store) -> None:
    assert store.task_head("s", T) == TaskHead()
    assert list(store.task_events("s", T)) == []
    assert store.snapshot("s", T) is None
    assert store.task("s", T) is None
    assert list(store.tasks(TaskQuery())) == []
    assert store.lease("s", T) is None
    assert store.spaces() == []


@pytest.mark.parametrize("name", ["", "A", "a/b", "a\0b", "-a", "x" * 65, "ü", "a b"])
def test_a_bad_task_id_is_refused_by_every_call(store: Store, name: str) -> None:
    task = TaskId(name)
    state = fold(None, [created()])
    calls: list[Callable[[], object]] = [
        lambda: store.task_head("s", task),
        lambda: store.task_events("s", task),
        lambda: store.snapshot("s", task),
        lambda: store.task("s", task),
        lambda: store.lease("s", task),
        lambda: store.set_lease("s", task, None, replacing=""),
        lambda: store.compact_task("s", task, upto=1),
        lambda: store.append_task(
            "s",
            [created().model_copy(update={"task": task})],
            expected_seq=0,
            record=record(state).model_copy(update={"id": task}),
        ),
    ]
    for one in calls:
        with pytest.raises(UsageError):
            one()
    assert store.spaces() == []


def test_a_bad_space_is_refused(store: Store) -> None:
    state = fold(None, [created()])
    with pytest.raises(BadSpaceName):
        store.append_task("a/b", [created()], expected_seq=0, record=record(state))


def test_events_come_back_numbered_and_a_space_may_hold_tasks_alone(store: Store) -> None:
    state = put(store, [created(), logged("one")])
    put(store, [logged("two")], state)
    assert [(e.seq, e.kind) for e in store.task_events("s", T)] == [
        (1, "TaskCreated"),
        (2, "TaskLogged"),
        (3, "TaskLogged"),
    ]
    assert [e.seq for e in store.task_events("s", T, after=1, upto=2)] == [2]
    assert list(store.task_events("s", T, after=3)) == []
    assert store.task_head("s", T) == TaskHead(seq=3)
    assert store.spaces() == ["s"]
    assert store.head("s") == Head()
    assert store.verify("s") == []


def test_the_second_of_two_writers_gets_a_conflict_and_nothing_of_it_is_written(store: Store) -> None:
    state = put(store, [created()])
    put(store, [logged("first")], state)
    with pytest.raises(ConflictError, match="is at version 2, not 1"):
        put(store, [logged("second")], state, blobs={digest(b"x"): b"x"})
    with pytest.raises(ConflictError, match="exists already"):
        put(store, [created()])
    assert store.task_head("s", T).seq == 2
    with pytest.raises(CorruptValue):
        store.reader("s").blob(digest(b"x"))


@pytest.mark.parametrize(
    "events",
    [
        [],
        [logged()],
        [created(), created()],
        [created(), logged(task="other")],
        [created(), TaskResultSet(task=T, at=2.0, result=Value(digest="0" * 64, size_bytes=1))],
    ],
)
def test_events_that_cannot_follow_are_refused(store: Store, events: list[TaskEvent]) -> None:
    with pytest.raises(UsageError):
        store.append_task("s", events, expected_seq=0, record=record(fold(None, [created()])))
    assert store.task_head("s", T) == TaskHead()
    assert store.task("s", T) is None


def test_values_are_stored_once_and_read_by_digest(store: Store) -> None:
    raw = b"x" * 100_000
    value = Value(form="text", digest=digest(raw), size_bytes=len(raw))
    state = put(store, [created()])
    put(store, [TaskResultSet(task=T, at=2.0, result=value)], state, blobs={digest(raw): raw})
    assert store.reader("s").blob(digest(raw)) == raw
    with pytest.raises(CorruptValue):
        store.reader("other").blob(digest(raw))


def test_snapshots(store: Store) -> None:
    state = put(store, [created()], snapshot=True)
    state = put(store, [logged(), logged()], state)
    state = put(store, [logged()], state, snapshot=True)
    assert store.task_head("s", T) == TaskHead(seq=4, snapshot=4)
    assert [found and found[0] for found in (store.snapshot("s", T), store.snapshot("s", T, upto=3))] == [
        4,
        1,
    ]
    assert store.snapshot("s", T, upto=0) is None
    assert store.snapshot("s", TaskId("t0")) is None, "a task whose name begins alike is another one"


def test_compaction_leaves_the_snapshot_and_what_came_later(store: Store) -> None:
    state = put(store, [created(), logged()], snapshot=True)
    put(store, [logged("later")], state)
    with pytest.raises(UsageError, match="no snapshot at event 3"):
        store.compact_task("s", T, upto=3)
    assert store.compact_task("s", T, upto=2) == TaskHead(seq=3, floor=2, snapshot=2)
    assert [e.seq for e in store.task_events("s", T, after=2)] == [3]
    with pytest.raises(UsageError, match="compacted"):
        store.task_events("s", T)
    found = store.task("s", T)
    assert found is not None
    assert found.archived


def test_two_tasks_with_names_alike_do_not_mix(store: Store) -> None:
    first = put(store, [created("a")], snapshot=True)
    put(store, [created("a-1"), logged(task="a-1")], snapshot=True)
    put(store, [logged(task="a")], first)
    assert [e.task for e in store.task_events("s", TaskId("a"))] == ["a", "a"]
    store.compact_task("s", TaskId("a-1"), upto=2)
    assert len(list(store.task_events("s", TaskId("a")))) == 2


# --- queries ------------------------------------------------------------------------------------------------


def ids(store: Store, **query: object) -> list[str]:
    return [found.id for found in store.tasks(TaskQuery(**query))]  # type: ignore[arg-type]


def test_tasks_are_found_by_owner_status_step_and_time(store: Store) -> None:
    workflow = flow(call("a"), call("b", needs=["a"]))
    put(store, [created("t1", workflow, at=3.0, owner="ana")])
    put(store, [created("t2", workflow, at=1.0, owner="ben")])
    put(store, [created("t3", workflow, at=2.0, owner="ana")], space="other")
    state = put(store, [created("t4", workflow, at=4.0, owner="")])
    put(store, [TaskStatusChanged(task=TaskId("t4"), at=5.0, status="running")], state)
    assert ids(store) == ["t2", "t3", "t1", "t4"]
    assert ids(store, space="s") == ["t2", "t1", "t4"]
    assert ids(store, owner="ana") == ["t3", "t1"]
    assert ids(store, owner="an") == []
    assert ids(store, owner="") == ["t4"]
    assert ids(store, status="running") == ["t4"]
    assert ids(store, status="pending", owner="ana", space="s") == ["t1"]
    assert ids(store, current_step="a") == ["t2", "t3", "t1", "t4"]
    assert ids(store, created_from=2.0, created_before=4.0) == ["t3", "t1"]
    assert ids(store, created_from=2.0, created_before=2.0) == []
    assert ids(store, owner="o" * 500) == []


names = st.text(st.characters(codec="utf-8"), max_size=300)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tasks=st.lists(st.tuples(names, st.integers(0, 5)), max_size=12), owner=names, low=st.integers(0, 5))
def test_both_stores_answer_alike(
    tmp_path_factory: pytest.TempPathFactory, tasks: list[tuple[str, int]], owner: str, low: int
) -> None:
    memory, disk = MemoryStore(), LmdbStore.open(tmp_path_factory.mktemp("store"))
    for number, (name, at) in enumerate(tasks):
        for store in (memory, disk):
            put(store, [created(f"t{number}", at=float(at), owner=name)])
    owners = [owner, *(name for name, _ in tasks)]
    for each in owners:
        query = TaskQuery(owner=each, created_from=float(low))
        assert [r.id for r in memory.tasks(query)] == [r.id for r in disk.tasks(query)]
    disk.close()


# --- leases -------------------------------------------------------------------------------------------------


def test_a_lease_is_taken_by_one(store: Store) -> None:
    mine, other = (Lease(token=token, name=token, expires_at=9.0) for token in ("mine", "other"))
    put(store, [created()])
    store.set_lease("s", T, mine, replacing="")
    assert store.lease("s", T) == mine
    with pytest.raises(ConflictError, match="held by mine"):
        store.set_lease("s", T, other, replacing="")
    with pytest.raises(ConflictError):
        store.set_lease("s", T, None, replacing="other")
    store.set_lease("s", T, other, replacing="mine")
    store.set_lease("s", T, None, replacing="other")
    assert store.lease("s", T) is None


def test_of_many_threads_that_append_each_version_is_won_by_one(store: Store) -> None:
    state = put(store, [created()])
    won: list[int] = []

    def race(number: int) -> None:
        try:
            put(store, [logged(str(number))], state)
            won.append(number)
        except ConflictError:
            pass

    threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    events = list(store.task_events("s", T))
    assert [getattr(e, "message", "") for e in events] == ["", str(won[0])]


# --- on disk ------------------------------------------------------------------------------------------------


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    with LmdbStore.open(tmp_path) as store:
        state = put(store, [created(owner="ana"), logged()], snapshot=True)
    with LmdbStore.open(tmp_path) as store:
        assert fold(None, store.task_events("s", T)) == state
        assert store.task("s", T) == record(state)
        assert store.task_head("s", T) == TaskHead(seq=2, snapshot=2)
        assert ids(store, owner="ana") == ["t"]


def test_a_flipped_byte_is_found_wherever_it_is(tmp_path: Path) -> None:
    with LmdbStore.open(tmp_path) as store:
        put(store, [created(), logged("needle in the log")], snapshot=True)
    file = tmp_path / "data.mdb"
    raw = file.read_bytes()
    assert b"needle in the log" in raw
    file.write_bytes(raw.replace(b"needle in the log", b"noodle in the log"))
    with LmdbStore.open(tmp_path) as store, pytest.raises(CorruptValue, match="events seq 1 to 2 of task t"):
        list(store.task_events("s", T))
