import re

import pytest

from flowstate_local.errors import UnknownModel, UsageError
from flowstate_local.models import list_models
from flowstate_local.models.catalogue import CATALOGUE, CatalogueEntry, PackageFiles, check_precision, find


@pytest.mark.parametrize("entry", list_models(), ids=lambda entry: entry.name)
class TestEveryEntry:
    def test_is_found_under_its_name(self, entry: CatalogueEntry) -> None:
        assert find(entry.name) is entry
        assert find(entry.name.upper()) is entry

    def test_has_a_hash_a_size_and_a_free_licence(self, entry: CatalogueEntry) -> None:
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        assert entry.licence == "Apache-2.0"
        assert 0 < entry.size_bytes < min(entry.converted_bytes.values())
        assert set(entry.converted_bytes) == {"bf16", "int8"}

    def test_comes_from_the_hub_and_from_packages(self, entry: CatalogueEntry) -> None:
        assert {source.kind for source in entry.sources} == {"hub", "packages"}

    def test_names_each_package_part_once_and_in_order(self, entry: CatalogueEntry) -> None:
        (source,) = entry.sources_of("packages")
        assert isinstance(source, PackageFiles)
        members = [member.member for member in source.members]
        assert len(set(members)) == len(members)
        parts = [int(found[1]) for name in members if (found := re.search(r"part(\d+)\.bin$", name))]
        assert parts == list(range(1, len(parts) + 1))


def test_models_are_listed_by_size() -> None:
    sizes = [entry.n_parameters for entry in list_models()]
    assert sizes == sorted(sizes)
    assert len(sizes) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("smollm2", "smollm2-135m-instruct"),
        ("smolm2-135m-instrct", "smollm2-135m-instruct"),
        ("Qwen2.5-Coder-1.5B", "qwen2.5-coder-1.5b-instruct"),
    ],
)
def test_an_unknown_name_brings_near_ones(typed: str, meant: str) -> None:
    with pytest.raises(UnknownModel, match=re.escape(meant)):
        find(typed)


def test_a_name_like_no_other_brings_them_all() -> None:
    with pytest.raises(UnknownModel, match="smollm2-135m-instruct, qwen2.5"):
        find("zzz")


def test_unknown_precisions_and_sources_are_named() -> None:
    with pytest.raises(UsageError, match="int4") as precision:
        check_precision("int4")
    assert "bf16, int8" in precision.value.hint
    with pytest.raises(UsageError, match="torrent") as source:
        list_models()[0].sources_of("torrent")
    assert "packages, hub" in source.value.hint
