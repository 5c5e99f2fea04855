"""Models of two stacks: encoder, decoder and attention from one to the other, held against transformers' own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_stacks import STACKED, built, saved

import gausslens
from gausslens import Batch, GausslensError, ModelError, ModelSpec, Part, Prompt, Request, Tokens, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

STACKS = ("encoder", "decoder", "cross")
Open = Callable[..., PretrainedModel]
# Sources and targets of other lengths: the longer source has the shorter target.
PAIRS = [("w5 w6 w7 w8 w9 w10 w11", "w12 w13"), ("w20 w21 w22", "w23 w24 w25 w26 w27"), ("w5 w30", "w31 w5 w33")]


def pair(source: str, target: str) -> Prompt:
    return Prompt((Part(source, "source"), Part(target, "target")))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny model of two stacks, saved once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = saved(name, tmp_path_factory.mktemp(name))
        return made[name]

    return of


@pytest.fixture(scope="module")
def opened(place: Callable[[str], Path]) -> Open:
    """One stack of a tiny model."""

    def of(name: str, stack: str | None, dtype: str = "float32") -> PretrainedModel:
        return open_pretrained(ModelSpec(str(place(name)), TransformersParameters(stack=stack), dtype=dtype))  # type: ignore[arg-type]

    return of


def pairs_of(model: PretrainedModel) -> Tokens:
    return model.tokenise([pair(*one) for one in PAIRS])


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
def test_patterns_and_what_is_predicted_are_those_of_transformers(name: str, stack: str, opened: Open) -> None:
    """Two sides of other lengths, both padded; patterns to 1e-6, logits and final states beside them."""
    model = opened(name, stack)
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
def test_the_final_state_of_an_encoder_is_that_of_transformers(name: str, opened: Open) -> None:
    model = opened(name, "encoder")
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
def test_the_proof_holds(name: str, stack: str, opened: Open) -> None:
    findings = TransformersEngine().prove(opened(name, stack))
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
def test_the_proof_holds_in_float64(name: str, stack: str, opened: Open) -> None:
    findings = TransformersEngine().prove(opened(name, stack, "float64"))
    assert [f for f in findings if not f.holds] == []


@pytest.mark.parametrize(
    ("name", "stack"), [("t5", "decoder"), ("umt5", "encoder"), ("bart", "cross"), ("m2m_100", "encoder")]
)
def test_the_proof_finds_a_tensor_that_is_another(name: str, stack: str, opened: Open) -> None:
    """What attention is said to be made of, and is not: distances the other way, another head, a source not read."""
    model = opened(name, stack)
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
def test_weights_are_those_of_each_head(name: str, stack: str, opened: Open, place: Callable[[str], Path]) -> None:
    """Cut by hand from the module's state; files alone say the same."""
    model, state = opened(name, stack), built(name).state_dict()
    side = "encoder" if stack == "encoder" else "decoder"
    if "t5" in name:
        within = "layer.1.EncDecAttention" if stack == "cross" else "layer.0.SelfAttention"
        start, ends = f"{side}.block.1.{within}.", ("q", "k", "v", "o")
    else:
        start = f"model.{side}.layers.1.{'encoder_attn' if stack == 'cross' else 'self_attn'}."
        ends = ("q_proj", "k_proj", "v_proj", "out_proj")
    width = model.info.d_head
    files = open_weights(ModelSpec(str(place(name)), WeightsParameters(stack=stack)))  # type: ignore[arg-type]
    assert files.info.fingerprint == model.info.fingerprint
    for letter, end in zip("QKVO", ends, strict=True):
        whole = state[f"{start}{end}.weight"]
        ours = model.tensor(1, f"W_{letter}")
        assert len(ours) == model.info.n_heads
        for head, matrix in enumerate(ours):
            rows = slice(head * width, (head + 1) * width)
            assert torch.equal(matrix, whole[:, rows].T if letter == "O" else whole[rows].T)
        assert torch.equal(files.tensor(1, f"W_{letter}"), ours)
    if stack != "encoder" and "final_logits_bias" in state:
        assert torch.equal(model.tensor(None, "b_U"), state["final_logits_bias"][0])


def test_stacks_have_fingerprints_and_sizes_of_their_own(opened: Open) -> None:
    infos = [opened("marian", stack).info for stack in STACKS]
    assert len({info.fingerprint for info in infos}) == 3
    assert [info.n_heads for info in infos] == [3, 4, 4]
    assert [info.n_layers for info in infos] == [2, 3, 3]
    assert [info.d_mlp for info in infos] == [20, 28, 28]
    assert [info.causal for info in infos] == [False, True, False]
    assert [info.facts.crossed for info in infos] == [False, False, True]
    assert [info.max_positions for info in infos] == [64] * 3
    own = [opened("marian-own", stack).info.vocabulary for stack in STACKS]
    assert own == [61, 53, 53]


@pytest.mark.parametrize("stack", ["decoder", "cross"])
@pytest.mark.parametrize("name", STACKED)
def test_loss_and_generation_are_those_of_transformers(
    name: str, stack: str, opened: Open, place: Callable[[str], Path], tmp_path: Path
) -> None:
    """The labels' loss, and greedy generation from the token that targets begin with."""
    study = {
        "gausslens": 1,
        "model": {"path": str(place(name)), "stack": stack},
        "prompts": {"source": "pairs", "pairs": [{"source": s, "target": t} for s, t in PAIRS]},
        "analyses": [{"use": "model.loss"}, {"use": "model.generate", "with": {"tokens": 6, "stop": ""}}],
        "report": False,
    }
    results = gausslens.run(study, store=tmp_path / "store", shown=False)
    loss, written = results["trained", "model.loss"], results["trained", "model.generate"]
    module = built(name)
    model = opened(name, stack)
    tokens = pairs_of(model)
    assert tokens.sources is not None
    for prompt in range(len(tokens)):
        ids, source = (torch.from_numpy(a)[None] for a in (tokens.ids[prompt], tokens.sources.ids[prompt]))
        with torch.no_grad():
            theirs = module(input_ids=source, labels=ids[:, 1:].clone()).loss
            # It would size what it remembers of a T5 by the encoder.
            how = {
                "max_new_tokens": 6,
                "do_sample": False,
                "num_beams": 1,
                "use_cache": False,
                "decoder_start_token_id": int(ids[0, 0]),
            }
            new = module.generate(input_ids=source, decoder_input_ids=ids[:, :1], **how)[0, 1:]
        ours = loss["loss"].values[prompt, 1 : tokens.lengths[prompt]].mean()
        assert ours == pytest.approx(float(theirs), rel=1e-5)
        plain = [int(i) for i in new if int(i) not in model.info.facts["special_ids"]]
        assert str(written["text"].values[prompt, 0]) == model.tokenizer.decode(plain)
        assert str(written["after"].values[prompt]) == PAIRS[prompt][0]


@pytest.mark.parametrize("name", ["t5", "marian", "m2m_100", "umt5"])
def test_generation_with_replacement_is_that_without(name: str, opened: Open) -> None:
    """Step by step over the whole text as from what is remembered; so replacement sees generation."""
    model = opened(name, "cross")
    tokens, runner = pairs_of(model), TransformersEngine().runner(Twin(model))
    seen: list[tuple[int, ...]] = []
    plain = runner.generate(tokens.ids[0][None, :1], 5, **tokens.beside([0]))
    again = runner.generate(
        tokens.ids[0][None, :1], 5, replace=lambda layer, s, p, v: seen.append(tuple(p.shape)), **tokens.beside([0])
    )
    assert plain[0].tolist() == again[0].tolist()
    assert seen[0] == (1, 4, 1, 8)


@pytest.mark.parametrize("name", ["t5", "umt5", "bart"])
@pytest.mark.parametrize("stack", STACKS)
def test_blocks_of_rows_are_what_the_whole_is(name: str, stack: str, opened: Open) -> None:
    """What distance adds is cut with the rows."""
    model = opened(name, stack)
    tokens = pairs_of(model)
    whole = captured(Twin(model), tokens, "pattern", "scores")
    blocks = captured(Twin(model), tokens, "pattern", "scores", rows=2)
    for batch in whole:
        for site in ("pattern", "scores"):
            joined = torch.cat([b[site] for b in blocks if b.layer == batch.layer], dim=2)
            torch.testing.assert_close(joined, batch[site], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(batch["scores"].softmax(-1), batch["pattern"], atol=1e-6, rtol=1e-5)


def test_an_edit_reaches_its_stack_alone(opened: Open, written: Any) -> None:
    """One head's values in the first layer of each stack; what the others do before it stays, bit by bit."""

    def patterns(twin: Twin, tokens: Tokens) -> list[torch.Tensor]:
        return [batch["pattern"] for batch in captured(twin, tokens, "pattern")]

    def one_head(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
        if name != "W_V":
            return None
        made = tensor.clone()
        made[1] *= 3
        return made

    model = opened("bart", "cross")
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
    name: str, stack: str, tensor: str, opened: Open, written: Any
) -> None:
    model = opened(name, stack)
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
def test_initial_draws_are_those_of_the_class(name: str, stack: str, opened: Open) -> None:
    """By spread, of what the class makes of the config; 4 standard errors of a standard deviation, sd / sqrt(2 n)."""
    import transformers

    config_class, arguments, model_class = STACKED[name]
    model = opened(name, stack)
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


def test_a_model_of_two_stacks_says_which_there_are(opened: Open) -> None:
    with pytest.raises(ModelError, match=r"two stacks.*stack: encoder.*stack: decoder.*stack: cross"):
        opened("t5", None)


def test_a_model_of_one_stack_has_no_stacks(directory: Callable[[str], Path]) -> None:
    spec = ModelSpec(str(directory("gpt2")), TransformersParameters(stack="encoder"))
    with pytest.raises(ModelError, match="'gpt2' is one stack of layers: leave `stack:` out"):
        open_pretrained(spec)


def test_an_encoder_that_was_saved_alone_is_an_encoder(tmp_path: Path) -> None:
    path = saved("t5", tmp_path, "T5EncoderModel")
    model = open_pretrained(ModelSpec(str(path), TransformersParameters(stack="encoder")))
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []
    for stack in ("decoder", "cross"):
        with pytest.raises(ModelError, match="T5EncoderModel has no decoder"):
            open_pretrained(ModelSpec(str(path), TransformersParameters(stack=stack)))  # type: ignore[arg-type]


def test_a_decoder_without_its_encoder_is_refused(tmp_path: Path) -> None:
    path = saved("bart", tmp_path, "BartForCausalLM")
    with pytest.raises(ModelError, match="BartForCausalLM is the decoder of a bart without its encoder"):
        open_pretrained(ModelSpec(str(path), TransformersParameters(stack="decoder")))


def test_without_a_head_there_is_no_loss(tmp_path: Path) -> None:
    path = saved("bart", tmp_path, "BartModel")
    model = open_pretrained(ModelSpec(str(path), TransformersParameters(stack="decoder")))
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []
    assert "logits" not in model.sites


def test_pairs_are_read_by_each_stack(opened: Open) -> None:
    encoder, decoder, cross = (pairs_of(opened("marian", stack)) for stack in STACKS)
    assert encoder.pieces[1] == ("w20", "w21", "w22", "</s>")
    assert decoder.pieces[1] == ("<s>", "w23", "w24", "w25", "w26", "w27", "</s>")
    assert decoder.text[1].tolist() == [False, *[True] * 5, False]
    assert decoder.word[1].tolist() == [-1, 0, 1, 2, 3, 4, -1]
    assert decoder.sources is not None
    assert decoder.sources.digest() == encoder.digest()
    assert cross.keys.digest() == encoder.digest()
    assert decoder.keys is decoder
    assert len({t.digest() for t in (encoder, decoder, cross)}) == 3


def test_an_empty_target_is_what_stands_before_each(opened: Open) -> None:
    found = opened("marian", "decoder").tokenise([pair("w5 w6", ""), pair("w5", "w7")])
    assert [row.tolist() for row in found.ids] == [[1], [1, 7, 2]]
    found = opened("mbart", "decoder").tokenise([pair("w5 w6", ""), pair("w5", "w7")])
    assert [row.tolist() for row in found.ids] == [[4], [4, 7, 2, 4]]


def test_an_encoder_reads_any_text(opened: Open) -> None:
    found = opened("marian", "encoder").tokenise([Prompt((Part("w5 w6"),)), Prompt(ids=(7, 8, 9)), pair("w9", "w10")])
    assert [row.tolist() for row in found.ids] == [[5, 6, 2], [7, 8, 9], [9, 2]]


@pytest.mark.parametrize(
    ("stack", "prompts", "said"),
    [
        (
            "decoder",
            {"source": "text", "text": ["w5"]},
            r"reads prompts in pairs, and prompt 0 has no source and no target.*pairs: \[\{source",
        ),
        ("cross", {"source": "tokens", "ids": [[5, 6]]}, "reads prompts in pairs, and prompt 0 is token numbers"),
        ("cross", {"source": "pairs", "pairs": [{"source": " ", "target": "w5"}]}, "pair 0 has no source"),
        ("cross", {"source": "pairs"}, "pairs of your own .pairs., or a file .path."),
        (
            "decoder",
            {"source": "pairs", "pairs": [{"source": "w5 " * 70, "target": "w5"}]},
            "71 tokens, the model takes 64",
        ),
        (
            "decoder",
            {"source": "pairs", "pairs": [{"source": "w5", "target": "w5 " * 70}]},
            "72 tokens, the model takes 64",
        ),
        ("decoder", {"source": "pairs", "path": "no.tsv"}, "no such file"),
        ("encoder", {"source": "text", "text": ["w5"]}, "the encoder has no head"),
    ],
)
def test_what_cannot_be_read_is_refused_when_planned(
    stack: str, prompts: dict[str, Any], said: str, place: Callable[[str], Path], tmp_path: Path
) -> None:
    study = {
        "gausslens": 1,
        "model": {"path": str(place("marian")), "stack": stack},
        "prompts": prompts,
        "analyses": [{"use": "model.loss"}],
        "report": False,
    }
    with pytest.raises(GausslensError, match=re.compile(said, re.DOTALL)):
        gausslens.run(study, store=tmp_path, shown=False)
    assert not list(tmp_path.rglob("*.zarr"))


def test_pairs_are_not_for_models_of_one_stack(directory: Callable[[str], Path]) -> None:
    model = open_pretrained(ModelSpec(str(directory("gpt2")), TransformersParameters()))
    with pytest.raises(ModelError, match="pairs are for models of two stacks"):
        model.tokenise([pair("a", "b")])


def test_a_runner_without_sources_says_what_is_missing(opened: Open) -> None:
    runner = TransformersEngine().runner(Twin(opened("t5", "cross")))
    ids = np.array([[1, 5, 6]])
    for call in (lambda: runner.forward(ids), lambda: runner.generate(ids, 3)):
        with pytest.raises(ModelError, match=r"reads what its encoder makes of a source.*tokens\.beside"):
            call()
    encoder = TransformersEngine().runner(Twin(opened("t5", "encoder")))
    with pytest.raises(ModelError, match="sources are for the decoder"):
        encoder.forward(ids, sites=("resid_post",), sources=(ids, np.ones_like(ids)))
    with pytest.raises(ModelError, match="does not generate"):
        encoder.generate(ids, 3)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json"])
def test_pairs_of_a_file(kind: str, tmp_path: Path, place: Callable[[str], Path]) -> None:
    text = {
        "csv": 'en,de\nw5,w6\n"w7 w8",w9\nw5,w5\n',
        "tsv": "en\tde\nw5\tw6\nw7 w8\tw9\nw5\tw5\n",
        "jsonl": '{"en": "w5", "de": "w6"}\n\n{"en": "w7 w8", "de": "w9"}\n{"en": "w5", "de": "w5"}\n',
        "json": '[{"en": "w5", "de": "w6"}, {"en": "w7 w8", "de": "w9"}, {"en": "w5", "de": "w5"}]',
    }[kind]
    file = tmp_path / f"pairs.{kind}"
    file.write_text(text, "utf-8")
    prompts: dict[str, Any] = {"source": "pairs", "path": str(file), "fields": ["en", "de"], "limit": 2}
    study: dict[str, Any] = {
        "gausslens": 1,
        "model": {"path": str(place("marian")), "stack": "decoder"},
        "prompts": prompts,
        "analyses": [{"use": "model.generate", "with": {"tokens": 1}}],
        "report": False,
    }
    found = gausslens.run(study, store=tmp_path / "store", shown=False)["trained", "model.generate"]
    assert found["after"].values.tolist() == ["w5", "w7 w8"]
    study["prompts"] = prompts | {"fields": ["en", "fr"]}
    with pytest.raises(GausslensError, match=r"entry 0 has no text 'fr'.*it has en, de"):
        gausslens.run(study, store=tmp_path / "store", shown=False)


@pytest.mark.parametrize("stack", STACKS)
def test_nulls_are_of_the_stack_and_the_rest_stays_as_trained(
    stack: str, place: Callable[[str], Path], tmp_path: Path
) -> None:
    study: dict[str, Any] = {
        "gausslens": 1,
        "model": {"path": str(place("marian")), "stack": stack},
        "prompts": {"source": "pairs", "pairs": [{"source": s, "target": t} for s, t in PAIRS]},
        "variants": {"trained": [], "gaussian": {"edits": [{"edit": "reinit.gaussian"}], "draws": 3}},
        "against": "gaussian",
        "analyses": [{"use": "bilinear.spectrum"}] if stack == "encoder" else [{"use": "model.loss"}],
        "report": False,
    }
    results = gausslens.run(study, store=tmp_path, shown=False)
    if stack != "encoder":
        drawn = [float(one["mean_loss"]) for one in results.draws("gaussian", "model.loss").values()]
        assert len(set(drawn)) == 3
        assert float(results["trained", "model.loss"]["mean_loss"]) not in drawn


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_attention_to_a_source_goes_into_the_store_as_it_is(
    name: str, opened: Open, place: Callable[[str], Path], tmp_path: Path
) -> None:
    study: dict[str, Any] = {
        "gausslens": 1,
        "model": {"path": str(place(name)), "stack": "cross"},
        "prompts": {"source": "pairs", "pairs": [{"source": s, "target": t} for s, t in PAIRS]},
        "analyses": [{"use": "model.capture", "with": {"sites": ["pattern", "q", "k", "v", "resid_pre"]}}],
        "report": False,
    }
    found = gausslens.run(study, store=tmp_path, shown=False)["trained", "model.capture"]
    assert found["pattern"].dims == ("layer", "prompt", "head", "query", "key")
    assert found["k"].dims == ("layer", "prompt", "key", "kv_head", "d_head")
    assert found["q"].dims == ("layer", "prompt", "position", "head", "d_head")
    model = opened(name, "cross")
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


@pytest.mark.parametrize("stack", ["decoder", "cross"])
def test_what_an_edit_does_is_told_of_pairs(
    stack: str, opened: Open, place: Callable[[str], Path], tmp_path: Path
) -> None:
    """spectrum.effect on both stacks: its losses are those of model.loss, and its text that of model.generate."""
    study: dict[str, Any] = {
        "gausslens": 1,
        "model": {"path": str(place("bart")), "stack": stack},
        "prompts": {"source": "pairs", "pairs": [{"source": s, "target": t} for s, t in PAIRS]},
        "variants": {"trained": [], "sharp": [{"edit": "spectrum.scale", "alpha": 2.0}]},
        "analyses": [
            {"use": "spectrum.effect", "with": {"tokens": 4}},
            {"use": "model.loss"},
            {"use": "model.generate", "with": {"tokens": 4, "stop": ""}},
        ],
        "report": False,
    }
    results = gausslens.run(study, store=tmp_path, shown=False)
    effect = results["sharp", "spectrum.effect"]
    for variant, key in (("trained", "base_loss"), ("sharp", "loss")):
        assert float(effect[key]) == pytest.approx(float(results[variant, "model.loss"]["mean_loss"]), rel=1e-5)
    written = results["sharp", "model.generate"]["text"].values[:, 0].tolist()
    assert effect["text"].values.tolist() == written
    assert float(effect["divergence"].min()) > 0
    assert effect["after"].values.tolist() == [source for source, _ in PAIRS]


def test_the_command_and_python_take_a_stack(
    place: Callable[[str], Path], capsys: pytest.CaptureFixture[str], opened: Open
) -> None:
    from gausslens.__main__ import main

    path = str(place("marian"))
    assert main(["model", path, "--set", "stack=cross"]) == 0
    assert "marian-cross" in capsys.readouterr().out
    assert main(["model", path]) == 1
    assert "has two stacks of layers: say which is studied" in capsys.readouterr().err
    assert main(["model", path, "--set", "stack"]) == 2
    assert main(["model", path, "--set", "stack=both"]) == 2
    held = gausslens.load(path, stack="cross")
    assert torch.equal(held.weights(1).W_K, opened("marian", "cross").tensor(1, "W_K"))
    live = gausslens.load(built("marian"), stack="decoder")
    assert torch.equal(live.weights(2).W_Q, opened("marian", "decoder").tensor(2, "W_Q"))
    assert live.info.facts["stack"] == "decoder"


def test_shards_hold_what_sources_take(opened: Open) -> None:
    """No shard is over its size on either side: sources may be far longer than targets."""
    model = opened("marian", "decoder")
    tokens = model.tokenise([pair("w5 " * n, "w6") for n in (30, 3, 40, 5, 4)])
    assert tokens.sources is not None
    shards = tokens.shards(size=64)
    assert sorted(int(i) for shard in shards for i in shard) == [0, 1, 2, 3, 4]
    assert [shard.tolist() for shard in shards] == [[1, 4, 3], [0], [2]]
    for side in (tokens, tokens.sources):
        assert all(len(shard) * max(side.lengths[i] for i in shard) <= 64 for shard in shards)
