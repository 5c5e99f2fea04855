"""Each analysis against the same done by hand, on small models; its controls on structure that was planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from against_hooks import Hooked, compared
from gausslens_lens import plugin
from gausslens_lens.parameters import AttributionParameters, DirectParameters, Induction, PatchingParameters, Swap
from gausslens_lens.patching import _random_sets
from gausslens_lens.unembedding import Unembedding

from gausslens import InputError, ModelError, Part, Prompt, Twin
from gausslens.testing import (
    TinyEngine,
    TinyModel,
    check_forward,
    check_references,
    check_section,
    check_stream,
    host_of,
)

WORDS = ("The", "capital", "of", "France", "Italy", "is", "Paris", "Rome", "<s>", "?")
PAIR = {
    "clean": "The capital of France is",
    "corrupted": "The capital of Italy is",
    "answer": " Paris",
    "wrong": " Rome",
}
SWAP = Swap(text="{}xyz", words={"a": "a", "b": "b", "c": "c"})
RULE = Induction(length=4, pairs=4, seed=0)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama whose tokens are words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("llama")
    unknown = {"unk_token": "?"}
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, **unknown))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, **unknown).save_pretrained(place)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    config = LlamaConfig(**sizes, **heads, initializer_range=0.3, tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(place)
    return place


def host() -> Any:
    return host_of("models", lens=plugin)


def test_everything_that_the_plugin_names_exists():
    assert len(check_references(plugin).analyses) >= 7


def test_they_keep_what_the_host_relies_on():
    check_forward(plugin.PATCHING, PatchingParameters(swap=SWAP, random_sets=2))
    check_forward(plugin.ATTRIBUTION, AttributionParameters(swap=SWAP, each_position=True))
    check_forward(plugin.LOGIT)
    check_stream(plugin.TUNED)


def test_patching_is_what_plain_hooks_do(llama: Path):
    for site, (worst, cells, largest, *_) in compared(llama, [0, 1], PAIR, host()).items():
        assert worst <= 1e-6, site
        assert largest > 1e-2, site
        assert cells in {10, 20, 40}, site


def test_attribution_is_what_autograd_gives(llama: Path, gausslens_run: Any):
    sites = ["resid_pre", "mlp_out", "q", "k", "v", "z"]
    study = {
        "model": {"path": str(llama)},
        "prompts": {"source": "text", "text": [PAIR["clean"]]},
        "analyses": [{"use": "lens.attribution", "with": {"pairs": [PAIR], "sites": sites, "each_position": True}}],
    }
    [data] = gausslens_run(study, "models", lens=plugin).of("lens.attribution")["lens.attribution"].values()
    hooked = Hooked(llama, PAIR, "float32")
    for site in sites:
        found = data[f"{site}_change"]
        heads = found.shape[1] if found.ndim == 3 else 1
        for layer in (0, 1):
            by_hand = gradient_by_hand(hooked, site, layer).unflatten(-1, (heads, -1)).sum(-1)
            wanted = by_hand[0].T if found.ndim == 3 else by_hand[0, :, 0]
            np.testing.assert_allclose(found.sel(layer=layer), wanted.numpy(), atol=1e-5, rtol=1e-4)


def gradient_by_hand(hooked: Hooked, site: str, layer: int) -> torch.Tensor:
    """Gradient in the corrupted run times clean less corrupted, before it is summed."""
    seen: list[torch.Tensor] = []

    def kept(x: torch.Tensor) -> torch.Tensor:
        seen.append(x if x.requires_grad else x.clone().requires_grad_(True))
        return seen[-1]

    with hooked.changing(site, layer, kept):
        hooked.metric(hooked.clean)
        [slope] = torch.autograd.grad(hooked.metric(hooked.corrupted), [seen[1]])
    return slope * (seen[0] - seen[1]).detach()


def copying(head: int = 2) -> TinyModel:
    """One head of layer 0 looks at all tokens alike and writes out what W_U reads as these; others whisper."""
    model = TinyModel.of(layers=2, heads=4, kv_heads=4, d_model=16, d_head=16)
    embedding = model.tensor(None, "W_E")
    model.tensor(None, "W_U")[:] = embedding.T
    for layer in (0, 1):
        model.tensor(layer, "W_O").mul_(0.02)
    model.tensor(0, "W_Q")[head] = 0
    model.tensor(0, "W_V")[head] = torch.eye(16)
    model.tensor(0, "W_O")[head] = 3 * torch.eye(16)
    return model


def test_a_head_that_copies_is_found_and_random_heads_are_not():
    asked = PatchingParameters(swap=SWAP, sites=("z",), top=1, random_sets=12)
    found = check_forward(plugin.PATCHING, asked, model=copying(), heads=[0, 1, 2, 3])
    assert (int(found["top_layer"][0]), int(found["top_head"][0])) == (0, 2)
    assert float(found["top_effect"]) == pytest.approx(1, abs=0.1)
    assert float(np.abs(found["random_effect"]).max()) < 0.1
    assert float(found["top_beyond"]) > 5
    assert float(found["top_p"]) == pytest.approx(1 / 4)  # three other heads: three sets, however many are asked for
    assert np.isfinite(found["random_change"]).sum() == 3
    others = np.delete(found["z_effect"].values.ravel(), 2)
    assert np.abs(others).max() < 0.1 < float(found["z_effect"][0, 2])


def test_no_random_set_counts_twice():
    there = [(layer, head) for layer in (0, 1) for head in range(6)]
    for top, possible in (
        ([(0, 1)], 5),
        ([(0, 1), (0, 2), (0, 3)], 1),
        ([(0, 0), (0, 1), (0, 2), (0, 3)], 14),  # any of the layer, but not the top heads again
        ([(0, 1), (1, 2), (1, 3)], 5 * 6),
    ):
        for most in (3, 20, 40):
            sets = _random_sets(top, there, most, np.random.default_rng(0))
            assert len({frozenset(heads) for heads in sets} - {frozenset(top)}) == len(sets) == min(most, possible)
            assert all(sorted(layer for layer, _ in heads) == [layer for layer, _ in top] for heads in sets)


def test_without_structure_the_top_heads_are_no_more_than_random_ones():
    """Their share of random sets that change as much is judged on other pairs: it is not small on most fresh models.

    With 20 sets it is 1/21 at least. Were the top heads nothing but random ones it would be that in 1 of 21 models;
    heads that matter on some pairs may well matter on others, so that more than half of 12 is what is refused.
    """
    shares = []
    for seed in range(12):
        asked = PatchingParameters(
            induction=RULE.model_copy(update={"seed": seed}), sites=("z",), top=2, random_sets=20
        )
        model = TinyModel.of(seed=seed, layers=3, heads=8, kv_heads=8)
        shares.append(float(check_forward(plugin.PATCHING, asked, model=model, layers=[2])["top_p"]))
    assert np.mean(np.array(shares) < 1.5 / 21) <= 0.5


def test_the_logit_lens_ends_in_the_model():
    for model in TinyModel.kinds().values():
        found = check_forward(plugin.LOGIT, model=model)
        assert float(found["kl"][-1]) == pytest.approx(0, abs=1e-9)
        assert float(found["agreement"][-1]) == 1
        assert float(found["own_log_rank"][-1]) == 0
        assert float(found["kl"][0]) > 1e-3


def test_the_logit_lens_is_the_end_of_the_model_on_each_stream():
    model, text = TinyModel.of(norm="layer", gains=True, biases=True, mlp=True), "a stream"
    found = check_forward(plugin.LOGIT, model=model, texts=[text])
    runner = TinyEngine().runner(Twin(model))
    ids = model.tokenise([Prompt((Part(text),))]).ids[0]
    stream = runner.forward(ids[None], sites=("resid_pre",))[1, "resid_pre"][0].double()
    norm = torch.nn.functional.layer_norm
    gain, shift, matrix = (model.tensor(None, name).double() for name in ("ln_final.w", "ln_final.b", "W_U"))
    lens = (norm(stream, (16,), gain, shift, model.info.facts.epsilon) @ matrix).softmax(-1)
    given = lens[torch.arange(1, len(ids) - 1), torch.as_tensor(ids[2:])]
    assert float(found["next_probability"][1]) == pytest.approx(float(given.mean()), rel=1e-9)


@pytest.mark.parametrize("rule", [{}, {"swap": SWAP}, {"induction": RULE}])
def test_direct_attribution_sums_to_the_logit(rule: dict[str, Any]):
    for model in TinyModel.kinds().values():
        found = check_forward(plugin.DIRECT, DirectParameters(**rule), model=model)
        parts = sum(float(found[name].sum()) for name in ("embed", "heads", "bias", "mlp", "constant"))
        assert parts == pytest.approx(float(found["logit"]), abs=1e-5)
        assert abs(float(found["logit"])) > 1e-3
        assert float(np.abs(found["heads"]).max()) > 1e-4


def test_direct_attribution_is_of_the_models_own_logits():
    model, text = TinyModel.of(norm="layer", gains=True, biases=True, mlp=True), "some text"
    found = check_forward(plugin.DIRECT, model=model, texts=[text])
    ids = model.tokenise([Prompt((Part(text),))]).ids[0]
    logits = TinyEngine().runner(Twin(model)).forward(ids[None])["logits"][0].double()
    at = torch.arange(1, len(ids) - 1)
    wanted = (logits[at, torch.as_tensor(ids[2:])] - logits[at].mean(-1)).mean()
    assert float(found["logit"]) == pytest.approx(float(wanted), abs=1e-5)


def test_an_end_that_is_not_the_models_is_refused():
    model = TinyModel()
    runner = TinyEngine().runner(Twin(model))
    seen = runner.forward(np.array([[256, 97, 98]]), sites=("resid_post", "logits"))
    end = Unembedding.of(model.info, runner.weights(None))
    end.hold(seen[1, "resid_post"][0], seen["logits"][0])
    with pytest.raises(ModelError, match=r"logits differ from the model's own by .*final_soft_cap"):
        end.hold(seen[1, "resid_post"][0], 2 * seen["logits"][0])


STUDY = {
    "prompts": {"source": "text", "text": ["A first prompt, not too short.", "And a second one; it is of use."]},
    "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.config"}], "draws": 5}},
    "analyses": [
        {"use": "lens.patching", "with": {"induction": {"length": 4, "pairs": 4}, "random_sets": 3}},
        {"use": "lens.attribution", "with": {"induction": {"length": 4, "pairs": 4}}},
        {"use": "lens.agreement"},
        {"use": "lens.direct"},
        {"use": "lens.logit"},
        {"use": "lens.tuned", "with": {"passes": 60, "rate": 0.02}},
        {"use": "lens.tuned-loss", "prompts": {"source": "text", "text": ["A third prompt.", "One of no use, too."]}},
    ],
    "against": "chance",
}


def test_a_run_gives_null_columns_agreement_a_tuned_lens_and_figures(gausslens_run: Any):
    results = gausslens_run(STUDY, "models", "reinit", lens=plugin)
    beside = results.against("trained", "lens.patching")
    assert {"z_change_z", "z_change_q", "resid_pre_change_z", "top_change_p"} <= set(beside)
    agreement = results["trained", "lens.agreement"]
    assert float(agreement["z_linear"]) > 0.9  # of so small changes the first order is nearly all
    held_out = results["trained", "lens.tuned-loss"]
    assert (held_out["gained"][:-1] > 0).all()
    assert float(held_out["tuned_kl"][-1]) == pytest.approx(0, abs=1e-9)
    losses = results["trained", "lens.tuned"]["training_kl"]
    assert (losses[-1] < losses[0]).all()
    check_section(plugin.SECTION, results)


def test_what_cannot_be_paired_is_refused_in_words():
    longer = PatchingParameters(pairs=[PAIR | {"corrupted": "The capital of a is"}])
    with pytest.raises(InputError, match=r"tokens: what is|choose other words"):
        check_forward(plugin.PATCHING, longer, model=TinyModel())
    with pytest.raises(InputError, match="give longer prompts"):
        check_forward(plugin.PATCHING, model=TinyModel(), texts=["aa"])
    with pytest.raises(ValueError, match="one of pairs, swap and induction"):
        PatchingParameters(swap=SWAP, induction=RULE)
    with pytest.raises(ValueError, match=r"has no \{\}"):
        Swap(text="no place", words=SWAP.words)
