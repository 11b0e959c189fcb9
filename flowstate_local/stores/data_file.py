"""The length of LMDB's data file: room for the next commits, and an end that got lost. Knows no LMDB."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from flowstate_local.errors import CorruptValue

_LEAST_ROOM = 32 * 2**10
"""Bytes that a commit of a step fits into, many times."""
_MOST_ROOM = 2**20


class Room:
    """Zeros behind the pages in use, for the next commits to write over.

    A commit that makes the file longer has the file system write its own journal, too, before the sync returns; one
    that writes over what is there has not. So the file is made longer for many commits at once, by an eighth and at
    most a MiB.
    """

    def __init__(self, data_file: Path) -> None:
        self._file = data_file
        self._length = 0
        """At least so many bytes has the file: nobody makes it shorter."""

    def ensure(self, used_bytes: int) -> None:
        """Make the file longer if little is left behind its first `used_bytes`.

        Only for whoever holds LMDB's write lock: others might be writing there. The next sync covers it. Where the
        disk is full nothing happens; the commit will find out whether it fits.
        """
        if self._length >= used_bytes + _LEAST_ROOM:
            return
        with suppress(OSError):
            file = os.open(self._file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                self._length = os.fstat(file).st_size
                if self._length < used_bytes + _LEAST_ROOM:
                    zeros = bytes(min(max(2 * _LEAST_ROOM, self._length // 8), _MOST_ROOM))
                    self._length += os.pwrite(file, zeros, self._length)
            finally:
                os.close(file)


def restore_length(data_file: Path, needed_bytes: int) -> None:
    """Give a data file that is shorter than it says its length back, if only free pages are missing.

    LMDB doesn't write free pages at the end, so whole files can be short. But if pages in use were lost, reading them
    kills the process (SIGBUS), and so do the zeros that would take their place (LMDB's own assertions).

    Raises:
        CorruptValue: pages in use were lost, or the file can't be made longer.
    """
    if data_file.stat().st_size >= needed_bytes:
        return
    if not _readable_by_another(data_file):
        raise CorruptValue(
            f"{data_file} has lost its end, which should be at byte {needed_bytes}",
            hint="Restore it from a backup; nothing was changed.",
        )
    try:
        file = os.open(data_file, os.O_RDWR)
        try:
            # Unlike truncate, this can't cut off what another process appends at this moment.
            os.posix_fallocate(file, needed_bytes - 1, 1)
        finally:
            os.close(file)
    except OSError as error:
        raise CorruptValue(
            f"{data_file} ends before byte {needed_bytes}, and can't be extended: {error}"
        ) from error


_READ_ALL = """
import os, sys, lmdb
env = lmdb.open(sys.argv[1], readonly=True, lock=os.access(sys.argv[1], os.W_OK), max_dbs=64, lib_version=0)
with env.begin(buffers=True) as txn:
    names = [bytes(name) for name in txn.cursor().iternext(values=False)]
tables = [env.open_db(name, create=False) for name in names]
with env.begin(buffers=True) as txn:
    for table in tables:
        for _, value in txn.cursor(table):
            bytes(value[-1:])
"""
"""Touches every page in use: all keys, and the last page of each value. Run by a process of its own."""


def _readable_by_another(data_file: Path) -> bool:
    """Does a process that reads everything survive?"""
    command = [sys.executable, "-c", _READ_ALL, str(data_file.parent)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
