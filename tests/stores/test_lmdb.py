"""What only the store on disk has: files, processes, damage, versions, a map that fills up."""

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_space import delta, node, replied, started, tool_finished, write_request

from flowstate_local.errors import (
    ConflictError,
    CorruptValue,
    StoreError,
    UnknownVersion,
    UsageError,
)
from flowstate_local.events import RequestStarted
from flowstate_local.nodes import NodeId, RequestId
from flowstate_local.stores import codec, layout
from flowstate_local.stores.base import Fault, Head, digest
from flowstate_local.stores.lmdb import LmdbStore

MIB = 2**20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def edit(path: Path, table: str, change: Callable[[bytes, bytes], bytes | None]) -> int:
    """Change the values of a table behind the store's back; returns how many. None deletes."""
    n_changed = 0
    env = lmdb.open(str(path), lib_version=0, map_size=64 * MIB, max_dbs=24)
    with env.begin(write=True) as txn:
        db = env.open_db(table.encode(), txn=txn, create=False)
        for key, value in list(txn.cursor(db)):
            new = change(key, value)
            if new is None:
                txn.delete(key, db=db)
            elif new != value:
                txn.put(key, new, db=db)
            n_changed += new != value
    env.close()
    return n_changed


def flip_last(key: bytes, value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


# --- durability and opening ---------------------------------------------------------------------------------


def test_what_was_written_is_there_after_reopening(path: Path) -> None:
    with LmdbStore.open(path) as store:
        written = write_request(store, "s")
    with LmdbStore.open(path) as store:
        assert store.spaces() == ["s"]
        assert store.head("s") == written.head
        assert list(store.events("s")) == written.events
        assert list(store.nodes("s")) == written.nodes
        assert store.verify("s") == []


def test_the_files_are_private(path: Path) -> None:
    LmdbStore.open(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / "data.mdb").stat().st_mode) == 0o600


def test_two_opens_in_one_process_share_the_store(path: Path) -> None:
    first, second = LmdbStore.open(path), LmdbStore.open(path.parent / "." / path.name)
    head = first.append("s", [started()], expected_seq=0)
    assert second.head("s") == head
    first.close()
    with pytest.raises(UsageError, match="closed"):
        first.head("s")
    assert second.append("s", [replied()], expected_seq=1).seq == 2
    second.close()
    with LmdbStore.open(path) as third:
        assert third.head("s").seq == 2


def test_readonly_refuses_writes_and_creates_nothing(path: Path) -> None:
    with pytest.raises(UsageError, match="no store"):
        LmdbStore.open(path, readonly=True)
    assert not path.exists()
    with LmdbStore.open(path) as store:
        write_request(store, "s")
    with LmdbStore.open(path, readonly=True) as store:
        assert store.verify("s") == []
        with pytest.raises(UsageError, match="read-only"):
            store.append("s", [started(2)], expected_seq=7)
        with pytest.raises(UsageError, match="read-only in this process"):
            LmdbStore.open(path)


def test_create_false_wants_a_store(path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        LmdbStore.open(path, create=False)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    assert not path.exists()


def test_a_file_in_the_way_is_named(path: Path) -> None:
    path.write_text("not a folder")
    with pytest.raises(UsageError, match="is not a folder") as caught:
        LmdbStore.open(path)
    assert caught.value.hint
    with pytest.raises(StoreError, match="can't use"):
        LmdbStore.open(path / "below")
    assert path.read_text() == "not a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="can't use") as caught:
        LmdbStore.open(tmp_path / "store")
    assert "permissions" in caught.value.hint
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("content", [b"garbage" * 3000, b"x"])
def test_something_else_named_data_is_left_alone(path: Path, content: bytes) -> None:
    path.mkdir()
    (path / "data.mdb").write_bytes(content)
    with pytest.raises(StoreError) as caught:
        LmdbStore.open(path)
    assert caught.value.hint
    assert (path / "data.mdb").read_bytes() == content


def test_the_database_of_another_program_is_left_alone(path: Path) -> None:
    path.mkdir()
    env = lmdb.open(str(path), lib_version=0)
    with env.begin(write=True) as txn:
        txn.put(b"their key", b"their value")
    env.close()
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(StoreError, match="another program"):
        LmdbStore.open(path)
    assert (path / "data.mdb").read_bytes() == before


# --- versions -----------------------------------------------------------------------------------------------


def test_a_newer_store_is_refused_unchanged(path: Path) -> None:
    LmdbStore.open(path).close()
    newer = codec.seal("meta", b"schema_version", codec.pack(b"7"))
    assert edit(path, "meta", lambda key, value: newer if key == b"schema_version" else value) == 1
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(UnknownVersion, match="version 7; this release knows up to 3"):
        LmdbStore.open(path)
    assert (path / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("version", [b"1", b"2"])
def test_a_store_from_before_the_first_release_is_refused_unchanged(path: Path, version: bytes) -> None:
    LmdbStore.open(path).close()
    older = codec.seal("meta", b"schema_version", codec.pack(version))
    edit(path, "meta", lambda key, value: older if key == b"schema_version" else value)
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(StoreError, match="never released"):
        LmdbStore.open(path)
    assert (path / "data.mdb").read_bytes() == before


def reseal(table: str, change: Callable[[dict], None]) -> Callable[[bytes, bytes], bytes]:
    """An edit of the JSON inside the envelopes, with right checksums."""

    def apply(key: bytes, value: bytes) -> bytes:
        fields = json.loads(codec.unseal(table, key, value, "value"))
        change(fields)
        return codec.seal(table, key, codec.pack(json.dumps(fields).encode()))

    return apply


def reseal_batches(change: Callable[[dict, list[dict]], None]) -> Callable[[bytes, bytes], bytes]:
    """The same for the head and the events of every commit."""

    def apply(key: bytes, value: bytes) -> bytes:
        head_json, _, packed = codec.unseal("events", key, value, "value").partition(b"\n")
        head, events = json.loads(head_json), json.loads(codec.unpack(packed[0], packed[1:], "value"))
        change(head, events)
        body = json.dumps(head).encode() + b"\n" + bytes([codec.PLAIN]) + json.dumps(events).encode()
        return codec.seal("events", key, (codec.PLAIN, body))

    return apply


def reseal_events(change: Callable[[dict], None]) -> Callable[[bytes, bytes], bytes]:
    """The same for each event."""
    return reseal_batches(lambda head, events: [change(event) for event in events] and None)


def test_a_newer_event_or_node_is_refused_by_name(path: Path) -> None:
    with LmdbStore.open(path) as store:
        write_request(store, "s")
    edit(
        path,
        "nodes",
        reseal("nodes", lambda f: f.update(schema_version=9, mood="new") if f["id"] == "j2" else None),
    )
    age = reseal_events(lambda f: f.update(schema_version=3) if f["kind"] == "ModelReplied" else None)
    edit(path, "events", age)
    with LmdbStore.open(path) as store:
        assert store.reader("s").node(NodeId("k1")) is not None
        with pytest.raises(UnknownVersion, match="node j2: has schema_version 9"):
            store.reader("s").node(NodeId("j2"))
        with pytest.raises(UnknownVersion, match="event seq 2: has schema_version 3"):
            list(store.events("s"))
        assert {f.subject for f in store.verify("s")} == {"seq 2", "j2"}


def test_a_newer_node_inside_an_event_is_refused_by_name(path: Path) -> None:
    with LmdbStore.open(path) as store:
        store.append("s", [started(), delta(node("k1"))], expected_seq=0)
    age = reseal_events(lambda f: f["added"][0].update(schema_version=2) if f.get("added") else None)
    edit(path, "events", age)
    with LmdbStore.open(path) as store, pytest.raises(UnknownVersion, match="seq 2, node k1"):
        list(store.events("s"))


def test_older_values_are_migrated_on_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LmdbStore.open(path) as store:
        written = write_request(store, "s")

        def age(fields: dict) -> None:
            fields["gist"] = fields.pop("summary")
            fields["schema_version"] = 0

        monkeypatch.setitem(codec.NODE_MIGRATIONS, 0, lambda f: {**f, "summary": f["gist"]} | {"gist": None})
    edit(path, "nodes", reseal("nodes", age))
    with LmdbStore.open(path) as store:
        with pytest.raises(CorruptValue, match="gist"):
            store.reader("s").node(NodeId("k1"))
        monkeypatch.setitem(
            codec.NODE_MIGRATIONS,
            0,
            lambda f: {("summary" if name == "gist" else name): value for name, value in f.items()},
        )
        assert list(store.nodes("s")) == written.nodes
        assert store.verify("s") == []
        monkeypatch.delitem(codec.NODE_MIGRATIONS, 0)
        with pytest.raises(UnknownVersion, match="no migration from schema_version 0"):
            store.reader("s").node(NodeId("k1"))


# --- damage -------------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[LmdbStore], object]] = {
    "spaces": lambda store: store.head("s"),
    "events": lambda store: list(store.events("s")),
    "nodes": lambda store: list(store.nodes("s")),
    "lines": lambda store: store.reader("s").lines(RequestId("r1")),
    "evidence": lambda store: store.reader("s").evidence(store.head("s") and "t1"),  # type: ignore[arg-type]
    "requests": lambda store: list(store.requests("s")),
    "blobs": lambda store: store.reader("s").blob(digest(b"Adlon, 200 EUR. " * 200)),
}


@pytest.mark.parametrize("table", list(READERS))
@pytest.mark.parametrize(
    "damage",
    [
        flip_last,
        lambda key, value: b"\x09" + value[1:],
        lambda key, value: value[:5],
        lambda key, value: b"",
        lambda key, value: value + b"x",
    ],
    ids=["flipped", "format", "cut", "empty", "longer"],
)
def test_damage_is_found_and_named(path: Path, table: str, damage: Callable[[bytes, bytes], bytes]) -> None:
    with LmdbStore.open(path) as store:
        write_request(store, "s")
    assert edit(path, table, damage) > 0
    with LmdbStore.open(path) as store:
        with pytest.raises(CorruptValue) as caught:
            READERS[table](store)
        assert caught.value.hint
        faults = store.verify("s")
        assert faults
        assert any("checksum" in fault.problem for fault in faults)
        assert all(isinstance(fault, Fault) and fault.space == "s" for fault in faults)


def test_a_value_under_another_key_is_damage(path: Path) -> None:
    with LmdbStore.open(path) as store:
        write_request(store, "s")
    values: dict[bytes, bytes] = {}
    edit(path, "nodes", lambda key, value: values.setdefault(key, value))
    (first, a), (second, b) = values.items()
    edit(path, "nodes", lambda key, value: b if key == first else a)
    with LmdbStore.open(path) as store:
        with pytest.raises(CorruptValue, match="node k1"):
            store.reader("s").node(NodeId("k1"))
        assert {f.subject for f in store.verify("s")} == {"k1", "j2"}


@pytest.mark.parametrize(
    ("table", "subjects"),
    [
        ("events", {"r1"}),
        ("nodes", {"k1", "j2", "nodes"}),
        ("lines", {"index of r1", "index lines"}),
        ("evidence", {"t1", "k1", "evidence"}),
        ("requests", {"r1", "requests"}),
    ],
)
def test_what_is_missing_is_named(path: Path, table: str, subjects: set[str]) -> None:
    with LmdbStore.open(path) as store:
        write_request(store, "s")
    edit(path, table, lambda key, value: None)
    with LmdbStore.open(path) as store:
        found = {fault.subject for fault in store.verify("s")}
        assert found == subjects


def test_a_gap_in_the_log_is_not_read_over(path: Path) -> None:
    with LmdbStore.open(path) as store:
        store.append("s", [started(), replied(step=1)], expected_seq=0)
        store.append("s", [replied(step=2), replied(step=3)], expected_seq=2)
        store.append("s", [replied(step=4), replied(step=5)], expected_seq=4)
    edit(path, "events", lambda key, value: None if key.endswith(layout.batch_key(2, 2)) else value)
    with LmdbStore.open(path) as store:
        assert [e.seq for e in store.events("s", upto=2)] == [1, 2]
        with pytest.raises(CorruptValue, match="event seq 3: missing"):
            list(store.events("s"))
        assert [(f.subject, f.problem) for f in store.verify("s")] == [("seq 3 to 4", "missing from the log")]


@pytest.mark.parametrize("hurt", [2, 4])
def test_a_damaged_commit_is_named_by_its_events(path: Path, hurt: int) -> None:
    with LmdbStore.open(path) as store:
        for after in (0, 2, 4):
            events = [replied(step=after), replied(step=after + 1)]
            store.append("s", events if after else [started(), *events[1:]], expected_seq=after)
    key = layout.batch_key(hurt - 2, 2)
    edit(path, "events", lambda at, value: flip_last(at, value) if at.endswith(key) else value)
    with LmdbStore.open(path) as store:
        assert [e.seq for e in store.events("s", upto=hurt - 2)] == list(range(1, hurt - 1))
        assert [e.seq for e in store.events("s", after=hurt)] == list(range(hurt + 1, 7))
        with pytest.raises(CorruptValue, match=f"events seq {hurt - 1} to {hurt}: the stored bytes"):
            list(store.events("s"))
        assert [f.subject for f in store.verify("s")] == [f"seq {hurt - 1}", f"seq {hurt}"]


def test_a_commit_with_an_event_too_few_is_damage(path: Path) -> None:
    with LmdbStore.open(path) as store:
        store.append("s", [started(), replied()], expected_seq=0)
    edit(path, "events", reseal_batches(lambda head, events: events.clear()))
    with LmdbStore.open(path) as store:
        with pytest.raises(CorruptValue, match="events seq 1 to 2: holds 0 events"):
            list(store.events("s"))
        assert {f.subject for f in store.verify("s")} == {"seq 1", "seq 2"}


def test_the_log_may_be_cut_within_a_commit(path: Path) -> None:
    with LmdbStore.open(path) as store:
        store.append("s", [started(), replied(step=1), replied(step=2)], expected_seq=0)
        store.append("s", [replied(step=3), replied(step=4)], expected_seq=3)
        for after in range(7):
            for upto in range(7):
                seqs = [e.seq for e in store.events("s", after=after, upto=upto)]
                assert seqs == [seq for seq in range(1, 6) if after < seq <= upto]


def test_another_process_that_wrote_since_is_seen(path: Path) -> None:
    """A store remembers the heads of its own commits."""
    with LmdbStore.open(path) as store:
        store.append("s", [started()], expected_seq=0)
        run_in_child(path, "append_many", "child", 1)
        with pytest.raises(ConflictError, match="ends at seq 2, not 1"):
            store.append("s", [replied()], expected_seq=1)
        assert store.append("s", [delta(node("k7"))], expected_seq=2).nodes == 7
        assert store.verify("s") == []


def test_a_head_that_forgot_a_number_is_named(path: Path) -> None:
    with LmdbStore.open(path) as store:
        write_request(store, "s")
    edit(path, "events", reseal_batches(lambda head, events: head.update(nodes=1)))
    with LmdbStore.open(path) as store:
        (fault,) = store.verify("s")
        assert fault.subject == "head"
        assert "nodes=1" in fault.problem


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("left", [0.1, 0.5, 0.9])
def test_a_file_that_lost_its_end_is_reported_not_fatal(path: Path, left: float, readonly: bool) -> None:
    with LmdbStore.open(path) as store:
        for number in range(1, 40):
            write_request(store, "s", number, raw=os.urandom(20_000))
        used_bytes = store._env.used_bytes()
    os.truncate(path / "data.mdb", int(used_bytes * left))
    code = textwrap.dedent(f"""
        from flowstate_local.errors import StoreError
        from flowstate_local.stores.lmdb import LmdbStore
        try:
            faults = LmdbStore.open({str(path)!r}, readonly={readonly}).verify("s")
        except StoreError as error:
            faults = [error]
        print(len(faults))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0


# --- room ---------------------------------------------------------------------------------------------------


def test_a_full_map_grows_and_the_commit_is_whole(path: Path) -> None:
    with LmdbStore.open(path, map_size=128 * 1024) as store:
        raw = os.urandom(3 * MIB)
        event = tool_finished("t1", raw)
        store.append("s", [started(), event], {event.digest: raw}, expected_seq=0)
        for number in range(2, 30):
            head = store.head("s")
            store.append("s", [replied(step=number, text="x" * 5_000)], expected_seq=head.seq)
        assert store.reader("s").blob(event.digest) == raw
        assert store.verify("s") == []
        assert store.size_bytes() > 3 * MIB


def test_another_process_that_grew_the_map_is_followed(path: Path) -> None:
    with LmdbStore.open(path, map_size=MIB) as store:
        store.append("s", [started()], expected_seq=0)
        run_in_child(path, "append_large")
        assert store.head("s").seq == 2
        assert store.append("s", [replied(step=2)], expected_seq=2).seq == 3
        assert store.verify("s") == []


def test_a_disk_without_room_is_store_full_and_nothing_is_written(path: Path) -> None:
    with LmdbStore.open(path) as store:
        head = write_request(store, "s").head
    code = textwrap.dedent(f"""
        import os, resource, sys
        from flowstate_local.errors import StoreFull
        from flowstate_local.stores.base import digest
        from flowstate_local.stores.lmdb import LmdbStore
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from written_space import started, tool_finished
        store = LmdbStore.open({str(path)!r})
        resource.setrlimit(resource.RLIMIT_FSIZE, (store._env.used_bytes(), resource.RLIM_INFINITY))
        raw = os.urandom(1_000_000)
        event = tool_finished("t2", raw, 2)
        write = lambda: store.append("s", [started(2), event], {{event.digest: raw}}, expected_seq={head.seq})
        try:
            write()
        except StoreFull as error:
            assert store.head("s").seq == {head.seq}
            assert store.verify("s") == []
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            print(write().seq, error)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{head.seq + 2} "), done.stdout
    with LmdbStore.open(path) as store:
        assert store.head("s").seq == head.seq + 2
        assert store.verify("s") == []


# --- several writers ----------------------------------------------------------------------------------------


def test_writers_that_meet_share_a_commit(path: Path) -> None:
    n_threads, n_each = 8, 30
    with LmdbStore.open(path) as store:
        before = store._env.lmdb_env.info()["last_txnid"]
        barrier = threading.Barrier(n_threads)

        def write(space: str) -> None:
            barrier.wait()
            head = store.append(space, [started()], expected_seq=0)
            for step in range(1, n_each):
                head = store.append(space, [replied(step=step)], expected_seq=head.seq)

        threads = [threading.Thread(target=write, args=(f"s{i}",)) for i in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        n_commits = store._env.lmdb_env.info()["last_txnid"] - before
        assert n_commits < n_threads * n_each
        assert [store.head(s).seq for s in store.spaces()] == [n_each] * n_threads
        assert all(store.verify(s) == [] for s in store.spaces())


def test_in_a_group_each_fails_for_itself(path: Path) -> None:
    """All wait behind a leader that is held up, so that the rest are surely one group."""
    with LmdbStore.open(path) as store:
        outcomes: dict[str, object] = {}
        blocker = store._env._gate.alone()
        blocker.__enter__()

        def write(space: str, expected_seq: int) -> None:
            try:
                outcomes[space] = store.append(space, [started()], expected_seq=expected_seq).seq
            except StoreError as error:
                outcomes[space] = type(error)

        cases = [("leader", 0), ("a", 0), ("b", 5), ("c", 0), ("d", 1)]
        threads = [threading.Thread(target=write, args=case) for case in cases]
        for thread in threads:
            thread.start()
        while len(store._env._group._waiting) < len(cases) - 1:
            pass
        before = outcomes.copy()
        blocker.__exit__(None, None, None)
        for thread in threads:
            thread.join()
        assert before == {}
        assert outcomes == {"leader": 1, "a": 1, "b": ConflictError, "c": 1, "d": ConflictError}
        assert store.spaces() == ["a", "c", "leader"]


def run_in_child(path: Path, action: str, *args: object) -> str:
    """Run one of the functions below in a new process; returns what it prints."""
    command = [sys.executable, __file__, action, str(path), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def append_large(path: str) -> None:
    raw = os.urandom(4 * MIB)
    event = tool_finished("t1", raw)
    with LmdbStore.open(path) as store:
        store.append("s", [event], {event.digest: raw}, expected_seq=1)


def append_many(path: str, name: str, n_events: str) -> None:
    with LmdbStore.open(path) as store:
        for i in range(int(n_events)):
            while True:
                try:
                    store.append("s", [replied(text=f"{name}:{i}")], expected_seq=store.head("s").seq)
                    break
                except ConflictError:
                    continue


def append_until_killed(path: str) -> None:
    store = LmdbStore.open(path)
    for number in range(1, 10_000):
        write_request(store, "s", number)
        print(number, flush=True)


def test_two_processes_write_one_space_and_lose_nothing(path: Path) -> None:
    with LmdbStore.open(path) as store:
        store.append("s", [started()], expected_seq=0)
        command = [sys.executable, __file__, "append_many", str(path)]
        children = [subprocess.Popen([*command, name, "25"]) for name in ("a", "b")]
        assert [child.wait(timeout=60) for child in children] == [0, 0]
        texts = [e.text for e in store.events("s") if e.kind == "ModelReplied"]
        assert sorted(texts) == sorted(f"{name}:{i}" for name in "ab" for i in range(25))
        assert store.verify("s") == []


def test_a_killed_writer_leaves_whole_requests(path: Path) -> None:
    LmdbStore.open(path).close()
    child = subprocess.Popen(
        [sys.executable, __file__, "append_until_killed", str(path)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    n_reported = 0
    while n_reported < 5:
        n_reported = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with LmdbStore.open(path) as store:
        assert store.head("s").version >= n_reported
        assert store.verify("s") == []
        n_requests = store.head("s").requests
        if store.head("s").open_request is None:
            assert write_request(store, "s", n_requests + 1).head.version == n_requests + 1


def test_a_store_does_not_cross_a_fork(path: Path) -> None:
    code = textwrap.dedent(f"""
        import os
        from flowstate_local.errors import UsageError
        from flowstate_local.stores.lmdb import LmdbStore
        store = LmdbStore.open({str(path)!r})
        if os.fork() == 0:
            for call in (lambda: store.head("s"), store.spaces, lambda: LmdbStore.open({str(path)!r})):
                try:
                    call()
                    os._exit(1)
                except UsageError as error:
                    assert "fork" in str(error) and error.hint
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]), store.spaces())
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n"


def test_spawned_processes_open_for_themselves(path: Path) -> None:
    with LmdbStore.open(path) as store:
        store.append("s", [started()], expected_seq=0)
        child = multiprocessing.get_context("spawn").Process(
            target=append_many, args=(str(path), "child", "2")
        )
        child.start()
        child.join(timeout=60)
        assert child.exitcode == 0
        assert store.head("s").seq == 3


# --- size and backup ----------------------------------------------------------------------------------------


def test_a_raw_result_is_stored_once_and_compressed(path: Path) -> None:
    page = json.dumps([{"hotel": f"h{i}", "price": i} for i in range(40_000)]).encode()
    with LmdbStore.open(path) as store:
        for name in ("alice", "bob", "carol"):
            for number in (1, 2):
                write_request(store, name, number, raw=page)
        assert store.size_bytes() < len(page) * 0.6


def test_a_backup_opens_and_is_whole(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "backups" / "monday"
    with LmdbStore.open(path) as store:
        written = write_request(store, "s")
        store.backup(copy)
        store.append("s", [started(2)], expected_seq=written.head.seq)
        with LmdbStore.open(copy) as saved:
            assert saved.head("s") == written.head
            assert list(saved.events("s")) == written.events
            assert saved.verify("s") == []
            assert saved.size_bytes() <= store.size_bytes()
        with pytest.raises(UsageError, match="exists already"):
            store.backup(copy)
    assert [p.name for p in copy.parent.iterdir()] == ["monday"]


# --- the envelope -------------------------------------------------------------------------------------------


@given(body=st.binary(max_size=2_000), key=st.binary(min_size=1, max_size=60))
def test_an_envelope_gives_back_what_was_sealed(body: bytes, key: bytes) -> None:
    assert codec.unseal("nodes", key, codec.seal("nodes", key, codec.pack(body)), "x") == body


@settings(max_examples=200)
@given(body=st.binary(max_size=700), data=st.data())
def test_any_flipped_bit_of_an_envelope_is_found(body: bytes, data: st.DataObject) -> None:
    value = bytearray(codec.seal("nodes", b"k", codec.pack(body)))
    value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptValue, match="x: the stored bytes"):
        codec.unseal("nodes", b"k", bytes(value), "x")


def test_an_envelope_of_a_later_format_is_not_called_corrupt() -> None:
    value = codec.seal("nodes", b"k", (3, b"zstd, perhaps"))
    with pytest.raises(UnknownVersion, match="format 3"):
        codec.unseal("nodes", b"k", value, "node k1")


def test_repeated_words_are_compressed_and_noise_is_not() -> None:
    assert codec.pack(b"word " * 1000)[0] == codec.ZLIB
    noise = os.urandom(5_000)
    assert codec.pack(noise) == (codec.PLAIN, noise)
    assert codec.pack(b"word " * 500)[0] == codec.PLAIN, "it would save no page"


@given(st.integers(min_value=0, max_value=2**62), st.integers(min_value=0, max_value=9), st.text(max_size=20))
def test_an_event_is_read_with_its_place(after: int, before: int, text: str) -> None:
    event = RequestStarted(seq=before, request=RequestId("r1"), step=0, at=0.5, text=text)
    put = layout.Batch([event, event], after).put(b"space 12", Head(seq=after + 2))
    assert put.packed is not None
    value = codec.seal("events", put.key, put.packed)
    read = [layout.load_event(seq, fields) for seq, fields in layout.open_batch(put.key, value)]
    assert read == [event.model_copy(update={"seq": after + place}) for place in (1, 2)]
    assert layout.decode_head(put.key, value) == Head(seq=after + 2)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
