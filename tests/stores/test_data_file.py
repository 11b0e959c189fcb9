"""The room behind the pages in use. (An end that got lost: test_lmdb.py, in processes of their own.)"""

import os
from pathlib import Path

import pytest
from written_space import replied, started

from flowstate_local.stores.data_file import Room
from flowstate_local.stores.lmdb import LmdbStore

PAGE = 4096


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    file = tmp_path / "data.mdb"
    file.write_bytes(b"x" * 10 * PAGE)
    return file


class TestRoom:
    def test_comes_behind_what_is_there(self, data_file: Path) -> None:
        Room(data_file).ensure(10 * PAGE)
        content = data_file.read_bytes()
        assert content[: 10 * PAGE] == b"x" * 10 * PAGE
        assert len(content) > 10 * PAGE
        assert not any(content[10 * PAGE :])

    def test_is_made_once_for_many_commits(self, data_file: Path) -> None:
        room, lengths = Room(data_file), set()
        for n_pages in range(10, 510):
            room.ensure(n_pages * PAGE)
            lengths.add(data_file.stat().st_size)
            assert data_file.stat().st_size > n_pages * PAGE
        assert len(lengths) < 35

    def test_is_at_most_a_mib(self, tmp_path: Path) -> None:
        file = tmp_path / "data.mdb"
        with file.open("wb") as stream:
            stream.truncate(2**30)
        Room(file).ensure(2**30)
        assert 2**30 < file.stat().st_size <= 2**30 + 2**20

    def test_that_another_process_made_is_seen(self, data_file: Path) -> None:
        room = Room(data_file)
        room.ensure(10 * PAGE)
        with data_file.open("ab") as stream:
            stream.write(b"y" * 2**20)
        length = data_file.stat().st_size
        room.ensure(length - 2**19)
        assert data_file.stat().st_size == length
        assert data_file.read_bytes().endswith(b"y")

    def test_of_a_file_that_nobody_may_extend_stays_as_it_is(self, tmp_path: Path) -> None:
        Room(tmp_path / "missing.mdb").ensure(PAGE)
        assert list(tmp_path.iterdir()) == []


def test_the_store_keeps_room_and_its_backup_has_none(tmp_path: Path) -> None:
    lengths = set()
    with LmdbStore.open(tmp_path / "store") as store:
        head = store.append("s", [started()], expected_seq=0)
        for step in range(1, 200):
            # Of random bytes in hex, so that each commit takes pages of its own.
            head = store.append(
                "s", [replied(step=step, text=os.urandom(2_000).hex())], expected_seq=head.seq
            )
            used = store._env.used_bytes()
            lengths.add(store.size_bytes())
            assert store.size_bytes() > used
        assert len(lengths) < 20
        store.backup(tmp_path / "copy")
        assert (tmp_path / "copy" / "data.mdb").stat().st_size <= used
    with LmdbStore.open(tmp_path / "copy") as copy:
        assert copy.head("s") == head
        assert copy.verify("s") == []
