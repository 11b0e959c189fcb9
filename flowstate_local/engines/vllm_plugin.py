"""What vLLM lacks, added from inside its own processes: they end with ours, and outlines indexes are kept.

vLLM loads this through the entry point group `vllm.general_plugins` in each of its processes. It does nothing
unless `VllmEngine` started them.

A process that is killed can't shut its engine down, and vLLM's engine core then waits for ever with 1 GB or more
in memory; so each child watches for the end of its parent.

Under the outlines profile, without this every accepted token builds a Python list of all ids allowed next (90 ms
per step for 32 requests at a vocabulary of 152k, against 5 ms), each process compiles each grammar again, and
equal requests that arrive together each compile it.
"""

import hashlib
import importlib.metadata
import multiprocessing
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

_KEPT_BYTES = 1024**3
"""Of indexes on disk, last used first. One takes 10 to 20 MB, but 130 MB where strings may have 200 characters."""


def register() -> None:
    """Entry point. May be called several times in one process."""
    owner = os.environ.get("FLOWSTATE_ENGINE_OWNER")
    if owner and owner != str(os.getpid()):
        end_with_parent()
    if os.environ.get("FLOWSTATE_OUTLINES_PLUGIN") == "1":
        _patch_outlines()


@cache
def end_with_parent() -> None:
    """Start a thread that ends this process as soon as the one that spawned it is gone."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="flowstate-parent-watch", daemon=True).start()


def _patch_outlines() -> None:
    from vllm.v1.structured_output.backend_outlines import OutlinesBackend

    if getattr(OutlinesBackend, "_flowstate", False):
        return
    OutlinesBackend._flowstate = True
    OutlinesBackend.compile_grammar = _with_quick_guide(OutlinesBackend.compile_grammar)
    OutlinesBackend._compile_index = _with_disk(OutlinesBackend._compile_index, IndexFolder(cache_folder()))


def cache_folder() -> Path:
    """Where compiled indexes are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "flowstate_local" / "indexes"


class QuickGuide:
    """An outlines_core Guide whose `advance` doesn't list the tokens that may follow; nobody reads that list."""

    def __init__(self, guide: Any) -> None:
        self._guide = guide

    def advance(self, token_id: int) -> None:
        """Accept one token."""
        self._guide.advance(token_id, False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guide, name)


class IndexFolder:
    """Compiled indexes as files, each with the SHA-256 of its content in front."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._guard = threading.Lock()

    def lock(self, key: str) -> threading.Lock:
        """The lock under which `key` is looked up or built, so that it is built once."""
        with self._guard:
            return self._locks[key]

    def load(self, key: str) -> bytes | None:
        """Content of `key`; None if it isn't there or is damaged."""
        path = self._folder / key
        try:
            stored = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        digest, content = stored[:32], stored[32:]
        return content if hashlib.sha256(content).digest() == digest else None

    def save(self, key: str, content: bytes) -> None:
        """Keep `content`, and drop what was used longest ago. A full or read-only disk is no reason to fail."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False) as file:
                file.write(hashlib.sha256(content).digest() + content)
            Path(file.name).replace(self._folder / key)
            self._prune()
        except OSError:
            return

    def _prune(self) -> None:
        files = sorted(self._folder.glob("[!.]*"), key=lambda path: path.stat().st_mtime, reverse=True)
        size_bytes = 0
        for file in files:
            size_bytes += file.stat().st_size
            if size_bytes > _KEPT_BYTES:
                file.unlink(missing_ok=True)


def tokenizer_digest(tokenizer: Any) -> str:
    """Digest of a tokenizer's content; takes half a second for a large vocabulary.

    vLLM's own hashes the vocabulary's repr, whose order changes from process to process.
    """
    digest = hashlib.sha256()
    for token, token_id in sorted(tokenizer.get_vocab().items()):
        digest.update(f"{token}\0{token_id}\0".encode())
    digest.update(repr((tokenizer.eos_token_id, sorted(tokenizer.all_special_ids))).encode())
    return digest.hexdigest()


def index_key(digest_of_tokenizer: str, regex: str) -> str:
    """Name an index by everything it depends on: tokenizer, regex and library."""
    version = importlib.metadata.version("outlines_core")
    return hashlib.sha256("\0".join((digest_of_tokenizer, version, regex)).encode()).hexdigest()


def _with_quick_guide(compile_grammar: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        grammar = compile_grammar(self, *args, **kwargs)
        grammar.guide = QuickGuide(grammar.guide)
        return grammar

    return wrapped


def _with_disk(compile_index: Callable[..., Any], folder: IndexFolder) -> Callable[..., Any]:
    def wrapped(self: Any, regex: str, vocabulary: Any) -> Any:
        import outlines_core

        in_memory = f"{vocabulary._hash}_{regex}"
        if in_memory in self.cache:
            return self.cache[in_memory]
        if not hasattr(self, "_flowstate_digest"):
            self._flowstate_digest = tokenizer_digest(self.tokenizer)
        key = index_key(self._flowstate_digest, regex)
        with folder.lock(key):
            if in_memory in self.cache:
                return self.cache[in_memory]
            if (content := folder.load(key)) is not None:
                index = self.cache[in_memory] = outlines_core.Index.from_binary(content)
                return index
            index = compile_index(self, regex, vocabulary)
            folder.save(key, _binary(index))
            return index

    return wrapped


def _binary(index: Any) -> bytes:
    """The bytes that `Index.from_binary` reads."""
    _, (content,) = index.__reduce__()
    return bytes(content)
