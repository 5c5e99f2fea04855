"""Interventions at every site: what flows on is what they make of it, here as with plain torch hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_gpt import GPT_MAPPING, ROTARY_MAPPING, gpt_twins, rotary_twins
from random_models import ALL, OTHERS
from tiny_stacks import STACKED

import gausslens
from gausslens import Intervention, ModelError, ModelSpec, Twin, Where, site
from gausslens_models.capture.bridge_engine import BridgeEngine
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.capture.intervention_proof import prove_site
from gausslens_models.capture.plain_capture import PlainEngine
from gausslens_models.loading.bridge import open_bridge
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.parameters import TransformersParameters

Opens = Callable[[str], PretrainedModel]
# Of each way to be unlike: fused, norms behind, latent, sinks, hybrids, parallel, multipliers, one layer, not watched.
FAST = (
    *("llama", "gpt2", "gemma2", "bert", "deepseek_v3", "gpt_oss", "jamba", "gptj", "granite", "albert", "deberta"),
    *("phi3", "qwen3_next", "esm", "opt"),
)
KINDS: dict[str, Any] = ALL | OTHERS
SLOW = tuple(name for name in KINDS if name not in FAST)
# Where a site is seen is not where the model goes on: refused by name.
ELSEWHERE = "takes no interventions"


def layers_with(model: PretrainedModel, name: str) -> list[int | None]:
    """One layer of each kind that has it, the first."""
    if site(name).whole:
        return [None]
    kinds: dict[Any, int | None] = {}
    for layer in model.info.layers:
        if name not in model.info.lacking.get(layer, {}):
            kinds.setdefault((model.layout.kinds[layer], *model.layout.mixed[layer : layer + 1]), layer)
    return list(kinds.values())


def check_every_site(model: PretrainedModel, engine: Any) -> dict[str, str]:
    """The proof of each site holds; those that are refused, with the reason."""
    refused = {}
    for name in engine.sites(model):
        for layer in layers_with(model, name):
            try:
                findings = prove_site(model, engine.capture, name, layer)
            except ModelError as error:
                refused[name] = str(error)
            else:
                assert [f for f in findings if not f.holds] == [], name
    assert all(ELSEWHERE in said for said in refused.values()), refused
    return refused


@pytest.mark.parametrize("kind", [*FAST, *(pytest.param(name, marks=pytest.mark.full) for name in SLOW)])
def test_every_site_of_every_type(kind: str, opened: Opens) -> None:
    model = opened(kind)
    refused = check_every_site(model, TransformersEngine())
    assert set(refused) <= {"k"} if model.layout.family.latent else set(refused) <= {"pattern"}


@pytest.mark.parametrize(
    ("kind", "stack"),
    [("t5", "cross"), ("bart", "decoder")]
    + [pytest.param(k, s, marks=pytest.mark.full) for k in STACKED for s in ("encoder", "decoder", "cross")],
)
def test_every_site_of_two_stacks(kind: str, stack: str, open_stack: Callable[..., PretrainedModel]) -> None:
    assert check_every_site(open_stack(kind, stack), TransformersEngine()) == {}


@pytest.mark.parametrize("mapping", ["gpt", "rotary"])
def test_every_site_of_a_plain_module(mapping: str) -> None:
    module, mapped = (gpt_twins()[0], GPT_MAPPING) if mapping == "gpt" else (rotary_twins()[0], ROTARY_MAPPING)
    model: Any = gausslens.load(module, mapping=mapped)._opened.model
    assert check_every_site(model, PlainEngine()) == {}


@pytest.mark.parametrize("kind", ["llama", pytest.param("gpt2", marks=pytest.mark.full)])
def test_a_bridge_acts_or_refuses(kind: str, directory: Callable[[str], Path]) -> None:
    """Where TransformerLens hands out what it does not go on with, interventions are refused."""
    model: Any = open_bridge(ModelSpec(str(directory(kind)), TransformersParameters()))
    model.bridge  # noqa: B018 - booted
    engine = BridgeEngine()
    runner, ids = engine.runner(Twin(model)), np.array([[5, 9, 11, 7, 20]])
    base = runner.forward(ids)["logits"]
    acting, refused = set(), []
    for name in engine.sites(model):
        for layer in layers_with(model, name):
            one = Intervention(name, layer, lambda tensor, where: torch.zeros_like(tensor))
            try:
                assert not torch.equal(runner.forward(ids, interventions=[one])["logits"], base), name
                acting.add(name)
            except ModelError as error:
                refused.append(str(error))
    assert all("do not act as they should" in said for said in refused), refused
    assert acting >= {"embed", "resid_pre", "q", "v", "z", "attn_out", "mlp_out", "logits"}


# The same by hand: a family's modules, and where among the features of each q, k and v lie.
HOOKED: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "llama": ("model.layers", {s: (f"self_attn.{s}_proj", "") for s in "qkv"} | {"z": ("self_attn.o_proj", "")}),
    "gpt2": ("transformer.h", {s: ("attn.c_attn", s) for s in "qkv"} | {"z": ("attn.c_proj", "")}),
    "phi3": ("model.layers", {s: ("self_attn.qkv_proj", s) for s in "qkv"} | {"z": ("self_attn.o_proj", "")}),
    "gemma2": ("model.layers", {s: (f"self_attn.{s}_proj", "") for s in "qkv"} | {"z": ("self_attn.o_proj", "")}),
    "gpt_oss": ("model.layers", {s: (f"self_attn.{s}_proj", "") for s in "qkv"} | {"z": ("self_attn.o_proj", "")}),
    "opt": (
        "model.decoder.layers",
        {s: (f"self_attn.{s}_proj", "") for s in "qkv"} | {"z": ("self_attn.out_proj", "")},
    ),
    "qwen3_moe": ("model.layers", {s: (f"self_attn.{s}_proj", "") for s in "qkv"} | {"z": ("self_attn.o_proj", "")}),
}
MLP = {"gpt2": "mlp", "opt": "fc2", "gemma2": "post_feedforward_layernorm"}


@contextmanager
def by_hand(
    model: PretrainedModel, kind: str, name: str, layer: int, head: int, position: int, vector: torch.Tensor
) -> Iterator[None]:
    """A vector put in place of what is there, by a hook on the module that makes or reads it."""
    stack, modules = HOOKED[kind]
    block = model.module.get_submodule(f"{stack}.{layer}")
    sizes = model.info
    d = sizes.d_head
    start = {"k": sizes.n_heads * d, "v": (sizes.n_heads + sizes.n_kv_heads) * d}
    place, part = modules.get(name, ("", ""))
    first = (start.get(part, 0) if part else 0) + head * d

    def written(tensor: torch.Tensor) -> torch.Tensor:
        new = tensor.clone()
        if name in modules:
            new[:, position, first : first + d] = vector
        elif new.ndim == 2:
            new.unflatten(0, (1, -1))[:, position] = vector
        else:
            new[:, position] = vector
        return new

    if name in ("z", "resid_pre"):
        target = block.get_submodule(place) if name == "z" else block
        handle = target.register_forward_pre_hook(lambda m, a: (written(a[0]), *a[1:]))
    else:
        target = block.get_submodule(place or MLP.get(kind, "mlp"))
        handle = target.register_forward_hook(
            lambda m, a, out: (written(out[0]), *out[1:]) if isinstance(out, tuple) else written(out)
        )
    try:
        yield
    finally:
        handle.remove()


def compare_with_hooks(model: PretrainedModel, kind: str, ids: np.ndarray, layer: int, places: Sequence[int]) -> float:
    """The worst difference of logits over sites, heads and positions, as a part of the largest logit."""
    runner = TransformersEngine().runner(Twin(model))
    draw = torch.Generator().manual_seed(0)
    model.module.set_attn_implementation("eager")
    worst = 0.0
    plain = runner.forward(ids)["logits"]
    for name in ("resid_pre", "z", "mlp_out", "q", "k", "v"):
        row, info = site(name), model.info
        heads = list(row.heads(info)) if row.heads_dim else [None]
        for head in (heads[0], heads[-1]):
            for position in places:
                vector = torch.randn(row.width(info), generator=draw)
                patch = Intervention(
                    name,
                    layer,
                    lambda tensor, where, vector=vector: vector.expand_as(tensor),
                    heads=None if head is None else [head],
                    positions=[position],
                )
                ours = runner.forward(ids, interventions=[patch])["logits"]
                with by_hand(model, kind, name, layer, head or 0, position, vector), torch.no_grad():
                    theirs = model.module(torch.as_tensor(ids), use_cache=False).logits
                worst = max(worst, float((ours - theirs).abs().max() / theirs.abs().max()))
                assert float((ours - plain).abs().max()) > 1e-4, (name, head, position)
    return worst


@pytest.mark.parametrize("kind", HOOKED)
def test_patching_is_that_of_plain_hooks(kind: str, opened: Opens) -> None:
    ids = np.array([[5, 9, 11, 7, 20, 31]])
    assert compare_with_hooks(opened(kind), kind, ids, 1, [1, 4]) < 1e-6


@pytest.mark.real_model
@pytest.mark.parametrize("layer", [3, pytest.param(12, marks=pytest.mark.full)])
def test_patching_smollm2_is_that_of_plain_hooks(layer: int, real_models: Path) -> None:
    model = open_pretrained(ModelSpec(str(real_models / "smollm2"), TransformersParameters(), dtype="float32"))
    ids = np.array([[504, 3575, 282, 4649, 314, 1802, 253, 2430]])
    assert compare_with_hooks(model, "llama", ids, layer, [2, 6]) < 1e-6


def attribution(model: PretrainedModel, kind: str, ids: np.ndarray, layer: int) -> dict[str, tuple[Any, Any]]:
    """Gradients of one logit by what was captured, and by autograd of the module with plain hooks."""
    runner = TransformersEngine().runner(Twin(model))
    sites = ("resid_pre", "resid_mid", "resid_post", "q", "z", "mlp_post", "mlp_out")
    found = runner.forward(ids, ("embed", *sites, "logits"), grad=True)
    held = [found["embed"], *(found[layer, s] for s in sites)]
    ours = torch.autograd.grad(found["logits"][0, -1, 7], held)
    block = model.module.get_submodule(f"{HOOKED[kind][0]}.{layer}")
    norms = {"llama": "post_attention_layernorm", "gpt2": "ln_2"}
    modules = HOOKED[kind][1]
    kept: dict[str, torch.Tensor] = {}

    def keep(name: str, tensor: torch.Tensor) -> None:
        kept[name] = tensor
        tensor.requires_grad_() if not tensor.requires_grad else None

    with ExitStack() as stack:
        for name, place, end in (
            ("embed", None, "out"),
            ("resid_pre", block, "in"),
            ("resid_mid", block.get_submodule(norms[kind]), "in"),
            ("resid_post", block, "out"),
            ("q", block.get_submodule(modules["q"][0]), "out"),
            ("z", block.get_submodule(modules["z"][0]), "in"),
            ("mlp_post", block.get_submodule({"llama": "mlp.down_proj", "gpt2": "mlp.c_proj"}[kind]), "in"),
            ("mlp_out", block.mlp, "out"),
        ):
            target = model.embedding if place is None else place
            if end == "out":
                note = lambda m, a, out, name=name: keep(name, out[0] if isinstance(out, tuple) else out)  # noqa: E731
                stack.callback(target.register_forward_hook(note).remove)
            else:
                note = lambda m, a, name=name: keep(name, a[0])  # noqa: E731
                stack.callback(target.register_forward_pre_hook(note).remove)
        model.module.set_attn_implementation("eager")
        logits = model.module(torch.as_tensor(ids), use_cache=False).logits
    theirs = torch.autograd.grad(logits[0, -1, 7], [kept[s] for s in ("embed", *sites)])
    width = model.info.n_heads * model.info.d_head
    return {
        name: (mine, gradient[..., :width].reshape(mine.shape) if name in ("q", "z") else gradient)
        for name, mine, gradient in zip(("embed", *sites), ours, theirs, strict=True)
    }


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_attribution_is_that_of_autograd(kind: str, opened: Opens) -> None:
    for name, (ours, theirs) in attribution(opened(kind), kind, np.array([[5, 9, 11, 7, 20]]), 1).items():
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.real_model
def test_attribution_on_smollm2_is_that_of_autograd(real_models: Path) -> None:
    model = open_pretrained(ModelSpec(str(real_models / "smollm2"), TransformersParameters(), dtype="float32"))
    for name, (ours, theirs) in attribution(model, "llama", np.array([[504, 3575, 282, 4649, 314]]), 12).items():
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-5, name


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "deepseek_v3", "gptj", "granite", "bert"])
def test_gradients_by_every_site(kind: str, opened: Opens) -> None:
    """What a small step does to the end is what the gradient says; norms and softmax are in float32 even here."""
    model = open_as_float64(opened, kind)
    runner = TransformersEngine().runner(Twin(model))
    ids = np.array([[5, 9, 11, 7, 20]])
    end = "logits" if model.headed else "resid_post"
    key: Any = end if model.headed else (model.info.n_layers - 1, end)
    plain = runner.forward(ids, (end,))[key]
    draw = torch.Generator().manual_seed(1)
    along = torch.randn(plain.shape, generator=draw).to(plain)
    left_out = {end, "resid_post"} | ({"k"} if model.layout.family.latent else set())
    left_out |= {"pattern"} if kind == "gptj" else set()
    for name in (s for s in model.sites if s not in left_out):
        [layer, *_] = layers_with(model, name)
        found = runner.forward(ids, (name, end), grad=True)
        held = found[name] if layer is None else found[layer, name]
        assert torch.equal(found[key], plain), name
        [gradient] = torch.autograd.grad((found[key] * along).sum(), [held])
        step = 1e-3 * torch.randn(held.shape, generator=draw).to(held)
        step = torch.where(held.detach().isfinite(), step, 0.0)
        ends = []
        for sign in (1.0, -1.0):
            moved = Intervention(name, layer, lambda tensor, where, by=sign * step: tensor + by)
            ends.append(float((runner.forward(ids, (end,), interventions=[moved])[key] * along).sum()))
        told = float((gradient * step).nan_to_num().sum())
        assert (ends[0] - ends[1]) / 2 == pytest.approx(told, rel=0.02, abs=1e-5), name


def open_as_float64(opened: Opens, kind: str) -> PretrainedModel:
    path = opened(kind).spec.path
    return open_pretrained(ModelSpec(path, TransformersParameters(), dtype="float64"))


class TestInGeneration:
    """With what was before kept, and without: the same text."""

    @staticmethod
    def steer(name: str, info: Any, positions: Any = None, whole: bool = False) -> Intervention:
        row = site(name)
        draw = torch.Generator().manual_seed(2)
        vector = torch.randn(row.width(info), generator=draw) if not row.square else None

        def function(tensor: torch.Tensor, where: Where) -> torch.Tensor:
            assert tensor.shape[row.dims.index("query" if row.square else "position")] == len(where.positions)
            if vector is None:
                return tensor * torch.tensor([1.0 + n % 3 for n in where.positions])[:, None]
            sign = torch.tensor([1.0 - 2.0 * (n % 2) for n in where.positions]).view(-1, *[1] * (tensor.ndim - 2))
            return tensor + sign * vector

        return Intervention(name, None if row.whole else 1, function, positions=positions, whole=whole)

    @pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "recurrent_gemma", "deepseek_v3"])
    def test_a_cache_changes_nothing(self, kind: str, opened: Opens) -> None:
        model = opened(kind)
        runner = TransformersEngine().runner(Twin(model))
        start, made = np.array([[5, 9, 11, 7, 20, 31]]), set()
        plain = runner.generate(start, 8, stop=[])[0].tolist()
        for name in model.sites:
            if (name == "k" and model.layout.family.latent) or name in model.info.lacking.get(1, {}):
                continue
            for positions in (None, [2, 6, 8, 9]):
                kept, run = (
                    runner.generate(start, 8, stop=[], interventions=[self.steer(name, model.info, positions, whole)])
                    for whole in (False, True)
                )
                assert kept[0].tolist() == run[0].tolist(), name
                made.add(tuple(kept[0]) != tuple(plain))
        assert True in made

    def test_new_tokens_alone_are_seen(self, opened: Opens) -> None:
        seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

        def note(tensor: torch.Tensor, where: Where) -> None:
            seen.append((where.positions, where.prompts))
            assert where.mask.shape == (1, len(where.positions))

        runner = TransformersEngine().runner(Twin(opened("llama")))
        rows, mask = np.array([[5, 9, 11, 7], [3, 9, 11, 7]]), np.array([[1, 1, 1, 1], [0, 1, 1, 1]])
        runner.generate(rows, 3, stop=[], mask=mask, interventions=[Intervention("z", 0, note)])
        assert seen == [((0, 1, 2, 3), (0,)), ((4,), (0,)), ((5,), (0,)), ((0, 1, 2), (1,)), ((3,), (1,)), ((4,), (1,))]


class TestWhatIsHandedOver:
    """Tensors cut to heads and positions, in order; what cannot take their place is refused."""

    IDS = np.array([[5, 9, 11, 7, 20], [5, 9, 11, 7, 31]])

    def test_heads_and_positions(self, opened: Opens) -> None:
        model = opened("llama")
        runner = TransformersEngine().runner(Twin(model))
        plain = runner.forward(self.IDS, ("z", "k", "scores", "resid_mid"))
        seen: dict[str, torch.Tensor] = {}

        def note(tensor: torch.Tensor, where: Where) -> None:
            seen[where.site] = tensor
            assert where.positions == (3, 1)
            assert where.prompts == (0, 1)
            assert where.layer == 1

        runner.forward(
            self.IDS,
            interventions=[
                Intervention("z", 1, note, heads=[3, 1], positions=[3, 1]),
                Intervention("k", 1, note, heads=[1], positions=[3, 1]),
                Intervention("scores", 1, note, heads=[2], positions=[3, 1]),
                Intervention("resid_mid", 1, note, positions=[3, 1]),
            ],
        )
        assert torch.equal(seen["z"], plain[1, "z"][:, [3, 1]][:, :, [3, 1]])
        assert torch.equal(seen["k"], plain[1, "k"][:, [3, 1]][:, :, [1]])
        assert torch.equal(seen["scores"], plain[1, "scores"][:, [2]][:, :, [3, 1]])
        assert torch.equal(seen["resid_mid"], plain[1, "resid_mid"][:, [3, 1]])

    def test_several_act_in_order_and_what_is_captured_comes_after(self, opened: Opens) -> None:
        runner = TransformersEngine().runner(Twin(opened("gpt2")))
        plain = runner.forward(self.IDS, ("mlp_out",))[1, "mlp_out"]
        both = [
            Intervention("mlp_out", 1, lambda tensor, where: tensor + 1.0),
            Intervention("mlp_out", 1, lambda tensor, where: tensor * 2.0, positions=[2]),
        ]
        found = runner.forward(self.IDS, ("mlp_out", "resid_mid", "resid_post"), interventions=both)
        expected = plain + 1.0
        expected[:, 2] *= 2.0
        assert torch.equal(found[1, "mlp_out"], expected)
        torch.testing.assert_close(found[1, "resid_post"], found[1, "resid_mid"] + expected)

    def test_the_stream_in_the_middle_goes_both_ways(self, opened: Opens) -> None:
        runner = TransformersEngine().runner(Twin(opened("llama")))
        gone = Intervention("resid_mid", 1, lambda tensor, where: torch.zeros_like(tensor))
        found = runner.forward(self.IDS, ("mlp_out", "resid_post"), interventions=[gone])
        torch.testing.assert_close(found[1, "resid_post"], found[1, "mlp_out"])
        assert float(found[1, "mlp_out"].std(dim=1).max()) < 1e-6  # the MLP reads zeros everywhere

    def test_rows_that_see_nothing_stay_finite(self, opened: Opens) -> None:
        runner = TransformersEngine().runner(Twin(opened("llama")))
        mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
        seen = []

        def halved(tensor: torch.Tensor, where: Where) -> torch.Tensor:
            seen.append(where.mask)
            return tensor / 2

        ones = [Intervention(name, 1, halved) for name in ("scores", "resid_mid")]
        found = runner.forward(self.IDS, ("z", "logits"), mask=mask, interventions=ones)
        assert all(bool(array.isfinite().all()) for array in found.values())
        assert all(torch.equal(one, torch.as_tensor(mask).bool()) for one in seen[-2:])
        alone = runner.forward(self.IDS[1:, 2:], interventions=[ones[0]])["logits"]
        together = runner.forward(self.IDS, mask=mask, interventions=[ones[0]])["logits"]
        assert together.shape[1] == alone.shape[1] + 2

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (Intervention("zz", 0, lambda t, w: t), "no site 'zz'"),
            (Intervention("z", None, lambda t, w: t), "say which, as layer=0"),
            (Intervention("embed", 0, lambda t, w: t), "its layer is None"),
            (Intervention("z", 9, lambda t, w: t), "no such layer in view; it has 0, 1"),
            (Intervention("z", 0, lambda t, w: t, heads=[9]), "no heads 9 in view; there are 0, 1"),
            (Intervention("k", 0, lambda t, w: t, heads=[3]), "no key/value heads 3 in view; there are 0, 1"),
            (Intervention("mlp_out", 0, lambda t, w: t, heads=[0]), "the site has no heads"),
            (Intervention("z", 0, lambda t, w: t, positions=[]), "name one or more"),
            (Intervention("z", 0, lambda t, w: t, positions=[1, 1]), "each once"),
            (Intervention("z", 0, lambda t, w: t, positions=[-1]), "from 0"),
            (Intervention("z", 0, lambda t, w: t, positions=[5]), "no positions 5: these rows have 5"),
            (Intervention("z", 0, lambda t, w: t[:, :2]), r"z of layer 0: .* given .*\[2, 5, 4, .*returned"),
            (Intervention("z", 0, lambda t, w: t.long()), "numbers be floating"),
            (Intervention("z", 0, lambda t, w: t.to_sparse()), "layout torch.sparse_coo: return a dense"),
            (Intervention("z", 0, lambda t, w: t.to("meta")), r"z of layer 0: .*\(meta\): return a dense"),
            (Intervention("z", 0, lambda t, w: 0.0), "returned float: return a tensor, or None"),  # type: ignore[arg-type,return-value]
            (Intervention("z", 0, lambda t, w: None if t.zero_() is t else t), "in place and returned None"),
            (("z", 0, None), "gausslens.Intervention"),
        ],
        ids=range(18),
    )
    def test_what_would_not_act_is_refused(self, given: Any, said: str, opened: Opens) -> None:
        runner = TransformersEngine().runner(Twin(opened("llama")))
        with pytest.raises(ModelError, match=said):
            runner.forward(self.IDS, interventions=[given])
        plain = runner.forward(self.IDS)["logits"]
        assert bool(plain.isfinite().all())

    def test_what_is_no_number_is_handed_on(self, opened: Opens) -> None:
        runner = TransformersEngine().runner(Twin(opened("llama")))
        last = runner.info.layers[-1]
        lost = Intervention("mlp_out", last, lambda t, w: torch.full_like(t, torch.nan), positions=[4])
        found = runner.forward(self.IDS, interventions=[lost])["logits"]
        assert bool(found[:, :4].isfinite().all())
        assert not bool(found[:, 4].isfinite().any())

    def test_what_the_proof_finds_is_refused(self, opened: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
        """A hook that hands out a copy, and one that adds to the stream as it was."""
        from gausslens_models.capture import forward_pass

        model = opened("llama")
        runner = TransformersEngine().runner(Twin(model))
        gone = [Intervention(n, 1, lambda t, w: torch.zeros_like(t)) for n in ("mlp_out", "resid_mid")]
        with monkeypatch.context() as patch:
            patch.setattr(forward_pass, "put_into", lambda result, item, tensor: None)
            with pytest.raises(ModelError, match=r"mlp_out do not act as they should: the end .* reaches it not"):
                runner.forward(self.IDS, interventions=gone[:1])
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "copy_", lambda held, new: held)
            with pytest.raises(ModelError, match="resid_mid do not act as they should"):
                runner.forward(self.IDS, interventions=gone[1:])


def test_the_base_and_the_twin_take_interventions(opened: Opens, written: Any) -> None:
    model = opened("llama")
    twin = written(model, change=lambda name, tensor: tensor * 1.5 if name == "W_O" else None)
    runner, ids = TransformersEngine().runner(twin), np.array([[5, 9, 11, 7]])
    gone = [Intervention("z", n, lambda t, w: torch.zeros_like(t)) for n in model.info.layers]
    edited, base = (runner.forward(ids, base=b, interventions=gone)["logits"] for b in (False, True))
    torch.testing.assert_close(edited, base)  # without heads there is nothing left of the edit
    assert not torch.allclose(runner.forward(ids)["logits"], runner.forward(ids, base=True)["logits"])


def test_kinds_of_tests_are_models_of_tests() -> None:
    assert set(FAST) | set(HOOKED) <= set(KINDS)
