"""The state manager: creating, reading and changing tasks, alone and against others."""

import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made import call, created, flow
from pydantic import BaseModel

from flowstate_local.errors import (
    ConflictError,
    IllegalTransition,
    StoreBusy,
    UnknownTask,
    UnknownVersion,
    UsageError,
)
from flowstate_local.stores.base import Lease, Store
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.task_events import TaskEvent, TaskId, TaskLogged, TaskUpdated
from flowstate_local.tasks import leases
from flowstate_local.tasks.manager import TaskManager

WORKFLOW = flow(call("a"), call("b", needs=["a"]))


class Counter(BaseModel):
    n: int = 0
    note: str = ""


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store: Store = MemoryStore() if request.param == "memory" else LmdbStore.open(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def manager(store: Store) -> TaskManager[Counter]:
    return TaskManager(store, "s", state_type=Counter)


def bump(state: Counter) -> None:
    state.n += 1


# --- create and read ----------------------------------------------------------------------------------------


def test_a_new_task_is_pending(manager: TaskManager[Counter]) -> None:
    state = manager.create(WORKFLOW, {"city": "Rome"}, task="t", owner="ana", extras={"ticket": 7})
    assert state == manager.get("t")
    assert (state.status, state.params, state.owner, state.extras) == (
        "pending",
        {"city": "Rome"},
        "ana",
        {"ticket": 7},
    )
    assert [record.id for record in manager.tasks(owner="ana")] == ["t"]
    with pytest.raises(ConflictError, match="exists already"):
        manager.create(WORKFLOW, task="t")


def test_ids_are_made_from_the_name_of_the_workflow(manager: TaskManager[Counter]) -> None:
    state = manager.create(WORKFLOW.model_copy(update={"name": "Über/Report 7"}))
    assert state.id.startswith("ber-report-7-")


@pytest.mark.parametrize("bad", ["nobody", "t2"])
def test_an_unknown_task_is_said_to_be_unknown(manager: TaskManager[Counter], bad: str) -> None:
    manager.create(WORKFLOW, task="t")
    for one in (manager.get, manager.events, manager.pause, lambda t: manager.update(t, bump)):
        with pytest.raises(UnknownTask, match=bad):
            one(bad)


def test_another_space_has_other_tasks(store: Store, manager: TaskManager[Counter]) -> None:
    manager.create(WORKFLOW, task="t")
    other = TaskManager(store, "other")
    with pytest.raises(UnknownTask):
        other.get("t")
    assert list(other.tasks()) == []


def test_any_version_can_be_read(manager: TaskManager[Counter]) -> None:
    manager.create(WORKFLOW, task="t")
    for _ in range(5):
        manager.update("t", bump)
    assert [manager.at("t", seq).state["n"] for seq in range(1, 7)] == [0, 1, 2, 3, 4, 5]
    for bad in (0, -1, 7):
        with pytest.raises(UnknownTask, match="it has 1 to 6"):
            manager.at("t", bad)


def test_reading_folds_no_more_than_what_followed_the_last_snapshot(store: Store) -> None:
    manager = TaskManager(store, "s", state_type=Counter, snapshot_every=10)
    manager.create(WORKFLOW, task="t")
    for _ in range(25):
        manager.update("t", bump)
    found = store.snapshot("s", TaskId("t"))
    assert found is not None
    assert found[0] == 20
    assert TaskManager(store, "s", state_type=Counter).get("t") == manager.get("t")
    assert manager.at("t", 15).state["n"] == 14


# --- update -------------------------------------------------------------------------------------------------


def test_update_returns_the_new_state_and_logs_the_difference(manager: TaskManager[Counter]) -> None:
    manager.create(WORKFLOW, task="t", state=Counter(note="x"))
    assert manager.update("t", lambda s: s.model_copy(update={"n": 5}), reason="five").n == 5
    event = list(manager.events("t"))[-1]
    assert isinstance(event, TaskUpdated)
    assert [(c.path, c.before, c.after) for c in event.changes] == [(("n",), 0, 5)]
    assert event.reason == "five"


def test_an_update_that_changes_nothing_writes_nothing(manager: TaskManager[Counter]) -> None:
    manager.create(WORKFLOW, task="t")
    manager.update("t", lambda s: s)
    assert manager.get("t").seq == 1


def explode(state: Counter) -> None:
    state.n = 99
    raise ZeroDivisionError("no")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (explode, "raised ZeroDivisionError: no"),
        (lambda state: 7, "returned a int, not a Counter"),
        (lambda state: {"n": 1}, "returned a dict, not a Counter"),
        (lambda state: setattr(state, "n", "many"), "broke its state"),
        (lambda state: setattr(state, "note", "\ud800"), "can't be kept"),
    ],
)
def test_a_bad_update_is_refused_and_the_state_stays(
    manager: TaskManager[Counter], change: Any, message: str
) -> None:
    manager.create(WORKFLOW, task="t")
    with pytest.raises(UsageError, match=message):
        manager.update("t", change)
    assert manager.get("t").seq == 1
    assert manager.user_state(manager.get("t")) == Counter()


def test_a_value_that_json_cannot_hold_is_named_with_its_field(manager: TaskManager[Counter]) -> None:
    with pytest.raises(UsageError, match=r"extras can't be kept: result\.a\[1\]\.b: a object is not JSON"):
        manager.create(WORKFLOW, task="t", extras={"a": [0, {"b": object()}]})  # type: ignore[dict-item]
    with pytest.raises(UnknownTask):
        manager.get("t")
    manager.create(WORKFLOW, task="t")
    with pytest.raises(UsageError, match=r"the result of task t can't be kept: result\.x"):
        manager.set_result("t", {"x": {1, object()}})
    assert manager.get("t").seq == 1


def test_a_big_result_is_kept_by_pointer_and_read_when_asked(manager: TaskManager[Counter]) -> None:
    manager.create(WORKFLOW, task="t")
    big = {"rows": ["x" * 50] * 100_000}
    value = manager.set_result("t", big).result
    assert value is not None
    assert (value.inline, value.form) == (None, "json")
    assert value.size_bytes > 5_000_000
    assert len(manager.get("t").model_dump_json()) < 3_000
    assert manager.load(value) == big


def test_log_events_are_part_of_the_log(manager: TaskManager[Counter]) -> None:
    manager.create(WORKFLOW, task="t")
    manager.log_event("t", "seen", step="a", level="warning", rows=3)
    event = list(manager.events("t"))[-1]
    assert isinstance(event, TaskLogged)
    assert (event.message, event.step, event.level, event.fields) == ("seen", "a", "warning", {"rows": 3})
    with pytest.raises(UnknownTask, match="no step 'z'"):
        manager.log_event("t", "x", step="z")
    with pytest.raises(UsageError, match="level"):
        manager.log_event("t", "x", level="loud")


# --- versions of the user's state ---------------------------------------------------------------------------


class Old(BaseModel):
    schema_version: int = 1
    name: str = "Ana Lee"


class New(BaseModel):
    schema_version: int = 3
    first: str
    last: str = ""


def split(fields: dict[str, Any]) -> dict[str, Any]:
    first, _, last = fields.pop("name").partition(" ")
    return {**fields, "first": first, "second": last}


def rename(fields: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in fields.items() if k != "second"}, "last": fields["second"]}


def test_several_versions_of_the_state_live_in_one_store_and_are_migrated_on_read(store: Store) -> None:
    TaskManager(store, "s", state_type=Old).create(WORKFLOW, task="old")
    manager = TaskManager(store, "s", state_type=New, state_migrations={1: split, 2: rename})
    manager.create(WORKFLOW, task="new", state=New(first="Ben"))
    read = manager.user_state(manager.get("old"))
    assert (read.first, read.last, read.schema_version) == ("Ana", "Lee", 3)
    assert manager.get("old").state_version == 1, "reading writes nothing"
    manager.update("old", lambda s: s.model_copy(update={"last": "Li"}))
    assert manager.get("old").state_version == 3
    assert manager.user_state(manager.get("new")).first == "Ben"
    with pytest.raises(UnknownVersion, match="state of task new has version 3; known is 1"):
        TaskManager(store, "s", state_type=Old).update("new", lambda s: s)


def test_a_missing_migration_is_named(store: Store) -> None:
    TaskManager(store, "s", state_type=Old).create(WORKFLOW, task="old")
    manager = TaskManager(store, "s", state_type=New, state_migrations={1: split})
    with pytest.raises(UnknownVersion, match="no migration from version 2"):
        manager.user_state(manager.get("old"))


# --- against others -----------------------------------------------------------------------------------------


def test_updates_from_many_threads_all_count(store: Store) -> None:
    managers = [TaskManager(store, "s", state_type=Counter) for _ in range(4)]
    managers[0].create(WORKFLOW, task="t")

    def work(manager: TaskManager[Counter]) -> None:
        for _ in range(25):
            manager.update("t", bump)

    threads = [threading.Thread(target=work, args=(m,)) for m in managers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert managers[0].user_state(managers[0].get("t")).n == 100
    assert len(list(managers[0].events("t"))) == 101


def bump_many(folder: str, times: int, conflicts: Any) -> None:
    with LmdbStore.open(folder) as store:
        manager = TaskManager(store, "s", state_type=Counter)
        for _ in range(times):
            manager.update("t", bump)
        conflicts.put(manager.conflicts)


def test_updates_from_many_processes_all_count_and_lost_races_are_counted(tmp_path: Path) -> None:
    with LmdbStore.open(tmp_path) as store:
        TaskManager(store, "s", state_type=Counter).create(WORKFLOW, task="t")
    context = multiprocessing.get_context("spawn")
    conflicts = context.Queue()
    workers = [context.Process(target=bump_many, args=(str(tmp_path), 50, conflicts)) for _ in range(4)]
    for worker in workers:
        worker.start()
    lost = [conflicts.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    with LmdbStore.open(tmp_path) as store:
        manager = TaskManager(store, "s", state_type=Counter)
        assert manager.user_state(manager.get("t")).n == 200
        assert manager.get("t").seq == 201
    assert all(n >= 0 for n in lost)


def test_a_loser_decides_again_on_fresh_state(store: Store) -> None:
    mine, other = (TaskManager(store, "s", state_type=Counter) for _ in range(2))
    mine.create(WORKFLOW, task="t")
    seen: list[int] = []

    def late(state: Counter) -> None:
        if not seen:
            other.update("t", bump)
        seen.append(state.n)
        state.n += 10

    assert mine.update("t", late).n == 11
    assert seen == [0, 1]
    assert mine.conflicts == 1


# --- the lease ----------------------------------------------------------------------------------------------


def test_a_lease_keeps_others_out_until_it_is_given_back(store: Store, manager: TaskManager[Counter]) -> None:
    manager.create(WORKFLOW, task="t")
    other = TaskManager(store, "s")
    with manager.lease("t", name="ana"):
        with pytest.raises(StoreBusy, match="worked on by ana"), other.lease("t"):
            pass
        manager.update("t", bump)
    with other.lease("t"):
        pass
    with pytest.raises(UnknownTask), other.lease("nobody"):
        pass


def test_the_lease_of_a_dead_process_is_free_at_once(store: Store, manager: TaskManager[Counter]) -> None:
    manager.create(WORKFLOW, task="t")
    child = multiprocessing.get_context("spawn").Process(target=int)
    child.start()
    child.join()
    dead = Lease(token="dead", name="dead", pid=child.pid or 0, expires_at=1e12)
    store.set_lease("s", TaskId("t"), dead, replacing="")
    with manager.lease("t"):
        pass


def test_a_lease_ends_by_time_where_a_process_cannot_be_looked_up(store: Store) -> None:
    now = [100.0]
    manager = TaskManager(store, "s", clock=lambda: now[0])
    manager.create(WORKFLOW, task="t")
    foreign = Lease(token="x", name="x", pid=0, expires_at=130.0)
    store.set_lease("s", TaskId("t"), foreign, replacing="")
    with pytest.raises(StoreBusy), manager.lease("t"):
        pass
    now[0] = 131.0
    with manager.lease("t"):
        pass


def test_a_process_number_that_was_given_away_again_is_not_the_worker() -> None:
    import os

    mine = Lease(token="x", pid=os.getpid(), process_started="1", expires_at=1e12)
    if Path("/proc/self/stat").exists():
        assert not leases.alive(mine, 0.0)
    assert leases.alive(mine.model_copy(update={"process_started": ""}), 0.0)


# --- the operator -------------------------------------------------------------------------------------------


def test_pause_and_cancel_of_a_task_nobody_has_begun(manager: TaskManager[Counter]) -> None:
    manager.create(WORKFLOW, task="t")
    assert manager.pause("t").status == "paused"
    assert manager.pause("t").seq == 2, "once is enough"
    state = manager.cancel("t", "not needed")
    assert (state.status, state.reason) == ("failed", "not needed")
    for one in (manager.pause, manager.cancel):
        with pytest.raises(IllegalTransition):
            one("t")


def test_a_clock_that_goes_backwards_harms_nothing(store: Store) -> None:
    times = iter([1000.0, 500.0, 1.0, -5.0] + [0.0] * 50)
    manager = TaskManager(store, "s", state_type=Counter, clock=lambda: next(times))
    manager.create(WORKFLOW, task="t")
    manager.update("t", bump)
    assert manager.log_event("t", "x").updated_at == 1000.0
    assert [r.updated_at for r in manager.tasks()] == [1000.0]


def test_the_listener_hears_numbered_events_after_they_are_durable(store: Store) -> None:
    heard: list[TaskEvent] = []
    manager = TaskManager(store, "s", state_type=Counter, listener=heard.extend)
    manager.create(WORKFLOW, task="t")
    manager.update("t", bump)
    assert heard == list(manager.events("t"))


def test_a_task_of_another_shape_is_made_by_hand(manager: TaskManager[Counter]) -> None:
    assert manager.begin(created("by-hand", WORKFLOW)).id == "by-hand"
