"""GGUF files, dequantised by transformers: a tiny one is written here."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from gausslens import LayerWeights, ModelSpec, Part, Prompt, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.config_and_tokenizer import claims_directory
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.parameters import TransformersParameters

D_MODEL, D_MLP, LAYERS, HEADS, KV_HEADS = 32, 48, 2, 4, 2
VOCABULARY = ["<unk>", "<s>", "</s>", "ab", *map(chr, range(97, 123))]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(D_MODEL)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(D_MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(D_MODEL // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([1] * len(VOCABULARY))
    writer.add_token_merges(["a b"])
    for number, add in enumerate((writer.add_unk_token_id, writer.add_bos_token_id, writer.add_eos_token_id)):
        add(number)
    _add_tensors(writer, np.random.default_rng(0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(writer: gguf.GGUFWriter, draw: np.random.Generator) -> None:
    def add(name: str, *shape: int, around: float = 0.0) -> None:
        writer.add_tensor(f"{name}.weight", (around + 0.1 * draw.normal(size=shape)).astype(np.float32))

    add("token_embd", len(VOCABULARY), D_MODEL)
    add("output", len(VOCABULARY), D_MODEL)
    add("output_norm", D_MODEL, around=1.0)
    for layer in range(LAYERS):
        for name, shape in {
            "attn_q": (D_MODEL, D_MODEL),
            "attn_k": (D_MODEL * KV_HEADS // HEADS, D_MODEL),
            "attn_v": (D_MODEL * KV_HEADS // HEADS, D_MODEL),
            "attn_output": (D_MODEL, D_MODEL),
            "ffn_gate": (D_MLP, D_MODEL),
            "ffn_up": (D_MLP, D_MODEL),
            "ffn_down": (D_MODEL, D_MLP),
        }.items():
            add(f"blk.{layer}.{name}", *shape)
        add(f"blk.{layer}.attn_norm", D_MODEL, around=1.0)
        add(f"blk.{layer}.ffn_norm", D_MODEL, around=1.0)


def test_a_gguf_file_is_a_model(file: Path) -> None:
    assert claims_directory(str(file))
    model = open_pretrained(ModelSpec(str(file), TransformersParameters()))
    assert (model.info.family, model.info.n_kv_heads) == ("llama", KV_HEADS)
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []
    assert LayerWeights(model, 1).W_K.shape == (KV_HEADS, D_MODEL, D_MODEL // HEADS)
    assert model.tokenise([Prompt((Part("abc"),))]).pieces == (("ab", "c"),)


def test_a_directory_may_name_its_gguf_file(file: Path) -> None:
    named = ModelSpec(str(file.parent), TransformersParameters(gguf_file=file.name))
    assert (
        open_pretrained(named).info.fingerprint
        == open_pretrained(ModelSpec(str(file), TransformersParameters())).info.fingerprint
    )


def test_a_twin_of_a_gguf_file_is_a_directory_of_transformers(file: Path, tmp_path: Path) -> None:
    model = open_pretrained(ModelSpec(str(file), TransformersParameters()))
    fingerprint = model.save(tmp_path, Twin(model))
    again = open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    assert again.info.fingerprint == fingerprint
    assert torch.equal(again.tensor(1, "W_K"), model.tensor(1, "W_K"))
    assert again.tokenizer_digest == model.tokenizer_digest
