"""Reads the header of a GGUF file: metadata and the table of tensors.

The reader of the `gguf` package makes one array per vocabulary entry and needs seven seconds where this needs half
of one; a conversion reads the header once and then only slices.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowstate_local.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    8: (32, 34),  # Q8_0
    12: (256, 144),  # Q4_K
    14: (256, 210),  # Q6_K
    30: (1, 2),  # BF16
}
"""ggml type number -> (values per block, bytes per block), for the types that catalogue files use."""


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies in the file."""

    name: str
    shape: tuple[int, ...]
    """In torch order: the last dimension is contiguous."""
    ggml_type: int
    offset: int
    """Bytes from the start of the file."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; a block never crosses rows."""
        values, size = BLOCKS[self.ggml_type]
        return self.shape[-1] // values * size

    @property
    def n_rows(self) -> int:
        """Number of rows; 1 for a vector."""
        return 1 if len(self.shape) == 1 else self.shape[0]


@dataclass(frozen=True)
class GgufHeader:
    """What the file says about itself, without the weights."""

    metadata: dict[str, Any]
    tensors: tuple[StoredTensor, ...]


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return value

    def string(self) -> str:
        length = self.take("Q")
        end = self.at + length
        if end > len(self.data):
            raise struct.error("string runs past the end of the file")
        text = self.data[self.at : end].decode("utf-8")
        self.at = end
        return text

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.take(_SCALARS[kind])
        element, count = self.take("I"), self.take("Q")
        if element in _SCALARS:
            form = f"<{count}{_SCALARS[element]}"
            values = struct.unpack_from(form, self.data, self.at)
            self.at += struct.calcsize(form)
            return list(values)
        return [self.value(element) for _ in range(count)]


def read_header(path: Path) -> GgufHeader:
    """Parse metadata and tensor table.

    Raises:
        ModelError: not a GGUF file, cut off, or with a tensor type that no catalogue file uses.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data))
    except (struct.error, KeyError, ValueError, OverflowError) as error:
        raise ModelError(f"{path.name} is no GGUF file this release can read: {error!r}") from error


def _parse(cursor: _Cursor) -> GgufHeader:
    if cursor.data[:4] != b"GGUF":
        raise ValueError("no GGUF magic")
    cursor.at = 4
    version, n_tensors, n_metadata = cursor.take("I"), cursor.take("Q"), cursor.take("Q")
    if version not in (2, 3):
        raise ValueError(f"GGUF version {version}")
    metadata = {}
    for _ in range(n_metadata):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.take("I"))
    table = [_tensor_row(cursor) for _ in range(n_tensors)]
    alignment = metadata.get("general.alignment", 32)
    start = -(-cursor.at // alignment) * alignment
    tensors = tuple(StoredTensor(name, shape, kind, start + offset) for name, shape, kind, offset in table)
    for tensor in tensors:
        if tensor.offset + tensor.n_rows * tensor.row_bytes > len(cursor.data):
            raise ValueError(f"{tensor.name} runs past the end of the file")
    return GgufHeader(metadata, tensors)


def _tensor_row(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    # ggml counts dimensions from the contiguous one, torch towards it.
    shape = tuple(reversed([cursor.take("Q") for _ in range(cursor.take("I"))]))
    kind, offset = cursor.take("I"), cursor.take("Q")
    if kind not in BLOCKS:
        raise ValueError(f"{name} has ggml type {kind}")
    if not 1 <= len(shape) <= 2 or shape[-1] % BLOCKS[kind][0]:
        raise ValueError(f"{name} has shape {shape}")
    return name, shape, kind, offset
