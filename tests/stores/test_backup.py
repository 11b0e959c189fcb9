"""`flowstate memory backup` while other processes write: what is copied is whole, and nothing that was there is missing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from written_space import write_request

from flowstate_local.cli.main import app
from flowstate_local.cli.roots import tenants_file
from flowstate_local.server.tenants import Tenants
from flowstate_local.stores.lmdb import LmdbStore

runner = CliRunner()


def call(*arguments: str | Path, code: int = 0) -> Any:
    done = runner.invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """A store with one request in it."""
    folder = tmp_path / "live" / "memory"
    with LmdbStore.open(folder) as store:
        write_request(store, "s")
    return folder


def keep_writing(folder: Path) -> None:
    """Commit requests until killed, and tell the seq after each."""
    with LmdbStore.open(folder) as store:
        for number in range(2, 100_000):
            print(write_request(store, "s", number, raw=os.urandom(20_000)).head.seq, flush=True)


@contextmanager
def busy(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, __file__, str(folder)], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def told(child: "subprocess.Popen[str]") -> int:
    assert child.stdout is not None
    return int(child.stdout.readline())


def test_a_copy_made_while_another_process_commits_is_a_prefix(memory: Path, tmp_path: Path) -> None:
    copies = [tmp_path / "backups" / name for name in ("first", "second")]
    committed = []
    with busy(memory) as child:
        for copy in copies:
            committed.append(max(told(child) for _ in range(5)))
            assert call("memory", "backup", copy, "--store", memory)["faults"] == []
        after = told(child)
    with LmdbStore.open(memory) as store:
        log = list(store.events("s"))
    assert len(log) >= after
    for copy, least in zip(copies, committed, strict=True):
        with LmdbStore.open(copy / "memory") as saved:
            events = list(saved.events("s"))
            assert saved.verify("s") == []
        assert len(events) >= least
        assert events == log[: len(events)]


def test_a_restored_copy_serves_the_same_keys(memory: Path, tmp_path: Path) -> None:
    tenants = Tenants(
        tenants_file(memory)
    )  # open, as in a server: its last writes are in the log beside the file
    key = tenants.issue(tenants.create("ana"), "write")
    copy = tmp_path / "copy"
    call("memory", "backup", copy, "--store", memory)
    tenants.close()
    assert sorted(path.name for path in copy.iterdir()) == ["memory", "memory-tenants.sqlite"]
    shutil.rmtree(memory.parent)
    shutil.copytree(copy, memory.parent)
    restored = Tenants(tenants_file(memory))
    caller = restored.caller(key)
    restored.close()
    assert caller is not None
    assert caller.tenant.name == "ana"
    assert call("memory", "verify", "--store", memory) == {"spaces": ["s"], "faults": []}
    with LmdbStore.open(memory) as store:  # and it can be written again
        assert write_request(store, "s", 2).head.version == 2


def test_tenants_are_copied_when_no_server_runs(memory: Path, tmp_path: Path) -> None:
    tenants = Tenants(tenants_file(memory))
    tenants.create("ana")
    tenants.close()
    call("memory", "backup", tmp_path / "copy", "--store", memory)
    copied = Tenants(tenants_file(tmp_path / "copy" / "memory"))
    assert [tenant.name for tenant in copied.all()] == ["ana"]
    copied.close()


def test_only_the_owner_may_read_a_copy(memory: Path, tmp_path: Path) -> None:
    Tenants(tenants_file(memory)).close()
    copy = tmp_path / "copy"
    call("memory", "backup", copy, "--store", memory)
    assert copy.stat().st_mode & 0o777 == 0o700
    files = [tenants_file(copy / "memory"), copy / "memory" / "data.mdb"]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]


def test_what_lies_beside_a_store_is_its_owners_too(memory: Path) -> None:
    tenants = Tenants(tenants_file(memory))
    tenants.create("ana")
    beside = sorted(path for path in memory.parent.iterdir() if path.is_file())
    assert [path.suffix for path in beside] == [".sqlite", ".sqlite-shm", ".sqlite-wal"]
    assert {path.stat().st_mode & 0o777 for path in beside} == {0o600}
    tenants.close()


def test_a_copy_replaces_nothing(memory: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    assert (
        "exists" in call("memory", "backup", tmp_path / "copy", "--store", memory, code=2)["error"]["message"]
    )


def test_without_a_store_nothing_is_left_behind(tmp_path: Path) -> None:
    call("memory", "backup", tmp_path / "copy", "--store", tmp_path / "none", code=2)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_the_error_says_where(memory: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = call("memory", "backup", tmp_path / "file" / "copy", "--store", memory, code=4)["error"]
    assert str(tmp_path / "file" / "copy") in error["message"]


def test_faults_in_the_copy_are_told(memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flowstate_local.stores.base import Fault

    monkeypatch.setattr(LmdbStore, "verify", lambda self, space: [Fault(space, "n1", "its hash differs")])
    told = call("memory", "backup", tmp_path / "copy", "--store", memory, code=1)
    assert told["faults"] == [{"space": "s", "subject": "n1", "problem": "its hash differs"}]
    shown = runner.invoke(app, ["memory", "backup", str(tmp_path / "other"), "--store", str(memory)])
    assert "its hash differs" in shown.stdout
    unread = call("memory", "backup", tmp_path / "third", "--no-verify", "--store", memory)
    assert unread["verified"] is False


if __name__ == "__main__":
    keep_writing(Path(sys.argv[1]))
