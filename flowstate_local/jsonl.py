"""Files of JSON lines that survive a kill: a line is whole and on disk, or it isn't there."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flowstate_local.errors import UsageError


@dataclass
class JsonLines:
    """A file that one process appends to. Open it with `JsonLines.open`."""

    path: Path
    _file: IO[bytes]

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["JsonLines"]:
        """Open or make the file and its folder, and lock it; a last line that a kill cut short is cut off.

        Raises:
            UsageError: another process holds it, or it can't be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("ab+")
        except OSError as error:
            raise UsageError(f"{path} can't be written: {error.strerror or error}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another process writes to {path}", hint="Wait for it, or use another folder."
                ) from None
            _drop_torn_line(file)
            yield cls(path, file)

    def append(self, value: Mapping[str, Any]) -> None:
        """Add a line. When this returns, it is on disk.

        Raises:
            UsageError: the disk is full, or otherwise can't take it; the file stays valid.
        """
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise UsageError(f"{self.path} can't be written: {error.strerror or error}") from error


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are ended, with their numbers from 1; nothing where there's no file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield number, line


def _drop_torn_line(file: IO[bytes]) -> None:
    end = size = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65_536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        file.truncate(end)
