"""The second engine: what a TransformerBridge gives is what plain transformers give, or it is not given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_decoders import BRIDGED

from gausslens import SITES, Batch, Context, ModelError, ModelSpec, Request, Tokens, Twin
from gausslens.__main__ import main
from gausslens.runs.requests import check_request
from gausslens_models.analyses.capture import RawCapture
from gausslens_models.capture.bridge_engine import BridgeEngine
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.families import layout
from gausslens_models.loading.bridge import BridgedModel, open_bridge
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import CheckpointModel
from gausslens_models.parameters import CaptureParameters, TransformersParameters

Opens = Callable[[str], PretrainedModel]
HEADLESS = ("gpt2-headless", "bert")
SILENT = {"gpt_neox": {"q_rot", "k_rot"}, "phi3": {"q_rot", "k_rot"}, "bert": {"scores"}, "opt": {"scores"}}


@pytest.fixture(scope="module")
def bridged(directory: Callable[[str], Path]) -> Callable[[str], BridgedModel]:
    made: dict[str, BridgedModel] = {}

    def of(name: str) -> BridgedModel:
        if name not in made:
            made[name] = open_bridge(ModelSpec(str(directory(name)), TransformersParameters()))
        return made[name]

    return of


def test_the_proof_holds(which: str, bridged: Callable[[str], BridgedModel]) -> None:
    if which in HEADLESS:
        with pytest.raises(ModelError, match="loader: transformers"):
            BridgeEngine().prove(bridged(which))
        return
    findings = BridgeEngine().prove(bridged(which))
    assert [f for f in findings if not f.holds] == []
    assert any(f.what == "logits" for f in findings)


def test_both_engines_give_the_same(
    which: str, bridged: Callable[[str], BridgedModel], opened: Opens, prompts: Tokens
) -> None:
    if which in HEADLESS:
        return
    model, plain = bridged(which), opened(which)
    sites = BridgeEngine().sites(model)
    ones, others = _all(BridgeEngine(), model, prompts, sites), _all(TransformersEngine(), plain, prompts, sites)
    assert [b.layer for b in ones] == [b.layer for b in others]
    for one, other in zip(ones, others, strict=True):
        assert set(one.arrays) == set(other.arrays)
        for site, array in one.arrays.items():
            mine, theirs = array, other[site]
            if site in ("scores", "pattern"):
                mine, theirs = mine.transpose(1, 2), theirs.transpose(1, 2)
            mine, theirs = mine[one.mask], theirs[one.mask]
            finite = theirs.isfinite()
            assert torch.equal(mine.isfinite(), finite), site
            assert torch.allclose(mine[finite], theirs[finite], atol=2e-5), site


def test_what_it_lacks_is_what_it_was_seen_to_lack(
    which: str, bridged: Callable[[str], BridgedModel], opened: Opens
) -> None:
    if which in HEADLESS:
        return
    lost = set(TransformersEngine().sites(opened(which))) - set(BridgeEngine().sites(bridged(which)))
    assert lost == SILENT.get(bridged(which).info.family, set())


def _all(engine: TransformersEngine, model: PretrainedModel, tokens: Tokens, sites: tuple[str, ...]) -> list[Batch]:
    found: list[Batch] = []
    engine.run(Twin(model), tokens, np.arange(len(tokens)), Request(sites), found.append)
    return found


def test_edits_act_as_with_plain_transformers_or_are_refused(
    which: str, directory: Callable[[str], Path], opened: Opens, prompts: Tokens, written: Any
) -> None:
    if which in HEADLESS:
        return
    model, plain = open_bridge(ModelSpec(str(directory(which)), TransformersParameters())), opened(which)
    names = dict.fromkeys(n for layer in (0, None) for n in plain.names(layer))
    ids = prompts.ids[0][None]
    before = BridgeEngine().runner(Twin(model)).forward(ids)["logits"]
    for name in names:

        def change(n: str, tensor: torch.Tensor, name: str = name) -> torch.Tensor | None:
            return tensor * 1.5 + 0.3 if n == name else None

        expected = TransformersEngine().runner(written(plain, change=change)).forward(ids)["logits"]
        fused = model.info.family in ("gpt2", "gpt_neox", "phi3") and plain.layout.family.tensors.get(name)
        if fused and fused.part:
            with pytest.raises(ModelError, match="copies"):
                BridgeEngine().runner(written(model, change=change)).forward(ids)
            continue
        found = BridgeEngine().runner(written(model, change=change)).forward(ids)["logits"]
        assert torch.allclose(found, expected, atol=1e-4), name
    assert torch.equal(BridgeEngine().runner(Twin(model)).forward(ids)["logits"], before)


SMALL = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
MORE = SMALL | {"num_key_value_heads": 2, "intermediate_size": 40}
UNKNOWN = {
    "falcon": ("FalconConfig", SMALL, "FalconForCausalLM"),
    "gptj": ("GPTJConfig", SMALL | {"rotary_dim": 4}, "GPTJForCausalLM"),
    "mixtral": (
        "MixtralConfig",
        SMALL | {"num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 2},
        "MixtralForCausalLM",
    ),
}


@pytest.mark.parametrize("stranger", UNKNOWN)
def test_families_without_a_table_run_and_have_no_weights(
    stranger: str, tmp_path: Path, prompts: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "FAMILIES", ())
    config, arguments, model_class = UNKNOWN[stranger]
    torch.manual_seed(0)
    getattr(transformers, model_class)(getattr(transformers, config)(**arguments)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"'{stranger}'.*loader: transformer-lens"):
        open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    model = open_bridge(ModelSpec(str(tmp_path), TransformersParameters()))
    with pytest.raises(ModelError, match=rf"'{stranger}'.*nobody claims .*weight"):
        model.names(0)
    engine = BridgeEngine()
    findings = engine.prove(model)
    assert [f for f in findings if not f.holds] == []
    assert {"resid_pre", "resid_post", "pattern", "z", "logits"} <= set(engine.sites(model))
    for site in SITES:
        if site in engine.sites(model):
            assert _all(engine, model, prompts, (site,))
        else:
            with pytest.raises(ModelError, match=f"no site '{site}'"):
                _all(engine, model, prompts, (site,))


STATES = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 2}
# Types that have no table. Those with patterns, with a stream alone, and with nothing that could be trusted.
PATTERNS = {
    "afmoe": ("AfmoeConfig", MORE | EXPERTS, "AfmoeForCausalLM"),
    "laguna": ("LagunaConfig", MORE | EXPERTS, "LagunaForCausalLM"),
    "jetmoe": ("JetMoeConfig", MORE | {"num_local_experts": 4, "kv_channels": 6}, "JetMoeForCausalLM"),
    "falcon_h1": (
        "FalconH1Config",
        MORE | {"mamba_d_ssm": 48, "mamba_n_heads": 4, "mamba_d_head": 12, "mamba_d_state": 8, "mamba_n_groups": 1},
        "FalconH1ForCausalLM",
    ),
}
STREAM = {
    "mamba": ("MambaConfig", STATES | {"state_size": 8}, "MambaForCausalLM"),
    "mamba2": (
        "Mamba2Config",
        STATES | {"state_size": 8, "num_heads": 4, "head_dim": 12, "n_groups": 1},
        "Mamba2ForCausalLM",
    ),
    "falcon_mamba": ("FalconMambaConfig", STATES | {"state_size": 8}, "FalconMambaForCausalLM"),
    "rwkv": ("RwkvConfig", STATES, "RwkvForCausalLM"),
    "zamba2": (
        "Zamba2Config",
        MORE
        | {"num_hidden_layers": 4, "layers_block_type": ["mamba", "mamba", "hybrid", "mamba"], "num_mem_blocks": 1}
        | {"mamba_d_state": 8, "mamba_ngroups": 1, "mamba_headdim": 12, "n_mamba_heads": 4},
        "Zamba2ForCausalLM",
    ),
}
NOTHING = {
    "hrm_text": ("HrmTextConfig", MORE, "HrmTextForCausalLM"),
    "openai-gpt": (
        "OpenAIGPTConfig",
        {"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 4},
        "OpenAIGPTLMHeadModel",
    ),
    "olmo_hybrid": ("OlmoHybridConfig", MORE | DELTA | {"pad_token_id": None}, "OlmoHybridForCausalLM"),
    "gemma4_text": (
        "Gemma4TextConfig",
        MORE | {"head_dim": 8, "global_head_dim": 12, "layer_types": ["sliding_attention", "full_attention"]},
        "Gemma4ForCausalLM",
    ),
    "deepseek_v4": (
        "DeepseekV4Config",
        MORE | {"head_dim": 8, "q_lora_rank": 10, "o_lora_rank": 8, "o_groups": 2, "index_n_heads": 2},
        "DeepseekV4ForCausalLM",
    ),
    "glm_moe_dsa": (
        "GlmMoeDsaConfig",
        MORE
        | {"q_lora_rank": 10, "kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5}
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
        | {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4, "num_key_value_heads": 4},
        "GlmMoeDsaForCausalLM",
    ),
    "diffllama": ("DiffLlamaConfig", MORE, "DiffLlamaForCausalLM"),
    "gpt_neox_japanese": ("GPTNeoXJapaneseConfig", SMALL, "GPTNeoXJapaneseForCausalLM"),
    "vit": ("ViTConfig", {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}, "ViTModel"),
    "dbrx": (
        "DbrxConfig",
        {"vocab_size": 61, "d_model": 24, "n_layers": 2, "n_heads": 4}
        | {"ffn_config": {"ffn_hidden_size": 16}, "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4}},
        "DbrxForCausalLM",
    ),
}
UNSERVED = PATTERNS | STREAM | NOTHING


@pytest.fixture
def unserved(tmp_path: Path) -> Callable[[str], ModelSpec]:
    def of(name: str) -> ModelSpec:
        config, arguments, model_class = UNSERVED[name]
        torch.manual_seed(0)
        module = getattr(transformers, model_class)(getattr(transformers, config)(**arguments))
        for parameter in filter(lambda p: p.is_floating_point(), module.parameters()):
            parameter.data += 0.1 * torch.randn(parameter.shape)
        module.save_pretrained(tmp_path)
        return ModelSpec(str(tmp_path), TransformersParameters())

    return of


@pytest.mark.parametrize("name", UNSERVED)
def test_the_bridge_is_recommended_where_it_opens_a_model_and_there_alone(
    name: str, unserved: Callable[[str], ModelSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = unserved(name)
    with pytest.raises(ModelError) as told:
        open_pretrained(spec)
    assert ("transformer-lens" in str(told.value)) == (name not in NOTHING)
    status = main(["model", spec.path, "--loader", "transformer-lens"])
    said = " ".join(capsys.readouterr())
    assert "loader: transformer" not in said  # it would be a circle
    assert "Available architectures" not in said
    assert len(said) < 3000
    sites = said.partition("sites  ")[2].partition("memory")[0]
    if name in NOTHING:
        assert " resid_pre " not in sites or "proof        all" not in said
        assert "defect" not in said
        return
    assert status == 0
    assert f"tensors      none: {spec.path}: the model type '{name}'" in said
    assert "gausslens has no table of this family" in said
    assert "proof        all" in said
    assert (" pattern " in sites) == (name in PATTERNS)
    parameters = sum(p.numel() for p in transformers.AutoModelForCausalLM.from_pretrained(spec.path).parameters())
    assert f"parameters   {parameters:,}\n" in said


@pytest.mark.parametrize("name", ["bloom", "mpt", "mpnet", "deberta-v2", "big_bird", *BRIDGED])
def test_the_refusal_of_scores_names_the_bridge_where_it_shows_them(
    name: str, directory: Callable[[str], Path], opened: Opens, prompts: Tokens
) -> None:
    with pytest.raises(
        ModelError, match=r"no site 'scores' \(this family computes it where nothing can see it"
    ) as told:
        check_request(
            RawCapture(CaptureParameters(sites=["scores"]), Context(opened(name).info, 0, prompts)),
            TransformersEngine(),
            opened(name),
        )
    try:
        model = open_bridge(ModelSpec(str(directory(name)), TransformersParameters()))
        shown = "scores" in BridgeEngine().sites(model)
    except ModelError:
        shown = False
    assert ("`loader: transformer-lens` shows it" in str(told.value)) == shown


@pytest.mark.parametrize("name", [name for name in BRIDGED if name != "falcon-groups"])
def test_families_that_only_a_bridge_runs_have_their_tensors(
    name: str, bridged: Callable[[str], BridgedModel], as_files: Callable[[str], CheckpointModel]
) -> None:
    model, files = bridged(name), as_files(name)
    findings = BridgeEngine().prove(model)
    assert [f for f in findings if not f.holds] == []
    assert {f"{what} of layer 1 from weights" for what in ("q", "k", "v", "pattern", "z")} <= {f.what for f in findings}
    for layer in (None, *model.info.layers):
        assert files.names(layer) == model.names(layer)
        for tensor in files.names(layer):
            assert torch.equal(files.tensor(layer, tensor), model.tensor(layer, tensor)), (layer, tensor)
            assert files.initial(layer, tensor, 1).shape == files.tensor(layer, tensor).shape
    assert files.info.facts["unclaimed"] == ()


def test_grouped_falcon_is_read_from_its_files(
    directory: Callable[[str], Path], as_files: Callable[[str], CheckpointModel]
) -> None:
    """TransformerLens does not wrap this one; q, k and v are compared with what its own module splits."""
    files = as_files("falcon-groups")
    module = transformers.FalconForCausalLM.from_pretrained(directory("falcon-groups"), attn_implementation="eager")
    attention = module.transformer.h[1].self_attention
    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(0))
    parts = attention._split_heads(attention.query_key_value(x))  # each [prompt, position, head, d_head], k, v repeated
    for letter, part in zip("QKV", parts, strict=True):
        ours = torch.einsum("ptd,hde->pthe", x, files.tensor(1, f"W_{letter}")) + files.tensor(1, f"b_{letter}")
        theirs = part if letter == "Q" else part[:, :, ::2]
        assert torch.allclose(ours, theirs, atol=1e-5), letter


def test_what_has_no_single_stack_is_refused(tmp_path: Path) -> None:
    config = transformers.T5Config(vocab_size=61, d_model=24, d_kv=6, d_ff=32, num_layers=2, num_heads=4)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="t5 has two stacks"):
        BridgeEngine().sites(open_bridge(ModelSpec(str(tmp_path), TransformersParameters())))


def test_a_live_bridge(directory: Callable[[str], Path], opened: Opens, prompts: Tokens) -> None:
    plain = opened("qwen2")
    live = open_bridge(ModelSpec(str(directory("qwen2")), TransformersParameters())).bridge
    model = open_bridge(ModelSpec("live:TransformerBridge", TransformersParameters(), model=live))
    for layer in (None, 0):
        assert model.names(layer) == plain.names(layer)
        for name in plain.names(layer):
            assert torch.equal(model.tensor(layer, name), plain.tensor(layer, name))
    assert [f for f in BridgeEngine().prove(model) if not f.holds] == []
    one, other = (_all(e, m, prompts, ("z",)) for e, m in ((BridgeEngine(), model), (TransformersEngine(), plain)))
    assert all(torch.allclose(a["z"][a.mask], b["z"][a.mask], atol=1e-5) for a, b in zip(one, other, strict=True))


def test_replacement_is_refused(directory: Callable[[str], Path]) -> None:
    model = open_bridge(ModelSpec(str(directory("qwen2")), TransformersParameters()))
    with pytest.raises(ModelError, match="loader: transformers"):
        BridgeEngine().runner(Twin(model)).forward(np.array([[3, 4]]), replace=lambda layer, s, p, v: p)


def test_generation(directory: Callable[[str], Path], opened: Opens) -> None:
    model = open_bridge(ModelSpec(str(directory("qwen2")), TransformersParameters()))
    start = np.array([[3, 4, 5]])
    made = BridgeEngine().runner(Twin(model)).generate(start, 6, stop=())
    plain = TransformersEngine().runner(Twin(opened("qwen2"))).generate(start, 6, stop=())
    assert made[0].tolist() == plain[0].tolist()


def test_an_exception_leaves_no_hook(directory: Callable[[str], Path], prompts: Tokens) -> None:
    model = open_bridge(ModelSpec(str(directory("qwen2")), TransformersParameters()))
    engine = BridgeEngine()
    sites = engine.sites(model)

    def fails(batch: Batch) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        engine.run(Twin(model), prompts, np.arange(3), Request(sites), fails)
    assert [name for name, point in model.bridge.hook_dict.items() if point.fwd_hooks] == []
