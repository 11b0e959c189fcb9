import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file
from tiny import HEADS, HIDDEN, KV_HEADS, LAYERS, TinyModel, alphabet

from flowstate_local.errors import ModelError
from flowstate_local.models.convert import convert, quantise
from flowstate_local.models.dequantise import dequantise
from flowstate_local.models.gguf_file import BLOCKS, read_header
from flowstate_local.models.progress import silent


@pytest.fixture
def gguf(tiny_model: TinyModel, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model.content)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "made"
    path.mkdir()
    return path


@pytest.mark.parametrize("kind", [kind for kind, (values, _) in BLOCKS.items() if values > 1])
def test_every_kernel_gives_the_reference_numbers(kind: int) -> None:
    rows, blocks = 5, 3
    values, size = BLOCKS[kind]
    packed = np.random.default_rng(kind).integers(0, 256, (rows, blocks * size), dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        reference = torch.from_numpy(quants.dequantize(packed, GGMLQuantizationType(kind)))
    made = dequantise(torch.from_numpy(packed), kind)
    assert made.shape == (rows, blocks * values)
    # Random scales include infinities and NaN; those need only be non-finite in both.
    finite = reference.isfinite()
    assert torch.equal(finite, made.isfinite())
    assert torch.equal(made[finite], reference[finite])


def _uninterleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _expected(model: TinyModel) -> dict[str, torch.Tensor]:
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    leaves = {
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
    for i in range(LAYERS):
        names |= {f"blk.{i}.{a}.weight": f"model.layers.{i}.{b}.weight" for a, b in leaves.items()}
    expected = {}
    for name, weight in model.weights.items():
        if "attn_q." in name:
            weight = _uninterleaved(weight, HEADS)
        elif "attn_k." in name:
            weight = _uninterleaved(weight, KV_HEADS)
        expected[names[name]] = torch.from_numpy(weight.copy()).to(torch.bfloat16)
    return expected


def test_bf16_tensors_are_those_of_the_file(gguf: Path, folder: Path, tiny_model: TinyModel) -> None:
    convert(gguf, folder, "bf16", silent)
    made, expected = load_file(folder / "model.safetensors"), _expected(tiny_model)
    assert made.keys() == expected.keys()
    for name, weight in expected.items():
        assert made[name].dtype == torch.bfloat16
        assert torch.equal(made[name], weight), name


def test_chunks_do_not_show(
    gguf: Path, folder: Path, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowstate_local.models.convert._CHUNK_VALUES", 7 * HIDDEN)
    convert(gguf, folder, "bf16", silent)
    made = load_file(folder / "model.safetensors")
    assert all(torch.equal(made[name], weight) for name, weight in _expected(tiny_model).items())


def test_int8_stays_within_half_a_step(gguf: Path, folder: Path, tiny_model: TinyModel) -> None:
    convert(gguf, folder, "int8", silent)
    made = load_file(folder / "model.safetensors")
    for name, weight in _expected(tiny_model).items():
        if ".layers." not in name or weight.ndim == 1:
            assert torch.equal(made[name], weight)
            continue
        scale = made[f"{name}_scale"]
        assert made[name].dtype == torch.int8
        assert scale.shape == (weight.shape[0], 1)
        error = (made[name].float() * scale - weight.float()).abs()
        assert bool((error <= scale * 0.5001).all())
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["ignore"] == ["lm_head"]


def test_a_row_of_zeros_has_a_scale() -> None:
    quants_, scale = quantise(torch.zeros(2, 8, dtype=torch.bfloat16))
    assert scale.tolist() == [[1.0], [1.0]]
    assert not quants_.any()


def test_config_says_what_the_file_says(gguf: Path, folder: Path) -> None:
    convert(gguf, folder, "bf16", silent)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_key_value_heads"] == KV_HEADS
    assert config["head_dim"] == HIDDEN // HEADS
    assert config["vocab_size"] == len(alphabet()) + 4
    assert config["tie_word_embeddings"] is True
    assert config["transformers_version"] == "5.0.0"  # or transformers warns of a fault that isn't there
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)


def test_the_tokenizer_is_the_files(gguf: Path, folder: Path) -> None:
    from tokenizers import Tokenizer

    convert(gguf, folder, "bf16", silent)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("<|im_start|>he said", add_special_tokens=False).ids
    assert ids[:2] == [1, len(alphabet()) + 3]
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>he said"
    assert "messages" in (folder / "chat_template.jinja").read_text()


@pytest.mark.parametrize(
    "content",
    [b"", b"GGUF", b"not a gguf file at all", b"GGUF" + struct.pack("<IQQ", 9, 0, 0)],
    ids=["empty", "cut", "other", "version"],
)
def test_what_is_no_gguf_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"bad\.gguf"):
        read_header(path)


def test_a_cut_file_is_refused(tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_model.content[:-1000])
    with pytest.raises(ModelError, match="runs past the end"):
        read_header(path)


def test_a_foreign_architecture_is_refused(tiny_model: TinyModel, tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "foreign.gguf"
    path.write_bytes(tiny_model.content.replace(b"llama", b"lambs", 1))
    with pytest.raises(ModelError, match="lambs"):
        convert(path, folder, "bf16", silent)


def test_a_foreign_tensor_is_refused(tiny_model: TinyModel, tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "foreign.gguf"
    path.write_bytes(tiny_model.content.replace(b"blk.1.ffn_up.", b"blk.1.ffn_uq."))
    with pytest.raises(ModelError, match="ffn_uq"):
        convert(path, folder, "bf16", silent)
