from pathlib import Path

import pytest
from tiny import Served, TinyModel

from flowstate_local.errors import ModelError, SourceUnavailable, UnknownModel, UsageError
from flowstate_local.models import resolve
from flowstate_local.models.catalogue import CatalogueEntry


def test_a_catalogue_name_is_fetched(tiny: CatalogueEntry, tiny_model: TinyModel, server: Served) -> None:
    server.offer_model(tiny_model.content)
    folder = resolve("Tiny-Llama", precision="int8")
    assert isinstance(folder, Path)
    assert folder.name == "tiny-llama-int8"


def test_a_model_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path)) == tmp_path


def test_an_empty_folder_or_a_file_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        resolve(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="is a file"):
        resolve(tmp_path / "model.gguf")


def test_a_precision_needs_a_catalogue_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="no precision"):
        resolve(tmp_path, precision="int8")


def test_a_hub_id_is_left_to_the_engine(server: Served) -> None:
    server.files["/owner/name/resolve/main/config.json"] = b"{}"
    assert resolve("owner/name") == "owner/name"


def test_a_hub_id_in_the_local_cache_needs_no_hub(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "hub" / "models--owner--name"
    folder = repo / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(SourceUnavailable):  # the config alone is a download that broke off
        resolve("owner/name")
    (folder / "model.safetensors").write_bytes(b"")
    assert resolve("owner/name") == folder


def test_a_hub_that_is_not_there_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceUnavailable, match="could not be reached"):
        resolve("owner/name")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SourceUnavailable, match="HF_HUB_OFFLINE"):
        resolve("owner/name")


def test_what_nobody_knows_is_unknown(server: Served) -> None:
    with pytest.raises(UnknownModel, match="the hub has no model owner/nothing"):
        resolve("owner/nothing")
    with pytest.raises(UnknownModel, match="smollm2-135m-instruct"):
        resolve("smollm")
    with pytest.raises(UnknownModel):
        resolve("/no/such/folder")
