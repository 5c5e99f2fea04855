"""The analyses on a tiny model: beside numpy, beside plain torch hooks, in other processes, and beside a null."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from gausslens_sae import plugin
from gausslens_sae.parameters import FeaturesParameters, TrainParameters
from gausslens_sae.section import section
from gausslens_sae.train import recipe
from gausslens_sae.training import Training

import gausslens
from gausslens import GausslensError, Part, Prompt, StepRef, Twin
from gausslens.testing import (
    TinyEngine,
    TinyModel,
    check_forward,
    check_references,
    check_round_trip,
    check_stream,
    host_of,
)

TEXTS = [f"{n} is a number, and {n + 1} is the next one after it" for n in range(12)]
SMALL = {"features": 40, "k": 3, "batch": 32, "epochs": 3}
STEP = StepRef("trained", "sae.train", "sae.train")


@pytest.fixture(scope="module")
def model():
    return TinyModel()


@pytest.fixture(scope="module")
def trained(model):
    return check_stream(plugin.TRAIN, TrainParameters(**SMALL), model=model, texts=TEXTS)


def activations(model, name, layer, texts=TEXTS):
    """The vectors of each text at a site, [position, d_in], from the tiny model's runner."""
    tokens = model.tokenise([Prompt((Part(text),)) for text in texts])
    runner = TinyEngine().runner(Twin(model))
    return tokens, [runner.forward(ids[None], sites=(name,))[layer, name][0].flatten(1) for ids in tokens.ids]


def by_hand(trained, layer, x):
    """Codes [sample, feature] and reconstruction [sample, d_in], by numpy and sorting."""
    w = {name: trained[name].sel(layer=layer).values.astype(np.float64) for name in trained}
    before = (np.asarray(x, dtype=np.float64) - w["decoder_bias"]) @ w["encoder"] + w["encoder_bias"]
    codes = np.zeros_like(before)
    for row, values in zip(codes, before, strict=True):
        for place in np.argsort(-values)[: trained["decoder"].attrs["k"]]:
            row[place] = max(values[place], 0.0)
    return codes, codes @ w["decoder"] + w["decoder_bias"]


def test_everything_that_the_plugin_names_exists():
    assert {"sae.train", "sae.features", "sae.loss"} <= set(check_references(plugin).analyses)


def test_training_gives_weights_that_other_steps_can_read(trained, model):
    assert trained["encoder"].dims == ("layer", "d_in", "feature")
    assert trained["decoder"].shape == (2, 40, model.info.d_model)
    assert trained["curve"].sizes["step"] == trained["curve"].shape[1] > 10
    assert {name for name in trained if trained[name].attrs.get("against") != 0} == {
        "variance_explained",
        "dead",
        "left_out",
    }
    check_round_trip(trained)


@pytest.mark.parametrize("decoder", ["trained", "frozen"])
def test_a_training_goes_on_where_it_was(model, decoder):
    """``check_stream`` takes it up from its state after each shard: before the first step, and among many."""
    parameters = TrainParameters(**SMALL | {"buffer": 60}, decoder=decoder, passes=2)
    state = Training(recipe(parameters, 16), np.random.default_rng(0))
    for part in torch.randn(5, 20, 16):
        state.feed(part)
    assert {"now/encoder", "adam/2/exp_avg", "waiting/0", "centre"} <= set(state.state())
    check_stream(plugin.TRAIN, parameters, model=model, texts=TEXTS[:5])


def test_another_seed_gives_another_autoencoder(gausslens_run):
    study = {
        "prompts": {"source": "text", "text": TEXTS},
        "variants": {"trained": []},
        "analyses": [{"use": "sae.train", "with": SMALL}],
    }
    found = [gausslens_run({**study, "seed": seed}, "models", sae=plugin)["trained", "sae.train"] for seed in (0, 1)]
    assert not np.allclose(found[0]["decoder"], found[1]["decoder"])


@pytest.mark.parametrize("site", ["resid_post", "attn_out", "z", "v"])
def test_features_are_what_numpy_makes_of_the_vectors(model, site):
    trained = check_stream(plugin.TRAIN, TrainParameters(site=site, **SMALL), model=model, texts=TEXTS)
    held_out = [f"what is {n} of another?" for n in range(9)]
    chosen = FeaturesParameters(site=site, top=3, context=2)
    found = check_stream(plugin.FEATURES, chosen, model=model, texts=held_out, inputs={STEP: trained})
    check_round_trip(found)
    for layer in (0, 1):
        tokens, vectors = activations(model, site, layer, held_out)
        here = [np.flatnonzero(text & (np.arange(len(text)) >= 1)) for text in tokens.text]
        x = np.concatenate([v[h].double().numpy() for v, h in zip(vectors, here, strict=True)])
        codes, made = by_hand(trained, layer, x)
        at = found.sel(layer=layer)
        explained = 1 - ((x - made) ** 2).sum() / ((x - x.mean(0)) ** 2).sum()
        assert float(at["variance_explained"]) == pytest.approx(explained, abs=1e-4)
        np.testing.assert_allclose(at["density"], (codes > 0).mean(0), atol=1.01 / len(x))  # a tie may go either way
        assert float(at["l0"]) == pytest.approx((codes > 0).sum(1).mean(), abs=1.01 / len(x))
        assert float(at["dead"]) == pytest.approx((codes == 0).all(0).mean(), abs=0.03)
        strongest = int(codes.max(0).argmax())
        assert float(at["top_strength"][strongest, 0]) == pytest.approx(codes.max(), rel=1e-3)
        where = int(codes[:, strongest].argmax())
        pairs = [(prompt, position) for prompt, each in enumerate(here) for position in each]
        prompt, position = pairs[where]
        assert f"«{tokens.pieces[prompt][position]}»" in str(at["top_text"][strongest, 0].values)


def test_a_site_other_than_that_of_the_training_is_refused(trained, model):
    with pytest.raises(GausslensError, match="is an autoencoder of resid_post"):
        check_stream(plugin.FEATURES, FeaturesParameters(site="z"), model=model, texts=TEXTS, inputs={STEP: trained})


@pytest.mark.parametrize("site", ["z", "v"])
@pytest.mark.parametrize("heads", [[1], [0, 1]])
def test_heads_other_than_those_of_the_training_are_refused(site, heads, gausslens_run):
    """Vectors of one head are as wide as those of another: nothing else would tell."""
    study = {
        "prompts": {"source": "text", "text": TEXTS},
        "variants": {"trained": []},
        "analyses": [
            {"use": "sae.train", "heads": [0], "with": {"site": site, **SMALL}},
            {"use": "sae.features", "heads": [0], "with": {"site": site}},
            {"use": "sae.loss", "heads": [0]},
        ],
    }
    model = {"path": "builtin:testing", "heads": 2}
    gausslens_run({**study, "model": model}, "models", sae=plugin)
    for other in (1, 2):
        study["analyses"][other]["heads"] = heads
        with pytest.raises(GausslensError, match=r"of heads 0, here are .*1: give both steps the same heads:"):
            gausslens_run({**study, "model": model}, "models", sae=plugin)
        study["analyses"][other]["heads"] = [0]


def test_prompts_that_are_too_short_are_said_to_be(model):
    with pytest.raises(GausslensError, match="give longer prompts"):
        check_stream(plugin.TRAIN, TrainParameters(after=500, **SMALL), model=model, texts=TEXTS)


def test_a_perfect_reconstruction_costs_nothing_and_the_mean_recovers_nothing(trained, model):
    """The identity as an autoencoder, and one of which nothing but its bias, the mean, is left."""
    d = model.info.d_model
    eye = np.concatenate([np.eye(d), -np.eye(d)]).astype(np.float32)
    fit = trained.isel(feature=np.zeros(2 * d, dtype=int)).copy(deep=True)
    fit["decoder"].values[:] = eye
    fit["encoder"].values[:] = eye.T
    fit["encoder_bias"].values[:] = 0
    fit["decoder"].attrs["k"] = 2 * d
    perfect = check_forward(plugin.LOSS, model=model, texts=TEXTS, inputs={STEP: fit})
    assert np.abs(perfect["delta"]).max() < 1e-4
    assert np.abs(perfect["kl"]).max() < 1e-4
    fit["encoder"].values[:] = 0
    fit["decoder_bias"].values[:] = fit["mean"].values
    mean = check_forward(plugin.LOSS, model=model, texts=TEXTS, inputs={STEP: fit})
    np.testing.assert_allclose(mean["delta"], mean["delta_removed"], atol=1e-6)
    known = np.isfinite(mean["kl_recovered"])
    assert known.any()
    np.testing.assert_allclose(mean["kl_recovered"].values[known], 0, atol=1e-5)


@pytest.fixture(scope="module")
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval()


def hooked(llama, ids, site, layer, change):
    """log p of the next tokens, with a change of the vectors of a site by a plain hook."""
    block = llama.model.layers[layer]

    def at_output(_module, _given, output):
        x = output[0] if isinstance(output, tuple) else output
        return (change(x), *output[1:]) if isinstance(output, tuple) else change(x)

    if site == "z":
        handle = block.self_attn.o_proj.register_forward_pre_hook(lambda _, given: (change(given[0]),))
    else:
        modules = {"resid_post": block, "mlp_out": block.mlp, "attn_out": block.self_attn, "v": block.self_attn.v_proj}
        handle = modules[site].register_forward_hook(at_output)
    with torch.no_grad(), handle:
        logits = llama(torch.tensor(ids)[None]).logits[0]
    return torch.log_softmax(logits.double(), dim=-1)


@pytest.mark.parametrize("site", ["resid_post", "mlp_out", "attn_out", "z", "v"])
def test_loss_recovered_is_that_of_plain_torch_hooks(llama, site, tmp_path):
    generator = np.random.default_rng(0)
    ids = [generator.integers(1, 50, 20).tolist() for _ in range(12)]
    study = {
        "gausslens": 1,
        "name": "hooks",
        "prompts": {"source": "tokens", "ids": ids},
        "variants": {"trained": []},
        "analyses": [
            {"use": "sae.train", "with": {"site": site, "after": 3, **SMALL}, "layers": [1]},
            {"use": "sae.loss", "layers": [1]},
        ],
    }
    results = gausslens.run(study, store=tmp_path, model=llama, host=host_of("models", sae=plugin), shown=False)
    trained, found = results["trained", "sae.train"], results["trained", "sae.loss"].sel(layer=1)

    def put(values):
        """A change of the positions from the third on."""

        def change(x):
            new = torch.as_tensor(values(x[0].numpy()), dtype=x.dtype)
            return torch.cat([x[:, :3], new[None, 3:]], dim=1)

        return change

    changes = [
        lambda x: x,
        put(lambda x: by_hand(trained, 1, x)[1]),
        put(lambda x: np.tile(trained["mean"].sel(layer=1).values, (len(x), 1))),
    ]
    losses, moved = np.zeros((3, len(ids))), np.zeros((3, len(ids)))
    for n, prompt in enumerate(ids):
        clean = hooked(llama, prompt, site, 1, changes[0])
        for m, change in enumerate(changes):
            p = hooked(llama, prompt, site, 1, change)
            losses[m, n] = -np.mean([p[t, prompt[t + 1]] for t in range(3, 19)])
            moved[m, n] = (clean.exp() * (clean - p)).sum(-1)[3:19].mean()
    clean, made, removed = losses
    assert float(found["loss"]) == pytest.approx(clean.mean(), abs=1e-5)
    assert float(found["loss_reconstructed"]) == pytest.approx(made.mean(), abs=1e-4)
    assert float(found["loss_removed"]) == pytest.approx(removed.mean(), abs=1e-5)
    assert float(found["delta_se"]) == pytest.approx((made - clean).std(ddof=1) / np.sqrt(len(ids)), rel=1e-2)
    assert float(found["kl"]) == pytest.approx(moved[1].mean(), abs=1e-4)
    assert float(found["kl_recovered"]) == pytest.approx(1 - moved[1].mean() / moved[2].mean(), abs=1e-4)
    if np.isfinite(found["recovered"]):
        ratio = (removed.mean() - made.mean()) / (removed.mean() - clean.mean())
        assert float(found["recovered"]) == pytest.approx(ratio, abs=1e-3)


STUDY = {
    "prompts": {"source": "text", "text": TEXTS},
    "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.config"}], "draws": 3}},
    "analyses": [
        {"use": "sae.train", "with": SMALL},
        {"use": "sae.train", "as": "frozen", "with": {"decoder": "frozen", **SMALL}},
        {"use": "sae.features", "prompts": {"source": "text", "text": TEXTS[:3]}},
        {"use": "sae.features", "as": "frozen-features", "with": {"of": "frozen"}},
        {"use": "sae.loss", "with": {"removed": "zero"}},
    ],
    "against": "chance",
}


def test_a_run_puts_twins_and_a_frozen_decoder_beside_it(gausslens_run):
    results = gausslens_run(STUDY, "models", "reinit", sae=plugin)
    beside = results.against("trained", "sae.features")
    assert {f"variance_explained_{what}" for what in ("null_mean", "null_sd", "z", "p")} <= set(beside)
    assert "density_z" not in beside  # features of twins are other features
    assert {"kl_recovered_z", "delta_z"} <= set(results.against("trained", "sae.loss"))
    twins = results["chance", "sae.train"]["decoder"]
    assert not np.allclose(twins.isel(draw=0), twins.isel(draw=1))  # each twin has an autoencoder of its own
    frozen = results["trained", "frozen"]["decoder"]
    np.testing.assert_array_equal(frozen, results["chance", "frozen"]["decoder"].isel(draw=0))  # the seed is the same
    titles = [figure.title for figure in section(results)]
    assert titles[:2] == ["What autoencoders explain", "What autoencoders cost the model"]
    assert "How often features fire, layer 1" in titles
    assert "How training went" in titles
    assert "Top tokens, frozen-features, trained, layer 0" in titles


def test_a_training_that_is_not_there_is_named(gausslens_run):
    study = {**STUDY, "analyses": [STUDY["analyses"][0], {"use": "sae.loss", "with": {"of": "other"}}]}
    with pytest.raises(GausslensError, match="no step 'other'"):
        gausslens_run(study, "models", "reinit", sae=plugin)


def test_two_processes_find_the_same_bits(tmp_path):
    """Keys and results of two processes, of different hash seeds."""
    (tmp_path / "study.json").write_text(json.dumps({"gausslens": 1, "name": "same", **STUDY}), encoding="utf-8")
    script = (
        "import sys, json, hashlib, gausslens\n"
        "from gausslens.testing import host_of\n"
        "from gausslens_sae import plugin\n"
        "study = {**json.load(open('study.json')), 'model': {'path': 'builtin:testing'}}\n"
        "host = host_of('models', 'reinit', sae=plugin)\n"
        "results = gausslens.run(study, store=sys.argv[1], host=host, shown=False)\n"
        "for step in ('sae.train', 'frozen', 'sae.features', 'sae.loss'):\n"
        "    data = results['trained', step]\n"
        "    for name in sorted(data):\n"
        "        print(step, name, hashlib.sha256(repr(data[name].values.tolist()).encode()).hexdigest())\n"
    )
    said = []
    for n in range(2):
        env = {**os.environ, "PYTHONHASHSEED": str(n), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", script, f"store{n}"]
        ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)  # noqa: S603
        assert ran.returncode == 0, ran.stderr
        said.append(ran.stdout)
    assert said[0] == said[1]
    assert len(said[0].splitlines()) > 30
