"""Where model files live on disk, and the rules for changing what lies there.

$XDG_CACHE_HOME/flowstate_local/models/
  sources/FILE.gguf          verified downloads, kept so that another precision needs no network
  NAME/                      a folder of files as they were published, such as an embedding model
  NAME-PRECISION/            what an engine loads; complete whenever it exists under this name
  locks/NAME                 held by the one process that works on a model
  .tmp-NAME-*/               work in progress; whatever the lock's holder finds there is left over
"""

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, get_args

from flowstate_local.errors import CacheUnwritable
from flowstate_local.models.catalogue import CatalogueEntry, Precision
from flowstate_local.models.progress import Progress

CONVERTER_VERSION = 1
"""Raise it when a conversion would come out differently: folders made by an older one are made again."""

MANIFEST = "flowstate.json"

_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def root() -> Path:
    """The cache folder of this user; it need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "flowstate_local" / "models"


def source_path(entry: CatalogueEntry) -> Path:
    """Where the verified download of this model is kept."""
    return root() / "sources" / entry.filename


def folder_path(entry: CatalogueEntry, precision: Precision) -> Path:
    """The folder an engine loads; its name carries the precision."""
    return root() / f"{entry.name}-{precision}"


def is_ready(entry: CatalogueEntry, precision: Precision) -> bool:
    """Whether the folder is there, made from these very bytes by this version of the converter."""
    folder = folder_path(entry, precision)
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        weights_bytes = (folder / "model.safetensors").stat().st_size
    except (OSError, ValueError):
        return False
    return bool(manifest == _manifest(entry, precision, weights_bytes))


def cached_precisions(entry: CatalogueEntry) -> list[Precision]:
    """The precisions in which this model can be loaded without any work."""
    return [precision for precision in get_args(Precision) if is_ready(entry, precision)]


def _manifest(entry: CatalogueEntry, precision: Precision, weights_bytes: int) -> dict[str, Any]:
    return {
        "model": entry.name,
        "source_file": entry.filename,
        "source_sha256": entry.sha256,
        "precision": precision,
        "converter_version": CONVERTER_VERSION,
        "weights_bytes": weights_bytes,
    }


@contextmanager
def writing() -> Iterator[None]:
    """Translate what the file system says into this project's words.

    Raises:
        CacheUnwritable: the disk is full or the folder can't be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise CacheUnwritable(f"no room left in {root()}: {error.strerror}") from error
        if error.errno in _UNWRITABLE:
            raise CacheUnwritable(f"can't write to {error.filename or root()}: {error.strerror}") from error
        raise


def require_space(needed_bytes: int) -> None:
    """Look before a long download whether its result will fit.

    Raises:
        CacheUnwritable: fewer than `needed_bytes` are free on the cache's disk.
    """
    folder = root()
    while not folder.exists():
        folder = folder.parent
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise CacheUnwritable(
            f"{needed_bytes:,} bytes are needed in {root()}, but only {free_bytes:,} bytes are free"
        )


class Named(Protocol):
    """What is worked on, a model or a folder of files."""

    @property
    def name(self) -> str:
        """Unique in the cache."""


@contextmanager
def locked(entry: Named, progress: Progress) -> Iterator[None]:
    """Be the only process that works on this model; wait for another one to finish.

    The kernel drops the lock with its holder, so a killed process blocks nobody.
    """
    with writing():
        folder = root() / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / entry.name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("wait", 0, 0)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def workspace(entry: Named) -> Iterator[Path]:
    """A temporary folder on the cache's disk, gone afterwards. Call it with the lock held."""
    prefix = f".tmp-{entry.name}-"
    with writing():
        for left_over in root().glob(f"{prefix}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        (root() / "sources").mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(made: Path, entry: CatalogueEntry, precision: Precision) -> Path:
    """Give a finished folder its final name; readers see the whole of it or nothing."""
    target = folder_path(entry, precision)
    weights_bytes = (made / "model.safetensors").stat().st_size
    (made / MANIFEST).write_text(json.dumps(_manifest(entry, precision, weights_bytes), indent=2) + "\n")
    put_in_place(made, target)
    return target


def put_in_place(made: Path, target: Path) -> None:
    """Move a finished folder out of the workspace, durably and in one piece. Call it with the lock held."""
    made.chmod(0o755)
    _sync(made)
    if target.exists():
        # A folder can't replace a folder that holds files; the old one is outdated, so a gap does no harm.
        os.replace(target, made.parent / "outdated")
    os.replace(made, target)


def _sync(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
