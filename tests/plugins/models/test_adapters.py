"""LoRA adapters opened as models: what is added to each head is the planted B A, and what peft merges."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from planted_adapters import PREFIX, configured, copied, factors, plant, write
from random_models import build
from safetensors.torch import load_file, save_file

from gausslens import Generators, InputError, LayerWeights, ModelError, ModelSpec, OpenModel, Twin
from gausslens.__main__ import main
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.edits import lora
from gausslens_models.loading.config_and_tokenizer import claims_directory, claims_weights
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.loading.weights import open_weights
from gausslens_models.parameters import LoraParameters, TransformersParameters, WeightsParameters

Directory = Callable[[str], Path]
TARGETS = ("q_proj", "v_proj", "o_proj", "down_proj")


def run(path: Path, base: str | None = None, **how: Any) -> Any:
    return open_pretrained(ModelSpec(str(path), TransformersParameters(base=base), **how))


def files(path: Path, base: str | None = None, **how: Any) -> Any:
    return open_weights(ModelSpec(str(path), WeightsParameters(base=base), **how))


def built(path: Path, base: str | None = None, **how: Any) -> Any:
    """Opened to run, with the module built: tensors are of that."""
    model = run(path, base, **how)
    assert model.module is not None
    return model


OPENED = [run, files, built]


def all_tensors(model: OpenModel) -> dict[tuple[int | None, str], torch.Tensor]:
    return {(n, name): model.tensor(n, name) for n in (*model.info.layers, None) for name in model.names(n)}


def in_heads(name: str, added: torch.Tensor, d_head: int) -> torch.Tensor:
    """B A [out, in] by head: rows of W_Q and W_V, columns of W_O; written out."""
    if name == "W_O":
        return torch.stack([part.T for part in added.split(d_head, dim=1)])
    if name in ("W_Q", "W_V"):
        return torch.stack([part.T for part in added.split(d_head, dim=0)])
    return added.T


@pytest.mark.parametrize("opens", OPENED)
def test_a_planted_change_of_rank_two_is_found_head_by_head(
    opens: Callable[..., Any], directory: Directory, tmp_path: Path
) -> None:
    added = plant(tmp_path / "a", directory("llama"), TARGETS)
    merged, base = opens(tmp_path / "a"), files(directory("llama"))
    ours = {"q_proj": "W_Q", "v_proj": "W_V", "o_proj": "W_O", "down_proj": "W_out"}
    assert len(added) == 4 * base.info.n_layers
    changed = set()
    for theirs, delta in added.items():
        layer, name = int(theirs.split(".")[2]), ours[theirs.split(".")[-2]]
        before, after = base.tensor(layer, name).double(), merged.tensor(layer, name).double()
        torch.testing.assert_close(after - before, in_heads(name, 6 / 2 * delta, base.info.d_head), rtol=0, atol=1e-6)
        if name == "W_out":
            assert int(torch.linalg.matrix_rank(after - before, atol=1e-4)) == 2
        changed.add((layer, name))
    for place, tensor in all_tensors(base).items():
        assert torch.equal(tensor, merged.tensor(*place)) == (place not in changed), place


def test_the_proof_holds_and_files_and_module_are_one(directory: Directory, tmp_path: Path) -> None:
    plant(tmp_path / "a", directory("llama"), TARGETS)
    model, stored = built(tmp_path / "a"), files(tmp_path / "a")
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []
    for place, tensor in all_tensors(stored).items():
        assert torch.equal(tensor, model.tensor(*place)), place
    assert model.info.name == stored.info.name == "a"
    assert model.info.facts["notes"] == ("adapter a: 12 tensors of its base are changed (rank 2)",)


def test_what_is_written_of_an_adapter_is_base_and_adapter_merged(directory: Directory, tmp_path: Path) -> None:
    plant(tmp_path / "a", directory("llama"), TARGETS)
    (tmp_path / "out").mkdir()
    model = run(tmp_path / "a")
    model.save(tmp_path / "out", Twin(model))
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    merged = files(tmp_path / "out")
    for place, tensor in all_tensors(model).items():
        assert torch.equal(tensor, merged.tensor(*place)), place


def test_the_fingerprint_is_of_base_and_adapter(directory: Directory, tmp_path: Path) -> None:
    plant(tmp_path / "a", directory("llama"), TARGETS)
    found = {run(tmp_path / "a").info.fingerprint, files(tmp_path / "a").info.fingerprint}
    assert len(found) == 1
    told = copied(tmp_path / "a", tmp_path / "told")
    configured(told, lora_dropout=0.5, base_model_name_or_path="elsewhere")
    (told / "README.md").write_text("other words")
    assert files(told, str(directory("llama"))).info.fingerprint in found
    found.add(files(directory("llama")).info.fingerprint)
    scaled = configured(copied(tmp_path / "a", tmp_path / "scaled"), lora_alpha=7)
    found.add(files(scaled).info.fingerprint)
    other = copied(tmp_path / "a", tmp_path / "other")
    held = load_file(other / "adapter_model.safetensors")
    held[next(iter(held))] += 1e-3
    save_file(held, other / "adapter_model.safetensors")
    found.add(files(other).info.fingerprint)
    plant(tmp_path / "b", directory("llama-tied"), TARGETS)
    found.add(files(tmp_path / "b").info.fingerprint)
    assert len(found) == 5


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_half_and_double_types_add_in_the_wider_type(dtype: str, directory: Directory, tmp_path: Path) -> None:
    added = plant(tmp_path / "a", directory("llama"), ("q_proj",))
    name, delta = sorted(added.items())[1]
    kind = getattr(torch, dtype)
    stored = load_file(directory("llama") / "model.safetensors")[name].to(kind)
    expected = (stored.double() + 3 * delta).to(kind)
    found = torch.cat([head.T for head in files(tmp_path / "a", dtype=dtype).tensor(1, "W_Q")])
    assert found.dtype == kind
    # float64 exactly to its rounding; bfloat16 to half a step of its 8 bits, of numbers up to 2, and what float32 loses
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=2**-8 if dtype == "bfloat16" else 1e-13, atol=1e-6
    )
    assert torch.equal(found, torch.cat([h.T for h in built(tmp_path / "a", dtype=dtype).tensor(1, "W_Q")]))


def test_ranks_alphas_and_roots_by_pattern(directory: Directory, tmp_path: Path) -> None:
    """The first pattern that a module's name ends with, at a dot; alpha / sqrt(r) where the config says so."""
    config = {
        "r": 2,
        "lora_alpha": 6,
        "rank_pattern": {"q_proj": 3, "1.self_attn.v_proj": 4},
        "alpha_pattern": {r"layers\.[12]\.self_attn\.q_proj": 5, "proj": 99},
        "use_rslora": True,
    }
    ranks = {"q_proj": 3, "1.self_attn.v_proj": 4}
    added = plant(tmp_path / "a", directory("llama"), ("q_proj", "v_proj"), config, ranks)
    merged, base = files(tmp_path / "a"), files(directory("llama"))
    scales = {(0, "W_Q"): (6, 3), (1, "W_Q"): (5, 3), (2, "W_Q"): (5, 3), (1, "W_V"): (6, 4), (2, "W_V"): (6, 2)}
    for (layer, name), (alpha, rank) in scales.items():
        delta = added[f"model.layers.{layer}.self_attn.{name[-1].lower()}_proj.weight"]
        expected = in_heads(name, alpha / math.sqrt(rank) * delta, base.info.d_head)
        found = merged.tensor(layer, name).double() - base.tensor(layer, name).double()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("opens", OPENED)
def test_what_is_saved_whole_stands_in_place_of_the_base(
    opens: Callable[..., Any], directory: Directory, tmp_path: Path
) -> None:
    """Biases, norms and a head (modules_to_save, bias: all); a bias that B has is scaled and added."""
    base = files(directory("llama"))
    draw = torch.Generator().manual_seed(1)
    head, gain, bias = (torch.randn(shape, generator=draw) for shape in ((61, 24), (24,), (12,)))
    A, B = factors((24, 24), 2, 0)
    extra = torch.randn(24, generator=draw)
    at = f"{PREFIX}model.layers.1"
    tensors = {
        f"{PREFIX}lm_head.weight": head,
        f"{at}.input_layernorm.weight": gain,
        f"{at}.self_attn.k_proj.bias": bias,
        f"{at}.self_attn.q_proj.lora_A.weight": A,
        f"{at}.self_attn.q_proj.lora_B.weight": B,
        f"{at}.self_attn.q_proj.lora_B.bias": extra,
    }
    config = {"bias": "all", "modules_to_save": ["lm_head"], "base_model_name_or_path": str(directory("llama"))}
    model = opens(write(tmp_path / "a", tensors, config))
    assert torch.equal(model.tensor(None, "W_U"), head.T)
    assert torch.equal(model.tensor(1, "ln1.w"), gain)
    assert torch.equal(model.tensor(1, "b_K").flatten(), bias)
    torch.testing.assert_close(
        model.tensor(1, "b_Q") - base.tensor(1, "b_Q"), 3 * extra.view(model.tensor(1, "b_Q").shape)
    )
    assert torch.equal(model.tensor(0, "b_K"), base.tensor(0, "b_K"))


def test_magnitudes_of_dora_are_lengths_of_rows(directory: Directory, tmp_path: Path) -> None:
    """m (W + B A) / |W + B A|: each row, one number of the output, has the length that is stored."""
    name = "model.layers.0.self_attn.q_proj"
    added = plant(tmp_path / "a", directory("llama"), ("0.self_attn.q_proj",), {"use_dora": True})
    held = load_file(tmp_path / "a" / "adapter_model.safetensors")
    lengths = torch.linspace(0.5, 2, 24)
    held[f"{PREFIX}{name}.lora_magnitude_vector"] = lengths
    save_file(held, tmp_path / "a" / "adapter_model.safetensors")
    found = torch.cat([head.T for head in files(tmp_path / "a").tensor(0, "W_Q")])
    before = load_file(directory("llama") / "model.safetensors")[f"{name}.weight"] + 3 * added[f"{name}.weight"].float()
    torch.testing.assert_close(torch.linalg.norm(found, dim=1), lengths)
    torch.testing.assert_close(torch.cosine_similarity(found, before), torch.ones(24))


def test_an_embedding_changes_by_rows_of_tokens(directory: Directory, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(2)
    A, B = torch.randn(2, 61, generator=draw), torch.randn(24, 2, generator=draw)
    at = f"{PREFIX}model.embed_tokens"
    tensors = {f"{at}.lora_embedding_A": A, f"{at}.lora_embedding_B": B}
    write(tmp_path / "a", tensors, {"base_model_name_or_path": str(directory("llama"))})
    added = files(tmp_path / "a").tensor(None, "W_E") - files(directory("llama")).tensor(None, "W_E")
    torch.testing.assert_close(added, 3 * (B @ A).T, rtol=0, atol=1e-5)
    tied = {"base_model_name_or_path": str(directory("llama-tied"))}
    write(tmp_path / "tied", tensors, tied)
    with pytest.raises(ModelError, match=r"changes model.embed_tokens.weight, .* one tensor for embedding and head"):
        files(tmp_path / "tied")
    write(tmp_path / "head", {f"{PREFIX}lm_head.weight": torch.ones(61, 24)}, tied)
    with pytest.raises(ModelError, match=r"changes lm_head.weight, .* one tensor for embedding and head"):
        files(tmp_path / "head")


PEFT: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {"target_modules": ["q_proj", "v_proj", "down_proj"]}),
    "tied": ("llama-tied", {"target_modules": "all-linear"}),
    "roots, all biases, a head": (
        "llama",
        {"use_rslora": True, "bias": "all", "target_modules": ["q_proj", "o_proj"], "modules_to_save": ["lm_head"]},
    ),
    "patterns, its biases": (
        "llama",
        {
            "bias": "lora_only",
            "target_modules": ["q_proj", "o_proj"],
            "rank_pattern": {"q_proj": 2, r"layers\.1\.self_attn\.o_proj": 3},
            "alpha_pattern": {"o_proj": 9},
        },
    ),
    "a bias of B": ("llama", {"lora_bias": True, "target_modules": ["q_proj"]}),
    "turned": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "fused": ("phi3", {"target_modules": ["qkv_proj", "gate_up_proj"]}),
    "interleaved": ("gpt_neox", {"target_modules": ["query_key_value"]}),
    "latent": ("deepseek_v3", {"target_modules": ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]}),
    "dora": ("llama", {"use_dora": True, "target_modules": ["q_proj", "up_proj"]}),
    "dora, turned": ("gpt2", {"use_dora": True, "target_modules": ["c_attn"], "fan_in_fan_out": True}),
    "embedding and head": ("llama", {"target_modules": ["embed_tokens", "lm_head"]}),
    "encoder": ("bert", {"target_modules": ["query", "value", "dense"]}),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # peft's own
@pytest.mark.parametrize("case", PEFT)
def test_it_is_what_peft_merges(case: str, directory: Directory, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    name, how = PEFT[case]
    kind = type(build(name))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = peft.LoraConfig(init_lora_weights=False, **{"r": 4, "lora_alpha": 6} | how)
        trained = peft.get_peft_model(kind.from_pretrained(directory(name)), config)
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.data += 0.1 * torch.randn(parameter.shape)
        trained.save_pretrained(tmp_path / "a")
    loaded = peft.PeftModel.from_pretrained(kind.from_pretrained(directory(name)), tmp_path / "a")
    merged = open_pretrained(ModelSpec("live:it", TransformersParameters(), model=loaded.merge_and_unload()))
    expected, before = all_tensors(merged), all_tensors(files(directory(name)))
    for opens in OPENED:
        found = all_tensors(opens(tmp_path / "a"))
        assert found.keys() == expected.keys()
        for place, tensor in expected.items():
            torch.testing.assert_close(found[place], tensor, rtol=0, atol=1e-6)
    assert max(float((expected[place] - tensor).abs().max()) for place, tensor in before.items()) > 0.1


@pytest.mark.real_model
def test_a_planted_change_on_real_weights(real_models: Path, tmp_path: Path) -> None:
    """W of each head of the merged model is W + scale B A, as a model and as an edit, and the proof holds."""
    base = real_models / "smollm2"
    added = plant(tmp_path / "a", base, ("q_proj", "o_proj"))
    merged, plain = built(tmp_path / "a"), files(base)
    parameters = LoraParameters(path=str(tmp_path / "a"))
    ours = {"q_proj": "W_Q", "o_proj": "W_O"}
    for theirs, delta in added.items():
        layer, name = int(theirs.split(".")[2]), ours[theirs.split(".")[-2]]
        found = merged.tensor(layer, name).double() - plain.tensor(layer, name).double()
        for head, expected in enumerate(in_heads(name, 3 * delta, 64)):
            torch.testing.assert_close(found[head], expected, rtol=0, atol=2e-6)
        edited = lora(LayerWeights(plain, layer), parameters, Generators(0, layer))
        torch.testing.assert_close(edited[name], merged.tensor(layer, name), rtol=0, atol=1e-6)
    assert [f for f in TransformersEngine().prove(merged) if not f.holds] == []


@pytest.mark.real_model
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # peft's own
def test_real_weights_compute_what_peft_merges(real_models: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = real_models / "smollm2"
    targets = ("q_proj", "v_proj", "down_proj")
    plant(tmp_path / "a", base, targets, {"target_modules": list(targets)})
    merged = built(tmp_path / "a")
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(model, tmp_path / "a").merge_and_unload()
    for (name, parameter), (also, expected) in zip(
        merged.module.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert name == also
        torch.testing.assert_close(parameter, expected.detach(), rtol=0, atol=1e-6)
    ids = torch.arange(100, 140).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(merged.module(ids).logits, theirs(ids).logits, rtol=0, atol=1e-3)


def test_where_the_base_is(directory: Directory, tmp_path: Path) -> None:
    """Beside the adapter by a relative name; else where the block says; a built-in one by its name."""
    base = directory("llama")
    plant(tmp_path / "a", base, ("q_proj",), {"base_model_name_or_path": "../base"})
    with pytest.raises(InputError, match=r"is an adapter of \.\./base, which is no directory here: .*`base: DIR`"):
        files(tmp_path / "a")
    assert files(tmp_path / "a", str(base)).info.n_layers == 3
    (tmp_path / "base").symlink_to(base)
    assert files(tmp_path / "a").info.fingerprint == run(tmp_path / "a", str(base)).info.fingerprint
    from gausslens_models.loading.config_and_tokenizer import DIRECTORY

    plant(tmp_path / "b", DIRECTORY / "tiny", ("q_proj",), {"base_model_name_or_path": "someone/tiny"})
    assert (
        run(tmp_path / "b", "builtin:tiny").info.fingerprint
        == files(tmp_path / "b", str(DIRECTORY / "tiny")).info.fingerprint
    )
    with pytest.raises(InputError, match="is itself an adapter"):
        files(tmp_path / "a", str(tmp_path / "b"))
    with pytest.raises(InputError, match=r"is no adapter .*leave `base` out"):
        run(base, str(base))
    with pytest.raises(InputError, match="is no directory"):
        run(tmp_path / "a", str(tmp_path / "nowhere"))


def test_an_adapter_is_claimed_and_told(
    directory: Directory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path / "a", directory("llama"), ("q_proj",))
    assert claims_directory(str(tmp_path / "a"))
    assert claims_weights(str(tmp_path / "a"))
    assert main(["model", str(tmp_path / "a")]) == 0
    assert "adapter a: 3 tensors of its base are changed (rank 2)" in capsys.readouterr().out
    assert main(["model", str(tmp_path / "a"), "--loader", "transformer-lens"]) == 1
    assert "holds an adapter" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"peft_type": "IA3"}, "holds an adapter of type IA3, which is not LORA: .*merge_and_unload"),
        ({"use_qalora": True}, "is a LoRA with use_qalora, which gausslens does not know"),
        ({"alora_invocation_tokens": [1]}, "is a LoRA with alora_invocation_tokens"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "is a LoRA with target_parameters"),
        ({"init_lora_weights": "pissa"}, "began with init_lora_weights: 'pissa', which changes .* convert it"),
        ({"r": 3}, r"lora_A of model\.layers\.0\.self_attn\.q_proj is \[2, 24\], its rank in adapter_config.json 3"),
        ({"lora_alpha": "much"}, "lora_alpha of .* is 'much': it is a number above 0"),
        ({"rank_pattern": {"q_proj": 0}}, "r of .* is 0: it is a number above 0"),
        ({"lora_alpha": math.nan}, r"adapter_config\.json: lora_alpha of .* is nan: it is a number above 0"),
        ({"r": math.inf}, "r of .* is inf: it is a number above 0"),
        ({"rank_pattern": ["q_proj"]}, r"rank_pattern is \['q_proj'\]: it is a table"),
        ({"alpha_pattern": {"(": 2}}, r"the pattern '\(' is no regular expression: missing \)"),
        # Backtracking tries all ways to cut a name that does not fit.
        (
            {"alpha_pattern": {"(.|..|...)" * 25 + "[XY]": 2}},
            r"is not matched with model\.layers.*in 1 s: write it simpler",
        ),
    ],
)
@pytest.mark.parametrize("opens", [run, files])
def test_adapters_of_other_kinds_are_refused_by_name(
    opens: Callable[..., Any], config: dict[str, Any], told: str, directory: Directory, tmp_path: Path
) -> None:
    plant(tmp_path / "a", directory("llama"), ("q_proj",), config)
    with pytest.raises(ModelError, match=told):
        opens(tmp_path / "a")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"0.self_attn.w_proj.lora_A.weight": (2, 24), "0.self_attn.w_proj.lora_B.weight": (9, 2)},
         r"changes model\.layers\.0\.self_attn\.w_proj\.weight \[9, 24\], and .*llama.* has no such tensor"),
        ({"0.self_attn.k_proj.lora_A.weight": (2, 24), "0.self_attn.k_proj.lora_B.weight": (24, 2)},
         r"changes model\.layers\.0\.self_attn\.k_proj\.weight \[24, 24\], which in .* is \[12, 24\]"),
        ({"0.self_attn.k_proj.lora_A.weight": (2, 24)}, r"lora_A and lora_B of .*k_proj are not both there"),
        ({"0.self_attn.k_proj.lora_A.weight": (2, 24), "0.self_attn.k_proj.lora_B.weight": (12, 3)},
         r"lora_A \[2, 24\] and lora_B \[12, 3\] of .*k_proj make no matrix"),
        ({"0.self_attn.k_proj.lora_C.weight": (2, 24)}, "lora_C.weight: an adapter's tensor that gauss"),
        ({"0.self_attn.score.weight": (5, 24)}, r"changes model\.layers\.0\.self_attn\.score\.weight \[5, 24\]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("opens", [run, files])
def test_tensors_that_do_not_fit_are_refused_by_name_and_shapes(
    opens: Callable[..., Any], changes: dict[str, tuple[int, ...]], told: str, directory: Directory, tmp_path: Path
) -> None:
    tensors = {f"{PREFIX}model.layers.{name}": torch.ones(shape) for name, shape in changes.items()}
    write(tmp_path / "a", tensors, {"base_model_name_or_path": str(directory("llama"))})
    with pytest.raises(ModelError, match=told):
        opens(tmp_path / "a")


def test_an_embedding_of_another_vocabulary_is_refused(directory: Directory, tmp_path: Path) -> None:
    tensors = {f"{PREFIX}model.embed_tokens.weight": torch.ones(64, 24)}
    write(tmp_path / "a", tensors, {"base_model_name_or_path": str(directory("llama"))})
    with pytest.raises(ModelError, match=r"embed_tokens\.weight \[64, 24\], which in .* is \[61, 24\].*vocabulary"):
        files(tmp_path / "a")


def test_numbers_that_are_none_are_refused(directory: Directory, tmp_path: Path) -> None:
    plant(tmp_path / "a", directory("llama"), ("q_proj",))
    file = tmp_path / "a" / "adapter_model.safetensors"
    held = load_file(file)
    name = sorted(held)[0]
    held[name][0, 0] = math.nan
    save_file(held, file)
    with pytest.raises(ModelError, match=r"NaN or infinite: .*layers\.0\.self_attn\.q_proj\.lora_A"):
        files(tmp_path / "a").tensor(0, "W_Q")
    with pytest.raises(ModelError, match="NaN or infinite"):
        built(tmp_path / "a")
    held[name] = held[name].nan_to_num().to(torch.int32)
    save_file(held, file)
    with pytest.raises(ModelError, match="stored as integers"):
        files(tmp_path / "a")
    file.unlink()
    with pytest.raises(ModelError, match=r"no weights beside adapter_config\.json"):
        files(tmp_path / "a")
    (tmp_path / "a" / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"adapter_config\.json: cannot be read"):
        run(tmp_path / "a")


def test_a_config_that_is_a_list_is_told(directory: Directory, tmp_path: Path) -> None:
    plant(tmp_path / "a", directory("llama"), ("q_proj",))
    (tmp_path / "a" / "adapter_config.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"adapter_config\.json: holds a list, not the settings of an adapter"):
        run(tmp_path / "a")


def _laid_over(path: Path) -> torch.Tensor:
    base = files(Path(json.loads((path / "adapter_config.json").read_text())["base_model_name_or_path"]))
    return lora(LayerWeights(base, 0), LoraParameters(path=str(path)), Generators(0, 0))["W_Q"]


@pytest.mark.parametrize("opens", [built, lambda path: files(path).tensor(0, "W_Q"), _laid_over])
def test_a_scale_that_makes_infinities_is_told_by_file_and_tensor(
    opens: Callable[..., Any], directory: Directory, tmp_path: Path
) -> None:
    plant(tmp_path / "a", directory("llama"), ("q_proj",), {"lora_alpha": 1e60})
    told = r"a/adapter_model\.safetensors: .*layers\.0\.self_attn\.q_proj\.lora_A\.weight, scaled by 5e\+59 .*infinite"
    with pytest.raises(ModelError, match=told):
        opens(tmp_path / "a")


@pytest.mark.parametrize("opens", [run, files])
def test_weights_under_names_of_their_publisher_are_no_model_beside_an_adapter(
    opens: Callable[..., Any], directory: Directory, tmp_path: Path
) -> None:
    both = copied(directory("llama"), tmp_path / "both")
    (both / "model.safetensors").rename(both / "consolidated.safetensors")
    plant(both, directory("llama"), ("q_proj",))
    for base in (None, str(directory("llama"))):
        with pytest.raises(ModelError, match=r"a model in consolidated\.\*, which is not read: move that elsewhere"):
            opens(both, base)
    (both / "adapter_config.json").unlink()
    with pytest.raises(ModelError, match="no weights there") as caught:
        opens(both)
    assert "transformers_weights" not in str(caught.value)


def test_what_may_be_meant_is_said_in_brackets(directory: Directory, tmp_path: Path) -> None:
    tensors = {f"{PREFIX}model.layers.0.self_attn.q_prj.weight": torch.ones(24, 24)}
    write(tmp_path / "a", tensors, {"base_model_name_or_path": str(directory("llama"))})
    with pytest.raises(ModelError, match=r"no such tensor \(did you mean .*q_proj\.weight.*\?\): is this the model"):
        files(tmp_path / "a")
    write(tmp_path / "a", {f"{PREFIX}quite.other": torch.ones(2)}, {"base_model_name_or_path": str(directory("llama"))})
    with pytest.raises(ModelError, match=r"no such tensor \(there are .*\.\.\.\): is this the model"):
        files(tmp_path / "a")


@pytest.mark.parametrize("opens", [run, files])
def test_an_adapter_beside_base_weights_is_never_ignored(
    opens: Callable[..., Any], directory: Directory, tmp_path: Path
) -> None:
    both = copied(directory("llama"), tmp_path / "both")
    plant(both, directory("llama"), ("q_proj",))
    with pytest.raises(ModelError, match=r"a model and, beside it, an adapter .* move .*path: ADAPTER, base: both"):
        opens(both)
    (both / "model.safetensors").unlink()  # some trainers leave the config of the base beside the adapter
    assert opens(both).info.facts["notes"] == ("adapter both: 3 tensors of its base are changed (rank 2)",)
    assert json.loads((both / "config.json").read_text())["model_type"] == "llama"
