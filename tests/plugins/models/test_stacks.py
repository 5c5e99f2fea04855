"""Models of two stacks: encoder, decoder and attention from one to the other, held against transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_stacks import PAIRS, STACKED, built, pairs_of, tokenizer

import gausslens
from gausslens import Batch, ModelSpec, Request, Tokens, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import PretrainedModel
from gausslens_models.loading.weights import open_weights
from gausslens_models.parameters import WeightsParameters

STACKS = ("encoder", "decoder", "cross")
Open = Callable[..., PretrainedModel]


def captured(twin: Twin, tokens: Tokens, *sites: str, rows: int | None = None) -> list[Batch]:
    """All prompts in one shard."""
    found: list[Batch] = []
    TransformersEngine().run(twin, tokens, np.arange(len(tokens)), Request(sites, rows=rows), found.append)
    return found


def asked(model: PretrainedModel, tokens: Tokens, prompt: int) -> Any:
    """What a fresh module of the same weights says of one prompt by itself, by its own eager attention."""
    module = type(model.module).from_pretrained(model.spec.path, attn_implementation="eager").eval()
    ids = torch.from_numpy(tokens.ids[prompt])[None]
    with torch.no_grad():
        if tokens.sources is None:
            return module.get_encoder()(input_ids=ids, output_attentions=True)
        source = torch.from_numpy(tokens.sources.ids[prompt])[None]
        return module(input_ids=source, decoder_input_ids=ids, output_attentions=True, use_cache=False)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", STACKED)
def test_patterns_and_what_is_predicted_are_those_of_transformers(name: str, stack: str, open_stack: Open) -> None:
    """Two sides of other lengths, both padded; patterns to 1e-6, logits and final states beside them."""
    model = open_stack(name, stack)
    tokens = pairs_of(model)
    end = ("resid_post",) if stack == "encoder" else ("logits",)
    *layers, last = captured(Twin(model), tokens, "pattern", "k", "q", *end)
    layers = [*layers, last] if last.layer is not None else layers
    keys = tokens.keys
    assert len(layers) == (2 if stack == "encoder" else 3)
    for prompt in range(len(tokens)):
        answer, n, m = asked(model, tokens, prompt), tokens.lengths[prompt], keys.lengths[prompt]
        whose = {"encoder": "attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}[stack]
        for batch, theirs in zip(layers, answer[whose], strict=True):
            ours = batch["pattern"][prompt]
            torch.testing.assert_close(ours[:, :n, :m], theirs[0], atol=1e-6, rtol=0)
            assert not ours[:, :n, m:].any()
            assert batch["q"].shape[:2] == (3, max(tokens.lengths))
            assert batch["k"].shape[:2] == (3, max(keys.lengths))
            assert batch.key_mask[prompt].sum() == m
            assert batch.mask[prompt].sum() == n
            assert batch.key_tokens[prompt, :m].tolist() == keys.ids[prompt].tolist()
        if stack != "encoder":
            torch.testing.assert_close(last["logits"][prompt, :n], answer.logits[0], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", STACKED)
def test_the_final_state_of_an_encoder_is_that_of_transformers(name: str, open_stack: Open) -> None:
    model = open_stack(name, "encoder")
    tokens = pairs_of(model)
    found = TransformersEngine().runner(Twin(model)).forward(tokens.ids[0][None], sites=("resid_post",))
    theirs = asked(model, tokens, 0).last_hidden_state[0]
    ours = found[1, "resid_post"][0]
    if "ln_final.w" in model.names(None):
        wide = ours if model.info.facts.norm == "rms" else ours - ours.mean(-1, keepdim=True)
        ours = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + model.info.facts.epsilon)
        ours = ours * model.tensor(None, "ln_final.w")
        ours = ours + model.tensor(None, "ln_final.b") if "ln_final.b" in model.names(None) else ours
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", STACKED)
def test_the_proof_holds(name: str, stack: str, open_stack: Open) -> None:
    findings = TransformersEngine().prove(open_stack(name, stack))
    assert [f for f in findings if not f.holds] == []
    made = {f.what for f in findings if not f.left_out}
    assert {
        "pattern of layer 0",
        "k of layer 1 from weights",
        "v of layer 1 from weights",
        "z of layer 0 from weights",
    } <= made
    assert ("resid_pre of layer 0 from weights" in made) == (
        stack != "cross" and (name, stack) != ("blenderbot-small", "decoder")
    )
    assert ("logits from weights" in made) == (stack != "encoder")


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", ["t5", "marian"])
def test_the_proof_holds_in_float64(name: str, stack: str, open_stack: Open) -> None:
    findings = TransformersEngine().prove(open_stack(name, stack, "float64"))
    assert [f for f in findings if not f.holds] == []


@pytest.mark.parametrize(
    ("name", "stack"), [("t5", "decoder"), ("umt5", "encoder"), ("bart", "cross"), ("m2m_100", "encoder")]
)
def test_the_proof_finds_a_tensor_that_is_another(name: str, stack: str, open_stack: Open) -> None:
    """What attention is said to be made of, and is not: distances the other way, another head, a source not read."""
    model = open_stack(name, stack)
    wrong = {"t5": "W_distance", "umt5": "W_distance", "bart": "W_K", "m2m_100": "W_E"}[name]
    read = type(model).tensor

    class Lying(type(model)):  # type: ignore[misc]
        def tensor(self, layer: int | None, name: str) -> torch.Tensor:
            found = read(self, layer, name)
            return found.flip(0) if name == wrong else found

    model.__class__ = Lying
    assert [f.what for f in TransformersEngine().prove(model) if not f.holds]


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", STACKED)
def test_weights_are_those_of_each_head(
    name: str, stack: str, open_stack: Open, stacks_at: Callable[[str], Path]
) -> None:
    """Cut by hand from the module's state; files alone say the same."""
    model, state = open_stack(name, stack), built(name).state_dict()
    side = "encoder" if stack == "encoder" else "decoder"
    if "t5" in name:
        within = "layer.1.EncDecAttention" if stack == "cross" else "layer.0.SelfAttention"
        start, ends = f"{side}.block.1.{within}.", ("q", "k", "v", "o")
    else:
        start = f"model.{side}.layers.1.{'encoder_attn' if stack == 'cross' else 'self_attn'}."
        ends = ("q_proj", "k_proj", "v_proj", "out_proj")
    width = model.info.d_head
    files = open_weights(ModelSpec(str(stacks_at(name)), WeightsParameters(stack=stack)))  # type: ignore[arg-type]
    assert files.info.fingerprint == model.info.fingerprint
    for letter, end in zip("QKVO", ends, strict=True):
        whole = state[f"{start}{end}.weight"]
        ours = model.tensor(1, f"W_{letter}")
        assert len(ours) == model.info.n_heads
        for head, matrix in enumerate(ours):
            rows = slice(head * width, (head + 1) * width)
            assert torch.equal(matrix, whole[:, rows].T if letter == "O" else whole[rows].T)
        assert torch.equal(files.tensor(1, f"W_{letter}"), ours)
    read = next(tensor for place, tensor in state.items() if place.endswith(f"{side}.embed_tokens.weight"))
    assert torch.equal(model.tensor(None, "W_E"), read)
    assert torch.equal(files.tensor(None, "W_E"), read)
    if stack != "encoder" and "final_logits_bias" in state:
        assert torch.equal(model.tensor(None, "b_U"), state["final_logits_bias"][0])


def test_stacks_have_fingerprints_and_sizes_of_their_own(open_stack: Open) -> None:
    infos = [open_stack("marian", stack).info for stack in STACKS]
    assert len({info.fingerprint for info in infos}) == 3
    assert [info.n_heads for info in infos] == [3, 4, 4]
    assert [info.n_layers for info in infos] == [2, 3, 3]
    assert [info.d_mlp for info in infos] == [20, 28, 28]
    assert [info.causal for info in infos] == [False, True, False]
    assert [info.facts.crossed for info in infos] == [False, False, True]
    assert [info.max_positions for info in infos] == [64] * 3
    own = [open_stack("marian-own", stack).info.vocabulary for stack in STACKS]
    assert own == [61, 53, 53]


@pytest.mark.parametrize("name", ["t5", "umt5", "bart"])
@pytest.mark.parametrize("stack", STACKS)
def test_blocks_of_rows_are_what_the_whole_is(name: str, stack: str, open_stack: Open) -> None:
    """What distance adds is cut with the rows."""
    model = open_stack(name, stack)
    tokens = pairs_of(model)
    whole = captured(Twin(model), tokens, "pattern", "scores")
    blocks = captured(Twin(model), tokens, "pattern", "scores", rows=2)
    for batch in whole:
        for site in ("pattern", "scores"):
            joined = torch.cat([b[site] for b in blocks if b.layer == batch.layer], dim=2)
            torch.testing.assert_close(joined, batch[site], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(batch["scores"].softmax(-1), batch["pattern"], atol=1e-6, rtol=1e-5)


def test_an_edit_reaches_its_stack_alone(open_stack: Open, written: Any) -> None:
    """One head's values in the first layer of each stack; what the others do before it stays, bit by bit."""

    def patterns(twin: Twin, tokens: Tokens) -> list[torch.Tensor]:
        return [batch["pattern"] for batch in captured(twin, tokens, "pattern")]

    def one_head(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        if name != "W_V":
            return None
        made = tensor.clone()
        made[1] *= 3
        return made

    model = open_stack("bart", "cross")
    tokens = pairs_of(model)
    twin = written(model, change=one_head)
    twin.made = {layer: {} for layer in (None, 1, 2)}
    plain, edited = patterns(Twin(model), tokens), patterns(twin, tokens)
    assert torch.equal(plain[0], edited[0])
    assert not torch.allclose(plain[1], edited[1])
    sources = (torch.from_numpy(tokens.sources.ids[0])[None], torch.ones(1, len(tokens.sources.ids[0])))  # type: ignore[union-attr]
    engine = TransformersEngine()
    with torch.no_grad():
        before = model.module.get_encoder()(input_ids=sources[0])[0]
        with engine.patches.applied(twin, [0, 1, 2]):
            assert torch.equal(model.module.get_encoder()(input_ids=sources[0])[0], before)
            state = model.module.state_dict()
        after = model.module.state_dict()
    changed = [n for n, tensor in built("bart").state_dict().items() if not torch.equal(tensor, state[n])]
    assert changed == ["model.decoder.layers.0.encoder_attn.v_proj.weight"]
    assert [n for n, tensor in built("bart").state_dict().items() if not torch.equal(tensor, after[n])] == []


@pytest.mark.parametrize("name", ["t5", "marian", "bart"])
@pytest.mark.parametrize(
    ("stack", "tensor"), [("encoder", "W_E"), ("decoder", "W_E"), ("decoder", "W_U"), ("cross", "b_U")]
)
def test_an_edit_of_what_stacks_share_reaches_one(
    name: str, stack: str, tensor: str, open_stack: Open, written: Any
) -> None:
    model = open_stack(name, stack)
    if tensor not in model.names(None):
        return
    twin = written(model, change=lambda n, t: t * 2 if n == tensor else None)
    twin.made = {layer: {} for layer in model.info.layers}
    before = built(name).state_dict()
    with TransformersEngine().patches.applied(twin, list(model.info.layers)):
        state = model.module.state_dict()
    shown = {
        n.removeprefix("model.") for n in state if not torch.equal(state[n], before.get(n, before.get(f"model.{n}")))
    }
    expected = {
        ("encoder", "W_E"): {"encoder.embed_tokens.weight"},
        ("decoder", "W_E"): {"decoder.embed_tokens.weight"},
        ("decoder", "W_U"): {"lm_head.weight"},
        ("cross", "b_U"): {"final_logits_bias"},
    }[stack, tensor]
    assert expected <= shown <= expected | {"shared.weight"}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", ["t5", "umt5", "marian", "bart"])
def test_initial_draws_are_those_of_the_class(name: str, stack: str, open_stack: Open) -> None:
    """By spread, of what the class makes of the config; 4 standard errors of a standard deviation, sd / sqrt(2 n)."""
    import transformers

    config_class, arguments, model_class = STACKED[name]
    model = open_stack(name, stack)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        fresh = getattr(transformers, model_class)(getattr(transformers, config_class)(**arguments))
    theirs = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
    for layer, places in model.module_layout.places.items():
        for ours, where in places.items():
            drawn, known = model.initial(layer, ours, 3), theirs.get(where.theirs, theirs.get(f"model.{where.theirs}"))
            assert known is not None
            known = known.detach()
            assert drawn.shape == model.tensor(layer, ours).shape
            known = known[2:] if ours == "W_pos" else known
            tolerance = 4 * float(known.std()) / drawn.numel() ** 0.5
            assert float(drawn.std()) == pytest.approx(float(known.std()), abs=tolerance + 1e-9), (layer, ours)


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_attention_to_a_source_goes_into_the_store_as_it_is(
    name: str, open_stack: Open, stacks_at: Callable[[str], Path], tmp_path: Path
) -> None:
    study: dict[str, Any] = {
        "gausslens": 1,
        "model": {"path": str(stacks_at(name)), "stack": "cross"},
        "prompts": {"source": "pairs", "pairs": [{"source": s, "target": t} for s, t in PAIRS]},
        "analyses": [{"use": "model.capture", "with": {"sites": ["pattern", "q", "k", "v", "resid_pre"]}}],
        "report": False,
    }
    found = gausslens.run(study, store=tmp_path, shown=False)["trained", "model.capture"]
    assert found["pattern"].dims == ("layer", "prompt", "head", "query", "key")
    assert found["k"].dims == ("layer", "prompt", "key", "kv_head", "d_head")
    assert found["q"].dims == ("layer", "prompt", "position", "head", "d_head")
    model = open_stack(name, "cross")
    tokens = pairs_of(model)
    assert tokens.sources is not None
    assert found["source_length"].values.tolist() == list(tokens.sources.lengths)
    for prompt in range(len(tokens)):
        n, m = tokens.lengths[prompt], tokens.sources.lengths[prompt]
        theirs = torch.stack([one[0] for one in asked(model, tokens, prompt).cross_attentions]).numpy()
        np.testing.assert_allclose(found["pattern"].values[:, prompt, :, :n, :m], theirs, atol=1e-6)
        assert np.isnan(found["pattern"].values[:, prompt, :, n:]).all()
        assert np.isnan(found["pattern"].values[:, prompt, :, :, m:]).all()
        assert np.isfinite(found["k"].values[:, prompt, :m]).all()
        assert found["source_token_id"].values[prompt, :m].tolist() == tokens.sources.ids[prompt].tolist()


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", ["pegasus", "marian"])
def test_positions_are_those_of_the_file_as_it_rounds_them(name: str, stack: str, tmp_path: Path) -> None:
    """Saved in half precision waves keep three digits in float32 too: the proof reads what the model reads."""
    built(name).half().save_pretrained(tmp_path / "half")
    tokenizer().save_pretrained(tmp_path / "half")
    for model in (str(tmp_path / "half"), built(name).half().float()):
        opened = (
            gausslens.load(model, stack=stack, dtype="float32")
            if isinstance(model, str)
            else gausslens.load(model, stack=stack)
        )
        assert [f for f in TransformersEngine().prove(opened._opened.model) if not f.holds] == []
