"""Encoders and others beside the plain decoders: what holds of every family holds of each of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_decoders import BRIDGED, SMALL
from tiny_encoders import ENCODERS
from tiny_hybrids import HYBRIDS
from tiny_latent import LATENT
from tiny_relative import RELATIVE
from transformers import AutoConfig, BloomConfig, FalconConfig, FalconForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from gausslens import ModelError, ModelSpec, Request, Tokens, Twin
from gausslens.contract.twin import check_edit
from gausslens_models.capture.bridge_engine import BridgeEngine
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.families.facts import slopes
from gausslens_models.families.layout import FAMILIES, family_of
from gausslens_models.families.refused import REFUSED, reason
from gausslens_models.loading.bridge import open_bridge
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import CheckpointModel, open_weights
from gausslens_models.maths.attention_formulas import bucket
from gausslens_models.parameters import TransformersParameters, WeightsParameters
from gausslens_reinit.plugin import GAUSSIAN

from . import test_capture, test_proof, test_weights
from .test_capture import captured

MODELS = ENCODERS | RELATIVE | LATENT | HYBRIDS | BRIDGED
# What a class sets to the same numbers always.
SET = ("A_log", "W_angles")
# What a class leaves undone when it initialises.
UNDONE = {"data2vec-text": {"b_U"}, "luke": {"b_U", "b_U_entity"}}
Opens = Callable[[str], PretrainedModel]
Files = Callable[[str], CheckpointModel]
every = pytest.mark.parametrize("name", MODELS)


@every
def test_the_proof_holds(name: str, opened: Opens) -> None:
    """Each site that is there is made again from the weights; but not scores with other terms, nor their pattern."""
    model = opened(name)
    findings = TransformersEngine().prove(model)
    assert [f for f in findings if not f.holds] == []
    told = {f.what for f in findings}
    assert {"logits" if model.headed else "final hidden state"} < told
    proved = [s for s in ("q", "k", "v", "q_rot", "k_rot", "scores", "pattern", "z", "attn_out") if s in model.sites]
    if model.info.facts.position == "disentangled":
        proved.remove("pattern")
    for layer in model.info.layers:
        if "pattern" not in model.info.lacking.get(layer, {}):
            assert {f"{what} of layer {layer} from weights" for what in proved} < told
            assert f"pattern of layer {layer}" in told


@every
def test_runners_are_eager_attention(name: str, opened: Opens) -> None:
    test_proof.test_runners_are_eager_attention_bit_for_bit(name, opened)


@every
def test_files_and_modules_agree(name: str, opened: Opens, as_files: Files) -> None:
    test_weights.test_weights_from_files_are_the_loaded_models(name, opened, as_files)
    if name != "nemotron_h":  # whose layers of attention have no MLP
        test_weights.test_shapes_are_transformer_lens(name, as_files)


@every
def test_every_site_is_given_or_refused(name: str, opened: Opens, prompts: Tokens) -> None:
    test_capture.test_every_site_is_given_or_refused_by_name(name, opened, prompts)


@every
def test_every_parameter_is_claimed(name: str, opened: Opens) -> None:
    """Each number once; rows of a position embedding before the first position are nobody's."""
    model = opened(name)
    counted = 0
    for layer in (None, 0) if model.layout.family.shared else (None, *model.info.layers):
        names = set(model.names(layer)) - model.layout.products(layer).keys()
        names -= {"W_U"} if model.layout.tied else set()
        counted += sum(model.tensor(layer, n).numel() for n in names)
    skipped = sum(p.slot.skip * model.layout.shapes[p.theirs][-1] for p in model.layout.places[None].values())
    assert counted + skipped == sum(p.numel() for p in model.module.parameters()) == model.info.n_parameters
    assert model.info.facts["unclaimed"] == ()


@every
def test_the_initialisation_is_drawn(name: str, opened: Opens) -> None:
    """By the class's own law: all but what it leaves undone, which is named."""
    model = opened(name)
    for layer in (None, 0, 1):
        for ours in set(model.names(layer)) - UNDONE.get(name, set()):
            one = model.initial(layer, ours, 1)
            assert one.shape == model.tensor(layer, ours).shape
            assert torch.isfinite(one).all()
            assert torch.equal(one, model.initial(layer, ours, 1))
            if one.numel() > 1 and one.std() > 0 and ours not in SET:
                assert not torch.equal(one, model.initial(layer, ours, 2))
                assert not torch.equal(one, model.tensor(layer, ours))


def test_positions_behind_the_paddings_are_not_counted(opened: Opens) -> None:
    model = opened("roberta")
    assert model.info.max_positions == model.tensor(None, "W_pos").shape[0] == 64


@pytest.mark.parametrize("kind", ["Electra", "Bert", "Albert", "Ernie", "BigBird", "MegatronBert", "RoCBert"])
def test_models_for_pre_training_have_the_head_that_they_were_saved_with(kind: str, tmp_path: Path) -> None:
    """ELECTRA's tells which tokens were replaced: there is no W_U in it. All others predict tokens."""
    config = getattr(transformers, f"{kind}Config")(**SMALL | {"attention_type": "original_full"})
    module = getattr(transformers, f"{kind}ForPreTraining")(config)
    module.save_pretrained(tmp_path)
    headed = module.get_output_embeddings() is not None
    assert headed == (kind != "Electra")
    model = open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    for one in (model, open_weights(ModelSpec(str(tmp_path), WeightsParameters()))):
        assert ("W_U" in one.names(None), one.headed) == (headed, headed)
        assert torch.equal(one.tensor(None, "W_E"), module.get_input_embeddings().weight)
    findings = TransformersEngine().prove(model)
    assert [f for f in findings if not f.holds] == []
    assert ("logits" if headed else "final hidden state") in {f.what for f in findings}


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("name", ["roberta", "xlm-roberta-xl", "camembert", "luke", "ibert", "esm-absolute"])
def test_positions_begin_behind_the_row_of_the_padding(name: str, padding: int, tmp_path: Path) -> None:
    """Wherever it is. The proof makes the stream before the first layer of them, but where there is more to it."""
    config_class, arguments, model_class = ENCODERS[name]
    config = getattr(transformers, config_class)(**arguments | {"pad_token_id": padding})
    module = getattr(transformers, model_class)(config)
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    module.save_pretrained(tmp_path)
    model = open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    rows = next(p for n, p in module.named_parameters() if n.endswith("embeddings.position_embeddings.weight"))
    assert model.info.max_positions == len(rows) - padding - 1
    assert torch.equal(model.tensor(None, "W_pos"), rows[padding + 1 :])
    files = open_weights(ModelSpec(str(tmp_path), WeightsParameters()))
    assert torch.equal(files.tensor(None, "W_pos"), rows[padding + 1 :])
    findings = TransformersEngine().prove(model)
    assert [f for f in findings if not f.holds] == []
    told = {f.what: f.left_out for f in findings}
    assert "resid_pre of layer 0 from weights" in told or told["resid_pre of layer 0"]
    if name in ("roberta", "camembert", "esm-absolute"):
        assert "resid_pre of layer 0" not in told


def test_windows_of_encoders_go_to_both_sides(opened: Opens, prompts: Tokens) -> None:
    batch = captured(opened("modernbert"), prompts, Request(("scores",), layers=(1,)))[0]
    places = torch.arange(batch["scores"].shape[-1])
    near = (places[:, None] - places[None, :]).abs() <= 4  # half of the eight that its config says
    n = int(batch.mask[0].sum())
    assert torch.equal(batch["scores"][0, 0, :n, :n].isfinite(), near[:n, :n])


def test_a_query_that_is_scaled_before_it_is_turned_is_shown_without(opened: Opens, prompts: Tokens) -> None:
    """Turning keeps lengths: q and q_rot of ESM have the same, whatever the model does with the scale."""
    model = opened("esm")
    batch = captured(model, prompts, Request(("q", "q_rot"), layers=(0,)))[0]
    assert torch.allclose(batch["q"].norm(dim=-1), batch["q_rot"].norm(dim=-1), atol=1e-5)
    assert model.info.facts.scale(0) == 6**-0.5


def test_a_norm_that_is_not_there_is_not_taken(opened: Opens) -> None:
    model = opened("modernbert")
    assert "ln1.w" not in model.names(0)
    assert "ln1.w" in model.names(1)
    assert all(f.holds for f in TransformersEngine().prove(model))


@pytest.mark.parametrize("name", ["bloom", "mpt", "mpt-six-heads"])
def test_bridges_show_the_scores_that_the_family_hides(name: str, directory: Callable[[str], Path]) -> None:
    model = open_bridge(ModelSpec(str(directory(name)), TransformersParameters()))
    findings = BridgeEngine().prove(model)
    assert [f for f in findings if not f.holds] == []
    assert {f"scores of layer {n} from weights" for n in range(3)} < {f.what for f in findings}
    assert model.names(0)


def test_what_nothing_can_see_is_refused_with_the_loader_that_can(opened: Opens, prompts: Tokens) -> None:
    model = opened("bloom")
    with pytest.raises(ModelError, match=r"no site 'scores' \(.*`loader: transformer-lens`"):
        captured(model, prompts, Request(("scores",)))
    runner = TransformersEngine().runner(Twin(model))
    with pytest.raises(ModelError, match="replacement"):
        runner.forward(np.array([[3, 4, 5]]), replace=lambda layer, scores, pattern, v: None)
    assert len(runner.generate(np.array([[3, 4, 5]]), 3)[0]) == 3


def test_slopes_are_the_papers() -> None:
    """Press et al. 2021: eight heads have 1/2, 1/4, ... 1/256; twelve have those and every other of sixteen."""
    config = BloomConfig(n_head=8)
    assert slopes(config, 8, 1.0) == tuple(2.0**-n for n in range(1, 9))
    between = tuple(2.0 ** -(n / 2) for n in (1, 3, 5, 7))
    assert slopes(config, 12, 1.0) == pytest.approx((*(2.0**-n for n in range(1, 9)), *between))


def test_buckets_are_the_models() -> None:
    ahead = torch.arange(-300, 301)
    theirs = MPNetEncoder.relative_position_bucket(ahead)
    assert torch.equal(bucket(ahead, 32, 128), theirs)


@pytest.mark.parametrize("heads", [4, 6])
def test_slopes_that_transformers_adds_twice_are_refused_but_weights_read(heads: int, tmp_path: Path) -> None:
    config = FalconConfig(
        vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=heads, alibi=True, multi_query=False
    )
    FalconForCausalLM(config).save_pretrained(tmp_path)
    model = open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    with pytest.raises(ModelError, match=r"alibi=True does not run.*twice.*loader: weights"):
        TransformersEngine().prove(model)
    # And so it is: the two ways in which transformers computes them differ.
    ids = torch.randint(3, 61, (1, 12), generator=torch.Generator().manual_seed(0))
    eager, fused = (FalconForCausalLM.from_pretrained(tmp_path, attn_implementation=a) for a in ("eager", "sdpa"))
    with torch.no_grad():
        assert not torch.allclose(eager(ids).logits, fused(ids).logits, atol=1e-4)
    files = open_weights(ModelSpec(str(tmp_path), WeightsParameters()))
    assert files.tensor(0, "W_Q").shape == (heads, 24, 24 // heads)
    assert files.info.facts["alibi_slopes"] == slopes(config, heads, (24 // heads) ** -0.5)


@pytest.mark.parametrize("name", HYBRIDS)
def test_layers_without_attention_say_so(name: str, opened: Opens, prompts: Tokens) -> None:
    model = opened(name)
    for layer in (0, 2):
        assert "no attention" in model.info.lacking[layer]["pattern"]
        assert "W_Q" not in model.names(layer)
    assert "pattern" not in model.info.lacking.get(1, {})
    batches = captured(model, prompts, Request(("resid_pre", "pattern")))
    assert [set(b.arrays) for b in batches] == [{"resid_pre"}, {"resid_pre", "pattern"}, {"resid_pre"}]


def test_gates_of_heads_are_tensors_of_their_own(opened: Opens) -> None:
    """Half of the rows of each head of q_proj are its query, half its gate."""
    model = opened("qwen3_next")
    rows = model.module.get_parameter("model.layers.1.self_attn.q_proj.weight").unflatten(0, (4, 2, 8))
    assert torch.equal(model.tensor(1, "W_Q")[3], rows[3, 0].T)
    assert torch.equal(model.tensor(1, "W_gate_z")[3], rows[3, 1].T)


REFUSALS = {
    "mamba": "no attention: a state is carried",
    "longformer": "sparse",
    "xlm": "not modules of their own",
    "convbert": "convolutions",
    "t5": "two stacks of layers",
    "bart": "two stacks of layers",
    "llava": "reads more than text. Its text stack is of type 'llama'",
}


@pytest.mark.parametrize("model_type", REFUSALS)
def test_types_that_are_not_served_are_refused_by_their_reason(model_type: str) -> None:
    config = AutoConfig.for_model(model_type)
    with pytest.raises(ModelError, match=re.escape(REFUSALS[model_type])) as told:
        family_of(config, "here")
    assert len(str(told.value).splitlines()) == 1
    assert len(str(told.value)) < 500


def test_every_type_of_masked_language_models_opens_or_has_a_reason() -> None:
    served = {name for family in FAMILIES for name in family.model_types}
    for name in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        assert name in served or reason(AutoConfig.for_model(name)), name
    assert not served & REFUSED.keys()


def test_configs_that_are_not_served_are_refused_by_their_key() -> None:
    config = BloomConfig(apply_residual_connection_post_layernorm=True)
    with pytest.raises(ModelError, match="bloom with apply_residual_connection_post_layernorm=True is not served"):
        family_of(config, "here")


def test_one_layer_for_all_depths_is_seen_at_each(opened: Opens, prompts: Tokens) -> None:
    model = opened("albert")
    batches = captured(model, prompts, Request(("resid_pre", "resid_post", "pattern", "q", "z")))
    assert [b.layer for b in batches] == [0, 1, 2]
    assert torch.equal(batches[0]["resid_post"], batches[1]["resid_pre"])
    assert not torch.equal(batches[0]["pattern"], batches[1]["pattern"])
    assert torch.equal(model.tensor(0, "W_Q"), model.tensor(2, "W_Q"))
    only = captured(model, prompts, Request(("pattern",), layers=(1,)))
    assert torch.equal(only[0]["pattern"], batches[1]["pattern"])


def test_a_twin_of_one_layer_has_one_layer(opened: Opens, twin_of: Any) -> None:
    """Drawn once: the tensors of all layers are those that run, as of the model; an edit of some is refused."""
    model = opened("albert")
    twin = twin_of(model, (GAUSSIAN, {}))
    one, other = (twin.weights(layer)["W_Q"] for layer in (0, 2))
    assert torch.equal(one, other)
    assert not torch.equal(one, model.tensor(0, "W_Q"))
    ids = np.array([[3, 4, 5]])
    runner = TransformersEngine().runner(twin)
    assert not torch.equal(runner.forward(ids)["logits"], runner.forward(ids, base=True)["logits"])
    q = runner.forward(ids, sites=("resid_pre", "q"))
    normed_by_layer = [q[layer, "q"] for layer in range(3)]
    assert not torch.equal(normed_by_layer[0], normed_by_layer[1])
    with pytest.raises(ModelError, match="an edit of some is one of all: leave out layers"):
        check_edit(replace(twin.edits[0], layers=(1,)), model)
    check_edit(replace(twin.edits[0], layers=(0, 1, 2)), model)
