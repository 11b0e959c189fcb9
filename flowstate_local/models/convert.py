"""Turns a GGUF file into the folder an engine loads: safetensors, config and tokenizer.

Weights are streamed a few megabytes at a time: dequantised in float32, rounded to bfloat16 and, for int8, quantised
again per output channel (W8A8 in the compressed-tensors format, activations quantised per token while running).
The tensors equal those transformers makes from the same file, in a tenth of its time and memory.
"""

import json
import mmap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from flowstate_local.errors import ModelError
from flowstate_local.models.catalogue import Precision
from flowstate_local.models.dequantise import Tensor, dequantise
from flowstate_local.models.gguf_file import GgufHeader, StoredTensor, read_header
from flowstate_local.models.progress import Progress

_CHUNK_VALUES = 1 << 20
"""Measured: chunks of a million values keep the intermediate results in the cache."""

_TOP_LEVEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}

_W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "strategy": "channel",
                "symmetric": True,
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
            "output_activations": None,
        }
    },
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
}

_CONFIG_FORMAT = "5.0.0"
"""Release of transformers whose form of config.json this is."""


def convert(gguf: Path, folder: Path, precision: Precision, progress: Progress) -> None:
    """Fill the empty `folder` with everything an engine needs.

    Raises:
        ModelError: the file is of a form that this release can't convert exactly.
    """
    header = read_header(gguf)
    config = _config(header)
    if precision == "int8":
        config["quantization_config"] = _W8A8
    _write_json(folder / "config.json", config)
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    _write_json(folder / "generation_config.json", special)
    _write_tokenizer(gguf, folder)
    with _one_thread():
        _write_weights(gguf, header, folder / "model.safetensors", precision, progress)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute alone: on a busy machine its threads wait for each other after every small operation.

    Measured for 1.5B parameters on two cores: 6 s with one thread; with two, 6 s when idle and minutes beside a busy
    process.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _config(header: GgufHeader) -> dict[str, Any]:
    about = header.metadata
    arch = about.get("general.architecture")
    if arch not in _ARCHITECTURES:
        raise ModelError(f"can't convert the architecture {arch!r}; known: {', '.join(_ARCHITECTURES)}")
    try:
        config = _dimensions(about, arch)
    except KeyError as error:
        raise ModelError(f"the GGUF file says nothing about {error}") from error
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    config["vocab_size"] = shapes["token_embd.weight"][0] if "token_embd.weight" in shapes else 0
    config["tie_word_embeddings"] = "output.weight" not in shapes
    for key, field in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token_id = about.get(f"tokenizer.ggml.{field}_token_id")
        if token_id is not None:
            config[f"{key}_token_id"] = token_id
    return config


def _dimensions(about: dict[str, Any], arch: str) -> dict[str, Any]:
    hidden, heads = about[f"{arch}.embedding_length"], about[f"{arch}.attention.head_count"]
    config = {
        "architectures": [_ARCHITECTURES[arch]],
        "model_type": arch,
        "dtype": "bfloat16",
        # Without it transformers takes the tokenizer for one of Mistral's with a known fault, and warns.
        "transformers_version": _CONFIG_FORMAT,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": about[f"{arch}.feed_forward_length"],
        "max_position_embeddings": about[f"{arch}.context_length"],
        "num_attention_heads": heads,
        "num_hidden_layers": about[f"{arch}.block_count"],
        "num_key_value_heads": about.get(f"{arch}.attention.head_count_kv", heads),
        "rms_norm_eps": about[f"{arch}.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {
            "rope_theta": about.get(f"{arch}.rope.freq_base", 10000.0),
            "rope_type": "default",
        },
        "use_cache": True,
    }
    if arch == "llama":
        config["head_dim"] = about.get(f"{arch}.attention.key_length", hidden // heads)
    return config


def _write_tokenizer(gguf: Path, folder: Path) -> None:
    """Let transformers rebuild the tokenizer; it knows each family's way to cut text."""
    from transformers import PreTrainedTokenizerFast

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer.save_pretrained(folder)


@dataclass(frozen=True)
class _Target:
    """One tensor of the file to be written, with the one of the GGUF file that it is made from."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: StoredTensor
    role: str
    """weight, int8 or scale."""

    @property
    def size_bytes(self) -> int:
        size = {"F32": 4, "BF16": 2, "I8": 1}[self.dtype]
        for length in self.shape:
            size *= length
        return size


def _write_weights(
    gguf: Path, header: GgufHeader, path: Path, precision: Precision, progress: Progress
) -> None:
    layout, head = _layout([t for s in header.tensors for t in _targets(s, header.metadata, precision)])
    total = sum(tensor.n_rows * tensor.row_bytes for tensor in header.tensors)
    done = 0
    with (
        gguf.open("rb") as file,
        # A private copy-on-write map: torch warns about buffers it may not write.
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as data,
        path.open("wb") as out,
    ):
        out.write(head)
        for source in header.tensors:
            done = _write_tensor(data, source, header.metadata, layout, out, precision, done, total, progress)


def _targets(source: StoredTensor, about: dict[str, Any], precision: Precision) -> Iterator[_Target]:
    name = _target_name(source.name, about["general.architecture"])
    if precision == "int8" and ".layers." in name and len(source.shape) == 2:
        yield _Target(f"{name}_scale", "F32", (source.n_rows, 1), source, "scale")
        yield _Target(name, "I8", source.shape, source, "int8")
    else:
        yield _Target(name, "BF16", source.shape, source, "weight")


def _target_name(name: str, arch: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if suffix == "weight" or (suffix == "bias" and arch == "qwen2"):
        if stem in _TOP_LEVEL:
            return f"{_TOP_LEVEL[stem]}.{suffix}"
        block, _, rest = stem.removeprefix("blk.").partition(".")
        if stem.startswith("blk.") and block.isdigit() and rest in _PER_LAYER:
            return f"model.layers.{block}.{_PER_LAYER[rest]}.{suffix}"
    raise ModelError(f"the GGUF file holds a tensor that {arch} models don't have: {name}")


_Layout = dict[tuple[str, str], int]
"""(name in the GGUF file, role) -> offset in the safetensors file."""


def _layout(targets: list[_Target]) -> tuple[_Layout, bytes]:
    """Lay the tensors out, widest type first so that each is aligned; give their places and the file's head."""
    targets.sort(key=lambda target: {"F32": 0, "BF16": 1, "I8": 2}[target.dtype])
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    starts, at = {}, 0
    for target in targets:
        end = at + target.size_bytes
        table[target.name] = {"dtype": target.dtype, "shape": target.shape, "data_offsets": [at, end]}
        starts[target.source.name, target.role] = at
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return {key: start + len(head) for key, start in starts.items()}, head


def _write_tensor(
    data: mmap.mmap,
    source: StoredTensor,
    about: dict[str, Any],
    layout: _Layout,
    out: BinaryIO,
    precision: Precision,
    done: int,
    total: int,
    progress: Progress,
) -> int:
    packed = _rows(data, source, about)
    step = max(1, _CHUNK_VALUES // source.shape[-1])
    for start in range(0, source.n_rows, step):
        rows = packed[start : start + step]
        weight = dequantise(rows, source.ggml_type).to(torch.bfloat16)
        if (source.name, "int8") in layout:
            quants, scale = quantise(weight)
            _put(out, layout[source.name, "int8"], start, quants)
            _put(out, layout[source.name, "scale"], start, scale)
        else:
            _put(out, layout[source.name, "weight"], start, weight)
        done += rows.numel()
        progress("convert", done, total)
    return done


def _rows(data: mmap.mmap, source: StoredTensor, about: dict[str, Any]) -> Tensor:
    size = source.n_rows * source.row_bytes
    rows = torch.frombuffer(data, dtype=torch.uint8, count=size, offset=source.offset)
    if about["general.architecture"] == "llama" and source.name.endswith(("attn_q.weight", "attn_k.weight")):
        return _undo_interleaving(rows, source, about)
    return rows.view(source.n_rows, source.row_bytes)


def _undo_interleaving(rows: Tensor, source: StoredTensor, about: dict[str, Any]) -> Tensor:
    """Llama's GGUF files keep the two halves of each rotary pair side by side; transformers keeps them apart.

    Blocks never cross rows, so whole packed rows can change places.
    """
    heads = about["llama.attention.head_count"]
    if source.name.endswith("attn_k.weight"):
        heads = about.get("llama.attention.head_count_kv", heads)
    pairs = rows.view(heads, source.n_rows // heads // 2, 2, source.row_bytes)
    return pairs.swapaxes(1, 2).reshape(source.n_rows, source.row_bytes)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 with one float32 scale per row: bf16 (rows, columns) to int8 and scales (rows, 1)."""
    values = weight.float()
    scale = values.abs().amax(1, keepdim=True) / 127
    scale[scale == 0] = 1.0
    return (values / scale).round().to(torch.int8), scale


def _put(out: BinaryIO, offset: int, first_row: int, rows: Tensor) -> None:
    row_bytes = rows[0].numel() * rows.element_size()
    out.seek(offset + first_row * row_bytes)
    out.write(rows.contiguous().view(torch.uint8).numpy().data)
