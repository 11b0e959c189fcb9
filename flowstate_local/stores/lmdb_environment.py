"""The LMDB environment of a store: opened once per process and file, its transactions, group commit, and errors.

The only importer of lmdb. What the tables mean is the store's matter.
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import lmdb

from flowstate_local.errors import (
    CorruptValue,
    FlowStateError,
    StoreError,
    StoreFull,
    UnknownVersion,
    UsageError,
)
from flowstate_local.stores import codec, layout
from flowstate_local.stores.base import Head
from flowstate_local.stores.data_file import Room, restore_length
from flowstate_local.stores.gate import Gate
from flowstate_local.stores.group_commit import GroupCommit, Member

SCHEMA_VERSION = 3
"""Of the tables and keys; values carry their own."""
_DATA_FILE = "data.mdb"
_MAX_PLACES = 4096
_LEAST_FREE_BYTES = 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Txn: TypeAlias = Any
"""A transaction of py-lmdb, which has no types."""


Plan: TypeAlias = Callable[[Txn], tuple[Any, list[layout.Put]]]
"""What a commit returns to its caller, and what it writes."""


class Place(NamedTuple):
    """Where a space stood after a commit of this process. It stands there yet if its log ends at the same key."""

    prefix: bytes
    last_key: bytes
    head: Head


@dataclass
class _Commit(Member[Any]):
    """One caller's part of a group commit."""

    plan: Plan
    """Reads and checks only, so that a refusal leaves nothing behind in the shared transaction."""
    size_bytes: int = 0


@dataclass
class Environment:
    """An open LMDB environment: transactions, growing, and group commit."""

    lmdb_env: Any
    folder: Path
    readonly: bool
    tables: dict[str, Any] = field(default_factory=dict)
    n_users: int = 0
    pid: int = field(default_factory=os.getpid)
    places: dict[str, Place] = field(default_factory=dict)
    """By space. What was committed only: its number and the head of a log that ends at some key never change."""

    def __post_init__(self) -> None:
        self._gate = Gate()
        self._group = GroupCommit(self._write)
        self._room = Room(self.data_file)
        self._page_bytes = self.lmdb_env.stat()["psize"]

    @property
    def data_file(self) -> Path:
        """What LMDB writes to."""
        return self.folder / _DATA_FILE

    def used_bytes(self) -> int:
        """From the start of the file to the end of the last page in use."""
        return int(self.lmdb_env.info()["last_pgno"] + 1) * int(self._page_bytes)

    def check_process(self) -> None:
        """Raise UsageError in a child: the locks and reader slots of LMDB belong to the process that opened it."""
        if os.getpid() != self.pid:
            raise UsageError(
                f"the store in {self.folder} was opened by process {self.pid} before it forked",
                hint="Open stores after the fork, or start processes with the 'spawn' method.",
            )

    def remember(self, space: str, place: Place) -> None:
        """So that the next commit of the space needn't read its head."""
        if len(self.places) >= _MAX_PLACES:
            self.places.clear()
        self.places[space] = place

    @contextmanager
    def reading(self) -> Iterator[Txn]:
        """A read transaction. Never yield to a caller inside: an open reader keeps LMDB from reusing pages."""
        with translated(self.folder), self._transaction(write=False) as txn:
            yield txn

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Txn]:
        self.check_process()
        txn = self._begin(write)
        try:
            yield txn
        finally:
            txn.abort()  # no effect after a commit
            self._gate.leave()

    def _begin(self, write: bool) -> Txn:
        try:
            return self._enter(write)
        except lmdb.MapResizedError:
            # Another process has grown the map; 0 adopts its size.
            with self._gate.alone():
                self.lmdb_env.set_mapsize(0)
        except lmdb.ReadersFullError:
            # Killed readers keep their slots until somebody looks.
            self.lmdb_env.reader_check()
        return self._enter(write)

    def _enter(self, write: bool) -> Txn:
        self._gate.enter()
        try:
            return self.lmdb_env.begin(write=write)
        except BaseException:
            self._gate.leave()
            raise

    def copy(self, folder: Path) -> None:
        """Write a compacted copy of the data file into an empty folder."""
        with translated(folder), self._transaction(write=False) as txn:
            self.lmdb_env.copy(str(folder), compact=True, txn=txn)
            (folder / _DATA_FILE).chmod(0o600)

    def close(self) -> None:
        """Wait for the transactions that run, and close."""
        with self._gate.alone():
            self.lmdb_env.close()

    def commit(self, plan: Plan) -> Any:
        """Commit with all that wait at the same time: one transaction, one sync; each fails for itself."""
        self.check_process()
        return self._group.commit(_Commit(plan))

    def _write(self, group: Sequence[_Commit]) -> None:
        with translated(self.folder):
            self._transact_or_grow(group)

    def _transact_or_grow(self, group: Sequence[_Commit]) -> None:
        try:
            self._transact(group)
        except lmdb.MapFullError:
            self._grow(sum(member.size_bytes for member in group))
            self._transact(group)

    def _transact(self, group: Sequence[_Commit]) -> None:
        with self._transaction(write=True) as txn:
            self._room.ensure(self.used_bytes())
            for member in group:
                self._apply(txn, member)
            txn.commit()

    def _apply(self, txn: Txn, member: _Commit) -> None:
        member.result, member.error = None, None
        try:
            head, puts = member.plan(txn)
        except FlowStateError as error:
            member.error = error
            return
        member.size_bytes = sum(put.size_bytes for put in puts)
        for put in puts:
            table = self.tables[put.table]
            if put.packed is None:
                txn.delete(put.key, db=table)
                continue
            value = codec.seal(put.table, put.key, put.packed)
            # What goes to the end of a table leaves full pages behind it; elsewhere they are split in halves.
            if not txn.put(put.key, value, db=table, append=True):
                txn.put(put.key, value, db=table)
        member.result = head

    def _grow(self, size_bytes: int) -> None:
        """Make room for twice what is there, and for a commit of this size with the pages it touches."""
        with self._gate.alone():
            now = self.lmdb_env.info()["map_size"]
            try:
                self.lmdb_env.set_mapsize(max(2 * now, now + 4 * size_bytes + 2**20))
            except (lmdb.Error, OverflowError) as error:
                raise StoreFull(
                    f"the map of {self.folder} has {now} bytes and can't grow: {error}; nothing was written"
                ) from error


_environments: dict[tuple[int, int], Environment] = {}
"""By device and inode of the data file: LMDB allows one environment per file and process."""
_environments_lock = threading.Lock()


def _renew_lock() -> None:
    """In a forked child the lock may be held by a thread that isn't there."""
    global _environments_lock
    _environments_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def open_environment(folder: Path, map_size: int, *, create: bool, readonly: bool) -> Environment:
    """The environment of the store in `folder`, shared with whoever has it open in this process.

    Raises:
        UsageError: `folder` is a file, holds no store and none may be created, or is open read-only.
        UnknownVersion: a newer release wrote it; nothing was changed.
        CorruptValue: its file has lost its end.
        StoreError: the folder can't be used, or holds something else.
    """
    _check_folder(folder, create)
    with _environments_lock, translated(folder):
        environment = _environments.get(_identity(folder))
        if environment is None:
            environment = _new_environment(folder, map_size, readonly)
            _environments[_identity(folder)] = environment
        environment.check_process()
        if environment.readonly and not readonly:
            raise UsageError(
                f"the store in {folder} is open read-only in this process",
                hint="Close it first, or open it for writing from the start.",
            )
        environment.n_users += 1
        return environment


def release(environment: Environment) -> None:
    """Leave what `open_environment` gave; the last one to leave closes it."""
    environment.check_process()
    with _environments_lock:
        environment.n_users -= 1
        if environment.n_users == 0:
            for identity in [key for key, value in _environments.items() if value is environment]:
                del _environments[identity]
            environment.close()


def _identity(folder: Path) -> tuple[int, int]:
    with suppress(FileNotFoundError):
        status = (folder / _DATA_FILE).stat()
        return status.st_dev, status.st_ino
    return 0, 0


def _check_folder(folder: Path, create: bool) -> None:
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(
                f"{folder} is not a folder", hint="Name a folder; the store puts its files inside."
            )
        if create:
            # Memory is private: only its owner may look.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not (folder / _DATA_FILE).exists():
            raise UsageError(
                f"there is no store in {folder}", hint="Check the path, or open with create=True."
            )
    except OSError as error:
        raise disk_error(error.errno, f"can't use {folder}: {error.strerror}", folder) from error


def _new_environment(folder: Path, map_size: int, readonly: bool) -> Environment:
    lmdb_env = lmdb.open(
        str(folder),
        lib_version=0,  # data that other programs read, too: the format of LMDB 0.9
        map_size=map_size,
        max_dbs=24,
        max_readers=2048,
        mode=0o600,
        readonly=readonly,
        sync=True,
        metasync=True,
        writemap=False,
    )
    try:
        lmdb_env.reader_check()
        environment = Environment(lmdb_env, folder.resolve(), readonly)
        restore_length(folder / _DATA_FILE, environment.used_bytes())
        is_new = _check_schema(lmdb_env, folder)
        if is_new and readonly:
            raise UsageError(
                f"there is no store in {folder}", hint="Check the path, or open with create=True."
            )
        environment.tables = _open_tables(lmdb_env, readonly)
    except BaseException:
        lmdb_env.close()
        raise
    return environment


def _check_schema(lmdb_env: Any, folder: Path) -> bool:
    """Is the file new? Reads only, so that a store of a newer release stays as it is."""
    with lmdb_env.begin() as txn:
        names = [bytes(key) for key in txn.cursor().iternext(keys=True, values=False)]
        if not names:
            return True
    if b"meta" not in names:
        raise _foreign(folder)
    # Not within the transaction: a handle opened in a read transaction is lost at its end.
    meta = lmdb_env.open_db(b"meta", create=False)
    with lmdb_env.begin() as txn:
        value = txn.get(b"schema_version", db=meta)
    if value is None:
        raise _foreign(folder)
    version = int(codec.unseal("meta", b"schema_version", value, "schema version of the store"))
    if version > SCHEMA_VERSION:
        raise UnknownVersion(
            f"the store in {folder} has schema version {version}; this release knows up to {SCHEMA_VERSION}"
        )
    if version < SCHEMA_VERSION:
        raise StoreError(
            f"the store in {folder} was made by a version that was never released (schema version {version})",
            hint="Export it with that version (`flowstate memory export`), and begin a new store.",
        )
    return False


def _foreign(folder: Path) -> StoreError:
    return StoreError(
        f"{folder / _DATA_FILE} belongs to another program",
        hint="Name another folder; nothing was changed in this one.",
    )


def _open_tables(lmdb_env: Any, readonly: bool) -> dict[str, Any]:
    if readonly:
        return {name: lmdb_env.open_db(name.encode(), create=False) for name in layout.TABLES}
    with lmdb_env.begin(write=True) as txn:
        tables = {name: lmdb_env.open_db(name.encode(), txn=txn) for name in layout.TABLES}
        version = codec.seal("meta", b"schema_version", codec.pack(str(SCHEMA_VERSION).encode()))
        txn.put(b"schema_version", version, db=tables["meta"])
    return tables


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Inside, errors of LMDB are raised as ours."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise StoreFull(f"the commit did not fit into the map of {folder}; nothing was written") from error
    except (lmdb.InvalidError, lmdb.IncompatibleError) as error:
        raise StoreError(
            f"{folder / _DATA_FILE} is not a store: {error}",
            hint="Name another folder, or restore this one from a backup.",
        ) from error
    except lmdb.VersionMismatchError as error:
        raise UnknownVersion(f"{folder / _DATA_FILE} has another LMDB format: {error}") from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError) as error:
        raise CorruptValue(f"{folder / _DATA_FILE} is damaged: {error}") from error
    except lmdb.ReadersFullError as error:
        raise StoreError(f"too many processes read {folder}", hint="Close some of them.") from error
    except lmdb.DiskError as error:
        raise disk_error(errno.ENOSPC, str(error), folder) from error
    except lmdb.Error as error:
        raise disk_error(getattr(error, "code", None), str(error), folder) from error


def disk_error(code: int | None, message: str, folder: Path) -> FlowStateError:
    """Our error for an errno of the operating system or of LMDB."""
    if code in _FULL or (code == errno.EIO and _is_full(folder)):
        return StoreFull(f"{message}; nothing was written")
    if "already open in this process" in message:
        return UsageError(
            f"the store in {folder} was opened before this process was forked",
            hint="Open stores after the fork, or start processes with the 'spawn' method.",
        )
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(message, hint="Name a folder that you may write, or change its permissions.")
    return StoreError(message, hint="Check the folder and its disk; stores need a local file system.")


def _is_full(folder: Path) -> bool:
    """LMDB reports a write that was cut short as an I/O error; on a full disk that is what happens first."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free < _LEAST_FREE_BYTES
    return False
