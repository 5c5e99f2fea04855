"""A plain torch module with a mapping is what its Hugging Face twin is, or is refused by what does not fit."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plain_gpt
import pytest
import torch
from plain_gpt import GPT, GPT_MAPPING, ROTARY_MAPPING, Turned, changed, gpt_twins, rotary_twins, unproved
from scripts import script_at
from torch import nn

import gausslens
from gausslens import InputError, ModelError, Request, Tokens, Twin
from gausslens_models.capture.plain_capture import PlainEngine

ROOT = Path(__file__).parents[3]
every_type = script_at("benchmarks/every_type.py")

TIER = os.environ.get("GAUSSLENS_FULL")
SAMPLE = ("model.loss", "model.capture", "model.generate", "gaussian.moments", "bilinear.logits", "attention.swap")
TWINS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "linear": (gpt_twins, GPT_MAPPING),
    "conv1d": (lambda: gpt_twins(Turned), GPT_MAPPING | {"stored": "in_out"}),
    "rotary": (rotary_twins, ROTARY_MAPPING),
}


def of(*analyses: str) -> dict[str, Any]:
    study = every_type.study("", analyses)
    del study["model"]
    study["variants"]["before"] = {"edits": [{"edit": "reinit.gaussian"}], "draws": 2}
    return study


class Body(GPT):
    """Without its head."""

    def forward(self, idx: torch.Tensor, targets: Any = None) -> Any:
        found: list[torch.Tensor] = []
        handle = self.transformer["ln_f"].register_forward_hook(lambda _m, _a, out: found.append(out))
        super().forward(idx)
        handle.remove()
        return found[0]


def assert_equal(one: Any, other: Any) -> int:
    """All numbers of two runs, but for rounding: 1e-5 of the largest of a variable, or of one.

    Effects of what is one number but for rounding are left out: they are quotients of two roundings.
    """
    assert list(one) == list(other)
    for name in one:
        plain = one[name[0], name[1].partition(".against.")[0]] if ".against." in name[1] else {}
        for variable, values in one[name].data_vars.items():
            of = plain.get(str(variable).rpartition("_")[0])
            if of is not None and of.dtype.kind == "f" and float(of.max() - of.min()) < 1e-5:
                continue
            ours, theirs = values.values, other[name][variable].values
            if ours.dtype.kind not in "fc":
                np.testing.assert_array_equal(ours, theirs)
            else:
                largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0)
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * largest, err_msg=f"{name} {variable}")
    return len(list(one))


class TestTwins:
    @pytest.mark.parametrize("sort", TWINS)
    def test_everything_is_proved(self, sort: str) -> None:
        twins, mapping = TWINS[sort]
        model = gausslens.load(twins()[0], mapping=mapping)._opened.model
        findings = PlainEngine().prove(model)
        assert [f for f in findings if not f.holds or f.left_out] == []
        assert not model.info.facts["notes"]
        proved = {f.what.split(" of layer")[0] for f in findings}
        rotated = {"q_rot", "k_rot"} if sort == "rotary" else set()
        assert rotated | {"logits", "q", "k", "v", "scores", "pattern", "z", "attn_out", "mlp_post"} <= proved

    @pytest.mark.parametrize("sort", TWINS)
    def test_tensors_are_those_of_the_twin(self, sort: str) -> None:
        twins, mapping = TWINS[sort]
        ours, theirs = twins()
        mine, other = gausslens.load(ours, mapping=mapping), gausslens.load(theirs)
        for layer in (None, 0, 2):
            assert set(mine.weights(layer).names) == set(other.weights(layer).names)
            for name in mine.weights(layer).names:
                torch.testing.assert_close(mine.weights(layer)[name], other.weights(layer)[name], rtol=0, atol=0)

    @pytest.mark.parametrize("sort", TWINS if TIER else ["linear"])
    def test_analyses_give_what_they_give_of_the_twin(self, sort: str, tmp_path: Path) -> None:
        twins, mapping = TWINS[sort]
        ours, theirs = twins()
        whole = TIER == "soak" or (TIER and sort == "linear")
        study = of(*(() if whole else SAMPLE))
        words = every_type.tokenizer(plain_gpt.VOCABULARY)
        one = gausslens.run(study, tmp_path / "ours", model=ours, tokenizer=words, mapping=mapping, shown=False)
        other = gausslens.run(study, tmp_path / "theirs", model=theirs, tokenizer=words, shown=False)
        assert assert_equal(one, other) >= 2 * len(SAMPLE)

    def test_blocks_of_rows_are_the_whole(self, prompts: Tokens) -> None:
        model = gausslens.load(rotary_twins()[0], mapping=ROTARY_MAPPING)._opened.model
        shard, sites, found = prompts.shards()[0], ("scores", "pattern"), []
        for rows in (None, 3):
            blocks: list[Any] = []
            PlainEngine().run(Twin(model), prompts, shard, Request(sites, rows=rows), blocks.append)
            found.append([torch.cat([b[site] for b in blocks if b.layer == 1], dim=2) for site in sites])
        assert len(blocks) > 3
        torch.testing.assert_close(found[0], found[1])

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_types_are_proved(self, dtype: torch.dtype) -> None:
        model = gausslens.load(gpt_twins()[0].to(dtype), mapping=GPT_MAPPING)._opened.model
        assert [f for f in PlainEngine().prove(model) if not f.holds] == []

    def test_without_a_head(self) -> None:
        ours = Body()
        ours.load_state_dict(gpt_twins()[0].state_dict())
        model = gausslens.load(ours, mapping=changed(GPT_MAPPING, outside={"W_U": None}))._opened.model
        findings = PlainEngine().prove(model)
        assert [f for f in findings if not f.holds] == []
        assert "final hidden state from weights" in {f.what for f in findings}
        assert "logits" not in model.sites

    def test_a_tied_head_is_edited_by_itself(self, written: type[Any]) -> None:
        """As in its twin: W_U and W_E are one parameter until a twin has another of one of them."""
        tokens, found = np.array([[5, 9, 2, 30, 8]]), []
        for module, told in zip(gpt_twins(), (GPT_MAPPING, None), strict=True):
            opened = gausslens.load(module, mapping=told)._opened
            assert opened.running is not None
            twin = written(opened.model, change=lambda name, tensor: tensor * 0.5 if name == "W_U" else None)
            runner = opened.running.runner(twin)
            plain = runner.forward(tokens, base=True)["logits"]
            found.append(runner.forward(tokens)["logits"])
            torch.testing.assert_close(found[-1], plain * 0.5)
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)

    def test_a_module_is_as_it_was(self) -> None:
        ours, _ = gpt_twins()
        assert ours.training
        before = {name: parameter.clone() for name, parameter in ours.named_parameters()}
        model = gausslens.load(ours, mapping=GPT_MAPPING)._opened.model
        PlainEngine().prove(model)
        PlainEngine().runner(Twin(model)).forward(np.array([[1, 2, 3]]))
        assert all(m.training and not m._forward_hooks and not m._forward_pre_hooks for m in ours.modules())
        assert all(torch.equal(before[name], parameter) for name, parameter in ours.named_parameters())

    @pytest.mark.parametrize("sort", TWINS)
    def test_replacement_is_that_of_the_twin_and_of_nothing_nothing(self, sort: str) -> None:
        twins, mapping = TWINS[sort]
        tokens = np.array([[5, 9, 2, 30, 8]])
        found = []
        for module, told in zip(twins(), (mapping, None), strict=True):
            opened = gausslens.load(module, mapping=told)._opened
            assert opened.running is not None
            runner = opened.running.runner(Twin(opened.model))
            plain = runner.forward(tokens)["logits"]
            same = runner.forward(tokens, replace=lambda _layer, _s, pattern, _v: pattern)["logits"]
            assert torch.equal(plain, same)
            found.append(
                runner.forward(
                    tokens,
                    replace=lambda _layer, _s, _p, v: v.mean(2, keepdim=True).expand(*v.shape[:2], 4, v.shape[-1]) * 2,
                )["logits"]
            )
            assert (found[-1] - plain).abs().max() > 0.1
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


class TestRefused:
    """What a mapping says wrongly is told by the tensor and both shapes, by near names, or by what is not proved."""

    @pytest.mark.parametrize(
        ("blocks", "said"),
        [
            ({"tensors": {"W_O": "attn.c_pro.weight"}}, r"no parameter transformer.h.0.attn.c_pro.weight.*W_O.*c_proj"),
            ({"tensors": {"W_Q": "attn.c_attn.weight[q] in_out"}}, r"c_attn.weight has shape \[96, 32\].*\[4, 32, 8\]"),
            (
                {"tensors": {"W_in": "mlp.c_fc.weight in_out"}},
                r"c_fc.weight has shape \[128, 32\].*\[128, 32\].*\[32, an",
            ),
            ({"tensors": {"W_Q": "attn.c_attn.weight"}}, r"\[96, 32\].*cannot be cut.*\[4, 32, 8\]"),
            ({"tensors": {"W_Q": "attn.c_attn.weight[r]"}}, "there is no part 'r'"),
            ({"tensors": {"ln1.b": None}}, "the mapping names no transformer.h.0.ln_1.bias"),
            ({"tensors": {"W_X": "attn.c_proj.weight"}}, "W_X is no tensor of a layer.*ignored"),
            ({"outside": {"W_E": "transformer.wpe.weight"}}, "is both W_E and W_pos"),
            ({"sites": {"attn_out": "atn"}}, "no module transformer.h.0.atn, at which the mapping sees attn_out"),
            ({"facts": {"norms": "rms"}}, "norm"),
        ],
    )
    def test_what_does_not_fit(self, blocks: dict[str, Any], said: str) -> None:
        with pytest.raises((ModelError, InputError)) as caught:
            gausslens.load(GPT(), mapping=changed(GPT_MAPPING, **blocks))
        assert re.search(said, str(caught.value)), caught.value

    def test_other_sizes_and_layers(self) -> None:
        with pytest.raises(ModelError, match=r"\[96, 32\].*n_heads 4, n_kv_heads 2"):
            gausslens.load(GPT(), mapping=GPT_MAPPING | {"n_kv_heads": 2})
        with pytest.raises(ModelError, match=r"called blocks.0.*lists of layers in it: transformer.h"):
            gausslens.load(GPT(), mapping=GPT_MAPPING | {"layers": "blocks"})
        with pytest.raises(InputError, match="given as model="):
            gausslens.run(of("model.loss"), mapping=GPT_MAPPING)

    @pytest.mark.parametrize(
        ("blocks", "what"),
        [
            (
                {
                    "tensors": {
                        "W_K": "attn.c_attn.weight[v]",
                        "W_V": "attn.c_attn.weight[k]",
                        "b_K": "attn.c_attn.bias[v]",
                        "b_V": "attn.c_attn.bias[k]",
                    }
                },
                "z of layer 0",
            ),
            ({"facts": {"scale": 1.0}}, "z of layer 0"),
            ({"facts": {"causal": False}, "arguments": {"targets": "ids"}}, "z of layer 0"),
            ({"facts": {"norm_epsilon": 0.1}}, "q of layer 0"),
            ({"facts": {"activation": "relu"}}, "mlp_post of layer 0"),
            ({"facts": {"embedding_scale": 2.0}}, "resid_pre of layer 0"),
        ],
    )
    def test_what_is_not_so_is_not_proved(self, blocks: dict[str, Any], what: str) -> None:
        mapping = changed(GPT_MAPPING, **blocks)
        if "arguments" in blocks:
            mapping["arguments"] = {"targets": "mask"}
        wrong = [f.what for f in PlainEngine().prove(unproved(gpt_twins()[0], mapping)) if not f.holds]
        assert f"{what} from weights" in wrong
        with pytest.raises(ModelError, match="does not compute what its mapping says"):
            gausslens.load(gpt_twins()[0], mapping=mapping)

    def test_a_run_that_reads_patterns_alone_is_refused_by_its_z(self, tmp_path: Path) -> None:
        """Patterns are ours: where they are wrong, only z can tell."""
        study = of("model.attention")
        study["variants"] = {"trained": []}
        del study["against"]
        with pytest.raises(ModelError, match=r"z of layer \d from weights: differs"):
            gausslens.run(
                study, tmp_path, model=gpt_twins()[0], mapping=changed(GPT_MAPPING, facts={"scale": 1.0}), shown=False
            )

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (lambda logits: {"logits": logits, "loss": None}, ""),
            (lambda logits: [logits], ""),
            (lambda logits: (None, logits), r"gives \(NoneType, Tensor\): what is taken .* the first of a tuple"),
            (lambda logits: {"out": logits}, "gives a table of out: what is taken"),
        ],
    )
    def test_what_is_taken_as_logits(self, given: Callable[[Any], Any], said: str) -> None:
        class Given(GPT):
            def forward(self, idx: torch.Tensor, targets: Any = None) -> Any:
                return given(super().forward(idx)[0])

        ours = Given()
        ours.load_state_dict(gpt_twins()[0].state_dict())
        if not said:
            assert gausslens.load(ours, mapping=GPT_MAPPING).info.n_layers == 3
            return
        with pytest.raises(ModelError, match=said):
            gausslens.load(ours, mapping=GPT_MAPPING)

    def test_arguments_and_numbers_that_the_module_does_not_take(self) -> None:
        with pytest.raises(ModelError, match=r"fails on token numbers \[1, 4\] and nask \(arguments .*TypeError.*nask"):
            gausslens.load(GPT(), mapping=GPT_MAPPING | {"arguments": {"nask": "mask"}})
        exchanged = {"W_E": "transformer.wpe.weight", "W_pos": "transformer.wte.weight"}
        mapping = changed(GPT_MAPPING, outside=exchanged)
        module = gpt_twins()[0]
        module.lm_head.weight = nn.Parameter(module.lm_head.weight.detach().clone())
        with pytest.raises(
            ModelError, match=r"up to 6[123] \(.* W_E is transformer.wpe.weight, of 64 rows.*IndexError"
        ):
            gausslens.load(module, mapping=mapping)

    def test_what_is_none_of_ours_is_ignored_and_told(self) -> None:
        class Experts(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.router = nn.Linear(32, 2)
                self.experts = nn.ModuleList([nn.Linear(32, 32) for _ in range(2)])

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                share = self.router(x).softmax(-1)
                return sum(share[..., n, None] * e(x) for n, e in enumerate(self.experts))  # type: ignore[return-value]

        class Mixture(GPT):
            def __init__(self) -> None:
                super().__init__()
                self.load_state_dict(gpt_twins()[0].state_dict())
                for block in self.transformer["h"]:
                    experts = Experts()
                    block.mlp = nn.ModuleDict({"c_fc": experts, "c_proj": nn.Identity()})
                    block.forward = lambda x, b=block, e=experts: (y := x + b.attn(b.ln_1(x))) + e(b.ln_2(y))

        torch.manual_seed(3)
        dense = dict.fromkeys(("W_in", "b_in", "W_out", "b_out"))
        mapping = changed(GPT_MAPPING, tensors=dense)
        with pytest.raises(ModelError, match=r"names no .*mlp.c_fc.*`ignored`.*\[mlp.c_fc"):
            gausslens.load(Mixture(), mapping=mapping)
        with pytest.raises(ModelError, match="no tensor that the mapping leaves has 'expert_s'"):
            gausslens.load(Mixture(), mapping=mapping | {"ignored": ["mlp.c_fc", "expert_s"]})
        told = mapping | {"ignored": ["mlp.c_fc"], "sites": {"mlp_out": "mlp.c_fc"}}
        found = gausslens.load(Mixture(), mapping=told)
        notes = " ".join(found.info.facts["notes"])
        assert "18 tensors are none of ours" in notes
        findings = PlainEngine().prove(found._opened.model)
        assert {"resid_post of layer 1 from weights", "z of layer 1 from weights"} <= {
            f.what for f in findings if f.holds and not f.left_out
        }

    def test_the_last_position_alone(self) -> None:
        class Last(GPT):
            def forward(self, idx: torch.Tensor, targets: Any = None) -> Any:
                logits, loss = super().forward(idx)
                return (logits if targets is not None else logits[:, [-1]]), loss

        ours = Last()
        ours.load_state_dict(gpt_twins()[0].state_dict())
        with pytest.raises(ModelError, match=r"gives \[1, 1, 61\].*arguments: \{targets: ids\}"):
            PlainEngine().prove(gausslens.load(ours, mapping=GPT_MAPPING)._opened.model)
        whole = gausslens.load(ours, mapping=GPT_MAPPING | {"arguments": {"targets": "ids"}})
        assert all(f.holds for f in PlainEngine().prove(whole._opened.model))

    def test_heads_that_no_module_shows(self, tmp_path: Path) -> None:
        """What is not proved of nn.MultiheadAttention is told; the stream can be studied."""

        class Fused(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.ln_1, self.ln_2 = nn.LayerNorm(32), nn.LayerNorm(32)
                self.attn = nn.MultiheadAttention(32, 4, batch_first=True)
                self.mlp = nn.ModuleDict({"c_fc": nn.Linear(32, 128), "c_proj": nn.Linear(128, 32)})

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                read, seen = self.ln_1(x), ~torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
                x = x + self.attn(read, read, read, attn_mask=seen, need_weights=False)[0]
                return x + self.mlp["c_proj"](torch.relu(self.mlp["c_fc"](self.ln_2(x))))

        torch.manual_seed(4)
        module = GPT()
        module.transformer["h"] = nn.ModuleList([Fused() for _ in range(2)])
        parts = {f"W_{n.upper()}": f"attn.in_proj_weight[{n}]" for n in "qkv"}
        parts |= {f"b_{n.upper()}": f"attn.in_proj_bias[{n}]" for n in "qkv"}
        parts |= {"W_O": "attn.out_proj.weight", "b_O": "attn.out_proj.bias"}
        mapping = changed(GPT_MAPPING, tensors=parts, facts={"activation": "relu"})
        model = gausslens.load(module, mapping=mapping)
        assert {"q", "z", "pattern", "scores"} <= model.info.lacking[0].keys()
        assert "never calls transformer.h.N.attn.out_proj" in model.info.lacking[0]["z"]
        note = next(note for note in model.info.facts["notes"] if "not proved" in note)
        assert set(note.split(" are ")[0].split(", ")) == {
            *(f"{kind}_{n}" for kind in "Wb" for n in "QKVO"),
            *("ln1.w", "ln1.b"),
        }
        study = of("model.capture") | {"variants": {"trained": []}}
        study["analyses"] = [{"use": "model.capture", "with": {"sites": ["attn_out", "resid_mid", "resid_post"]}}]
        study["prompts"] = {"source": "tokens", "ids": [[3, 9, 4, 1, 7]]}
        del study["against"]
        found = gausslens.run(study, tmp_path, model=module, mapping=mapping, shown=False)["trained", "model.capture"]
        block, given = module.transformer["h"][0], []
        block.attn.register_forward_hook(lambda _m, _a, out: given.append(out[0].detach()))
        module.eval()(torch.tensor([[3, 9, 4, 1, 7]]))
        ours = found["attn_out"].transpose("layer", "prompt", ...).values[0, 0]
        np.testing.assert_allclose(ours, given[0][0].numpy(), rtol=0, atol=1e-5)
        with pytest.raises(
            ModelError, match=r"a pass never calls transformer.h.N.attn.out_proj, at which .* sees attn_out"
        ):
            gausslens.load(module, mapping=mapping | {"sites": {"attn_out": "attn.out_proj"}})

    def test_weights_alone_are_proved_and_nothing_is_served_without(self, tmp_path: Path) -> None:
        exchanged = {"W_Q": "attn.c_attn.weight[k]", "W_K": "attn.c_attn.weight[q]"}
        exchanged |= {"b_Q": "attn.c_attn.bias[k]", "b_K": "attn.c_attn.bias[q]"}
        mapping = changed(GPT_MAPPING, tensors=exchanged)
        with pytest.raises(ModelError, match=r"z of layer . from weights: differs by"):
            gausslens.load(gpt_twins()[0], mapping=mapping)
        study = of("bilinear.spectrum") | {"variants": {"trained": []}}
        del study["against"]
        with pytest.raises(ModelError, match="does not compute what its mapping says"):
            gausslens.run(study, tmp_path, model=gpt_twins()[0], mapping=mapping, shown=False)


class TestInitial:
    def test_a_plain_module_does_not_say_how_it_began(self, tmp_path: Path) -> None:
        study = of("reinit.check") | {
            "variants": {"before": {"edits": [{"edit": "reinit.config"}], "draws": 2}},
            "against": [],
        }
        with pytest.raises(gausslens.GausslensError, match="does not say how it was initialised"):
            gausslens.run(study, tmp_path, model=gpt_twins()[0], mapping=GPT_MAPPING, shown=False)

    def test_the_function_that_the_mapping_names_does(self) -> None:
        model = gausslens.load(gpt_twins()[0], mapping=GPT_MAPPING | {"init": "plain_gpt:GPT"})._opened.model
        drawn = [model.initial(1, "W_Q", seed) for seed in (1, 1, 2)]
        assert drawn[0].shape == (4, 32, 8)
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])
        # nn.Linear draws from a uniform of width 2 / sqrt(32): 1,024 have its sd to 2 %, six times that is allowed.
        assert float(drawn[0].std()) == pytest.approx((3 * 32) ** -0.5, rel=0.12)
        assert torch.equal(model.initial(0, "ln1.w", 3), torch.ones(32))
        with pytest.raises(ModelError, match="cannot be imported"):
            gausslens.load(gpt_twins()[0], mapping=GPT_MAPPING | {"init": "plain_gpt:no"}).info  # noqa: B018


@pytest.mark.parametrize("kind", ["plain", "transformers"])
def test_two_threads_on_one_module_take_turns(kind: str, tmp_path: Path) -> None:
    """Each gets what it gets alone, though both edit the module and hang hooks on it."""
    ours, theirs = gpt_twins()
    module, mapping = (ours, GPT_MAPPING) if kind == "plain" else (theirs, None)
    names = ("model.capture", "gaussian.moments")
    studies = [of(*names), of(*names) | {"seed": 5}]
    alone = [
        gausslens.run(s, tmp_path / f"alone{n}", model=module, mapping=mapping, shown=False)
        for n, s in enumerate(studies)
    ]
    found: dict[int, Any] = {}
    ready = threading.Barrier(2)

    def run(number: int) -> None:
        ready.wait()
        try:
            found[number] = gausslens.run(
                studies[number], tmp_path / f"both{number}", model=module, mapping=mapping, shown=False
            )
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (0, 1):
        assert not isinstance(found[number], BaseException), found[number]
        for name in alone[number]:
            assert found[number][name].equals(alone[number][name])


def test_the_page_s_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    section = page[page.index("## A plain torch module") :]
    snippet = section[section.index("```python\n") + 10 :]
    snippet = snippet[: snippet.index("\n```")]
    monkeypatch.chdir(tmp_path)
    words = every_type.tokenizer(plain_gpt.VOCABULARY)
    names: dict[str, Any] = {"module": gpt_twins()[0], "tokenizer": words}
    exec(compile(snippet, "docs/models.md", "exec"), names)
    assert names["mapping"]["tensors"] == GPT_MAPPING["tensors"]
    assert ("trained", "attention.swap") in names["results"]
