"""Studies of models of two stacks: prompts in pairs, loss, generation, nulls and edits, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_stacks import PAIRS, STACKED, built, pair, pairs_of, saved

import gausslens
from gausslens import GausslensError, ModelError, ModelSpec, Part, Prompt, SourceContext, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.config_and_tokenizer import DIRECTORY
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.parameters import PairsParameters, TransformersParameters
from gausslens_models.prompts.pairs import pairs

STACKS = ("encoder", "decoder", "cross")
Open = Callable[..., PretrainedModel]


@pytest.mark.parametrize("stack", ["decoder", "cross"])
@pytest.mark.parametrize("name", STACKED)
def test_loss_and_generation_are_those_of_transformers(
    name: str, stack: str, open_stack: Open, stacks_at: Callable[[str], Path], tmp_path: Path
) -> None:
    """The labels' loss, and greedy generation from the token that targets begin with."""
    study = {
        "gausslens": 1,
        "model": {"path": str(stacks_at(name)), "stack": stack},
        "prompts": {"source": "pairs", "pairs": [{"source": s, "target": t} for s, t in PAIRS]},
        "analyses": [{"use": "model.loss"}, {"use": "model.generate", "with": {"tokens": 6, "stop": ""}}],
        "report": False,
    }
    results = gausslens.run(study, store=tmp_path / "store", shown=False)
    loss, written = results["trained", "model.loss"], results["trained", "model.generate"]
    module = built(name)
    model = open_stack(name, stack)
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
def test_generation_with_replacement_is_that_without(name: str, open_stack: Open) -> None:
    """Step by step over the whole text as from what is remembered; so replacement sees generation."""
    model = open_stack(name, "cross")
    tokens, runner = pairs_of(model), TransformersEngine().runner(Twin(model))
    seen: list[tuple[int, ...]] = []
    plain = runner.generate(tokens.ids[0][None, :1], 5, **tokens.beside([0]))
    again = runner.generate(
        tokens.ids[0][None, :1], 5, replace=lambda layer, s, p, v: seen.append(tuple(p.shape)), **tokens.beside([0])
    )
    assert plain[0].tolist() == again[0].tolist()
    assert seen[0] == (1, 4, 1, 8)


def test_a_model_of_two_stacks_says_which_there_are(open_stack: Open) -> None:
    with pytest.raises(ModelError, match=r"two stacks.*stack: encoder.*stack: decoder.*stack: cross"):
        open_stack("t5", None)


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


def test_pairs_are_read_by_each_stack(open_stack: Open) -> None:
    encoder, decoder, cross = (pairs_of(open_stack("marian", stack)) for stack in STACKS)
    assert encoder.pieces[1] == ("w20", "w21", "w22", "</s>")
    assert decoder.pieces[1] == ("<s>", "w23", "w24", "w25", "w26", "w27", "</s>")
    assert decoder.text[1].tolist() == [False, *[True] * 5, False]
    assert decoder.word[1].tolist() == [-1, 0, 1, 2, 3, 4, -1]
    assert decoder.sources is not None
    assert decoder.sources.digest() == encoder.digest()
    assert cross.keys.digest() == encoder.digest()
    assert decoder.keys is decoder
    assert len({t.digest() for t in (encoder, decoder, cross)}) == 3


def test_an_empty_target_is_what_stands_before_each(open_stack: Open) -> None:
    found = open_stack("marian", "decoder").tokenise([pair("w5 w6", ""), pair("w5", "w7")])
    assert [row.tolist() for row in found.ids] == [[1], [1, 7, 2]]
    found = open_stack("mbart", "decoder").tokenise([pair("w5 w6", ""), pair("w5", "w7")])
    assert [row.tolist() for row in found.ids] == [[4], [4, 7, 2, 4]]


def test_an_encoder_reads_any_text(open_stack: Open) -> None:
    found = open_stack("marian", "encoder").tokenise(
        [Prompt((Part("w5 w6"),)), Prompt(ids=(7, 8, 9)), pair("w9", "w10")]
    )
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
    stack: str, prompts: dict[str, Any], said: str, stacks_at: Callable[[str], Path], tmp_path: Path
) -> None:
    study = {
        "gausslens": 1,
        "model": {"path": str(stacks_at("marian")), "stack": stack},
        "prompts": prompts,
        "analyses": [{"use": "model.loss"}],
        "report": False,
    }
    with pytest.raises(GausslensError, match=re.compile(said, re.DOTALL)):
        gausslens.run(study, store=tmp_path, shown=False)
    assert not list(tmp_path.rglob("*.zarr"))


def test_pairs_are_not_for_models_of_one_stack(tmp_path: Path) -> None:
    model = open_pretrained(ModelSpec(str(DIRECTORY / "tiny"), TransformersParameters()))
    of_tiny = {
        "gausslens": 1,
        "model": {"path": "builtin:tiny"},
        "prompts": {"source": "pairs", "pairs": [{"source": "a", "target": "b"}]},
        "analyses": [{"use": "model.loss"}],
    }
    with pytest.raises(GausslensError, match="pairs are for models of two stacks"):
        gausslens.run(of_tiny, store=tmp_path, shown=False)
    # Others may call their parts so, in one text.
    assert {"source", "target"} <= set(model.tokenise([pair("a", "b")]).segments)


def test_a_runner_without_sources_says_what_is_missing(open_stack: Open) -> None:
    runner = TransformersEngine().runner(Twin(open_stack("t5", "cross")))
    ids = np.array([[1, 5, 6]])
    for call in (lambda: runner.forward(ids), lambda: runner.generate(ids, 3)):
        with pytest.raises(ModelError, match=r"reads what its encoder makes of a source.*tokens\.beside"):
            call()
    encoder = TransformersEngine().runner(Twin(open_stack("t5", "encoder")))
    with pytest.raises(ModelError, match="sources are for the decoder"):
        encoder.forward(ids, sites=("resid_post",), sources=(ids, np.ones_like(ids)))
    with pytest.raises(ModelError, match="does not generate"):
        encoder.generate(ids, 3)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json"])
def test_pairs_of_a_file(kind: str, tmp_path: Path, stacks_at: Callable[[str], Path]) -> None:
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
        "model": {"path": str(stacks_at("marian")), "stack": "decoder"},
        "prompts": prompts,
        "analyses": [{"use": "model.generate", "with": {"tokens": 1}}],
        "report": False,
    }
    found = gausslens.run(study, store=tmp_path / "store", shown=False)["trained", "model.generate"]
    assert found["after"].values.tolist() == ["w5", "w7 w8"]
    study["prompts"] = prompts | {"fields": ["en", "fr"]}
    with pytest.raises(GausslensError, match=r"no text 'fr' in it: it has en, de"):
        gausslens.run(study, store=tmp_path / "store", shown=False)


@pytest.mark.parametrize("stack", STACKS)
def test_nulls_are_of_the_stack_and_the_rest_stays_as_trained(
    stack: str, stacks_at: Callable[[str], Path], tmp_path: Path
) -> None:
    study: dict[str, Any] = {
        "gausslens": 1,
        "model": {"path": str(stacks_at("marian")), "stack": stack},
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


@pytest.mark.parametrize("stack", ["decoder", "cross"])
def test_what_an_edit_does_is_told_of_pairs(
    stack: str, open_stack: Open, stacks_at: Callable[[str], Path], tmp_path: Path
) -> None:
    """spectrum.effect on both stacks: its losses are those of model.loss, and its text that of model.generate."""
    study: dict[str, Any] = {
        "gausslens": 1,
        "model": {"path": str(stacks_at("bart")), "stack": stack},
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
    stacks_at: Callable[[str], Path], capsys: pytest.CaptureFixture[str], open_stack: Open
) -> None:
    from gausslens.__main__ import main

    path = str(stacks_at("marian"))
    assert main(["model", path, "--set", "stack=cross"]) == 0
    assert "marian-cross" in capsys.readouterr().out
    assert main(["model", path]) == 1
    assert "has two stacks of layers: say which is studied" in capsys.readouterr().err
    assert main(["model", path, "--set", "stack"]) == 2
    assert main(["model", path, "--set", "stack=both"]) == 2
    held = gausslens.load(path, stack="cross")
    assert torch.equal(held.weights(1).W_K, open_stack("marian", "cross").tensor(1, "W_K"))
    live = gausslens.load(built("marian"), stack="decoder")
    assert torch.equal(live.weights(2).W_Q, open_stack("marian", "decoder").tensor(2, "W_Q"))
    assert live.info.facts["stack"] == "decoder"


def test_shards_hold_what_sources_take(open_stack: Open) -> None:
    """No shard is over its size on either side: sources may be far longer than targets."""
    model = open_stack("marian", "decoder")
    tokens = model.tokenise([pair("w5 " * n, "w6") for n in (30, 3, 40, 5, 4)])
    assert tokens.sources is not None
    shards = tokens.shards(size=64)
    assert sorted(int(i) for shard in shards for i in shard) == [0, 1, 2, 3, 4]
    assert [shard.tolist() for shard in shards] == [[1, 4, 3], [0], [2]]
    for side in (tokens, tokens.sources):
        assert all(len(shard) * max(side.lengths[i] for i in shard) <= 64 for shard in shards)


def test_files_as_others_write_them(tmp_path: Path) -> None:
    """A mark of byte order is no text, a quote in .tsv is a letter, and an empty target is one."""
    written = {
        "tsv": '\ufeffsource\ttarget\n"w5" w6\tw7\n"w8\t\n',
        "csv": '\ufeffsource,target\r\n"""w5"" w6",w7\r\n"""w8",\r\n',
        "json": '\ufeff[{"source": "\\"w5\\" w6", "target": "w7"}, {"source": "\\"w8", "target": null}]',
        "jsonl": '\ufeff{"source": "\\"w5\\" w6", "target": "w7"}\n{"source": "\\"w8", "target": ""}\n',
    }
    for kind, text in written.items():
        (tmp_path / f"pairs.{kind}").write_text(text, "utf-8", newline="")
        found = [*pairs(PairsParameters(path=f"pairs.{kind}"), SourceContext(tmp_path, 0, {"stack": "cross"}))]
        assert [[part.text for part in one.parts] for one in found] == [['"w5" w6', "w7"], ['"w8', ""]], kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('source,target\n"w5" w6,w7\n', "quotes that do not fit"),
        ("source,target\nw5,w6,w7\n", "pairs.csv:2: 1 more columns than the first line names"),
        ("source\nw5\n", "no text 'target' in it: it has source"),
    ],
)
def test_files_that_are_wrong_are_told_by_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text(text, "utf-8")
    with pytest.raises(GausslensError, match=said):
        list(pairs(PairsParameters(path="pairs.csv"), SourceContext(tmp_path, 0, {"stack": "cross"})))


@pytest.mark.parametrize("segments", [["target"], ["t*"]])
def test_targets_change_places_beside_their_sources(
    segments: list[str], stacks_at: Callable[[str], Path], tmp_path: Path
) -> None:
    study: dict[str, Any] = {
        "gausslens": 1,
        "model": {"path": str(stacks_at("marian")), "stack": "cross"},
        "prompts": {"source": "pairs", "pairs": [{"source": s, "target": t} for s, t in PAIRS]},
        "variants": {"trained": [], "others": {"prompts": {"shuffle": "documents", "segments": segments}, "draws": 2}},
        "against": "others",
        "analyses": [{"use": "model.loss"}],
        "report": False,
    }
    results = gausslens.run(study, store=tmp_path, shown=False)
    whole = results["trained", "model.loss"]
    for one in results.draws("others", "model.loss").values():
        assert int(one["tokens"]) == int(whole["tokens"])
        assert float(one["mean_loss"]) != float(whole["mean_loss"])
    study["variants"]["others"]["prompts"]["segments"] = ["source"]
    with pytest.raises(GausslensError, match="sources stay, targets are shuffled"):
        gausslens.run(study, store=tmp_path, shown=False)
