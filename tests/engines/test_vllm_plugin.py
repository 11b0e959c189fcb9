"""The plugin's parts without vLLM: indexes on disk, built once, and a guide that accepts quickly."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import outlines_core
import pytest

from flowstate_local.engines import vllm_plugin
from flowstate_local.engines.vllm_plugin import IndexFolder, QuickGuide, index_key, tokenizer_digest

VOCABULARY = outlines_core.Vocabulary(2, {"a": [0], "b": [1]})


class Tokenizer:
    eos_token_id = 2
    all_special_ids = (2,)

    def __init__(self, tokens: dict[str, int]) -> None:
        self._tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return self._tokens


class Backend:
    """As much of vLLM's OutlinesBackend as the plugin touches."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer({"a": 0, "b": 1})
        self.cache: dict[str, Any] = {}


class _Vocabulary:
    inner = VOCABULARY

    def __init__(self, hash_of_this_process: int = 1) -> None:
        self._hash = hash_of_this_process


def counting(builds: Counter[str]) -> Any:
    def compile_index(backend: Backend, regex: str, vocabulary: _Vocabulary) -> Any:
        builds[regex] += 1
        index = outlines_core.Index(regex, vocabulary.inner)
        backend.cache[f"{vocabulary._hash}_{regex}"] = index
        return index

    return compile_index


def test_the_next_process_reads_what_this_one_built(tmp_path: Path) -> None:
    builds: Counter[str] = Counter()
    first = vllm_plugin._with_disk(counting(builds), IndexFolder(tmp_path))(Backend(), "a+b", _Vocabulary(1))
    again = vllm_plugin._with_disk(counting(builds), IndexFolder(tmp_path))(Backend(), "a+b", _Vocabulary(2))
    assert first == again
    assert builds == {"a+b": 1}


def test_calls_that_meet_build_once(tmp_path: Path) -> None:
    builds: Counter[str] = Counter()
    compile_index = vllm_plugin._with_disk(counting(builds), IndexFolder(tmp_path))
    backend = Backend()
    threads = [threading.Thread(target=compile_index, args=(backend, "ab*", _Vocabulary())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builds == {"ab*": 1}


def test_a_damaged_file_is_built_again(tmp_path: Path) -> None:
    folder = IndexFolder(tmp_path)
    folder.save("key", b"content")
    assert folder.load("key") == b"content"
    (tmp_path / "key").write_bytes((tmp_path / "key").read_bytes()[:-1])
    assert folder.load("key") is None


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_plugin, "_KEPT_BYTES", 2 * (32 + len(b"x")))
    folder = IndexFolder(tmp_path)
    for age, key in enumerate(["new", "older", "oldest"]):
        folder.save(key, b"x")
        os.utime(tmp_path / key, (1000 - age, 1000 - age))
    folder.save("newest", b"x")
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "new"}


def test_a_folder_that_can_not_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = IndexFolder(tmp_path / "file" / "indexes")
    folder.save("key", b"content")
    assert folder.load("key") is None


def test_a_key_depends_on_content_and_not_on_order() -> None:
    digest = tokenizer_digest(Tokenizer({"a": 0, "b": 1}))
    assert digest == tokenizer_digest(Tokenizer({"b": 1, "a": 0}))
    assert digest != tokenizer_digest(Tokenizer({"a": 1, "b": 0}))
    assert index_key(digest, "a") != index_key(digest, "b")


def test_a_quick_guide_is_a_guide() -> None:
    guide = QuickGuide(outlines_core.Guide(outlines_core.Index("ab", VOCABULARY)))
    guide.advance(0)
    assert not guide.is_finished()
    guide.advance(1)
    assert guide.is_finished()


def watched_child(pid_file: str) -> None:
    vllm_plugin.register()
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(300)


OWNER = """
import multiprocessing, os, sys, time
from test_vllm_plugin import watched_child

if __name__ == "__main__":
    os.environ["FLOWSTATE_ENGINE_OWNER"] = str(os.getpid())
    multiprocessing.get_context("spawn").Process(target=watched_child, args=(sys.argv[1],)).start()
    time.sleep(300)
"""


def test_the_engine_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    script, pid_file = tmp_path / "owner.py", tmp_path / "pid"
    script.write_text(OWNER)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, str(script), str(pid_file)], env=environment) as owner:
        wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
        child = int(pid_file.read_text())
        assert alive(child)
        owner.kill()
    wait_for(lambda: not alive(child))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """A zombie that nobody has collected yet is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_without_the_variable_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWSTATE_OUTLINES_PLUGIN", raising=False)
    monkeypatch.delenv("FLOWSTATE_ENGINE_OWNER", raising=False)
    vllm_plugin.register()
