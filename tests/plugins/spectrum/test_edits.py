"""Surgery on every family: each edit does what it says, leaves all else bit-equal, and is undone without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import gausslens_spectrum.plugin as plugin
from gausslens import ModelError, Tokens, Twin
from gausslens.contract.twin import touched
from gausslens.testing import TinyModel, TinyParameters, check_edit, check_references
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import PretrainedModel, module_fingerprint
from gausslens_spectrum.parameters import ChoiceParameters, GraftParameters, ScaleParameters

Opens = Callable[[str], PretrainedModel]
ALL = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out")
PRODUCTS = ("QK", "OV", "W_in", "W_out")
# Every edit with parameters that change something.
CASES: list[tuple[Any, dict[str, Any]]] = [
    (plugin.SCALE, {"alpha": 2.0}),
    (plugin.KEEP, {"k": 2}),
    (plugin.KEEP, {"energy": 0.6, "end": "bottom"}),
    (plugin.DROP, {"k": 1}),
    (plugin.KEEP_RANDOM, {"k": 2}),
    (plugin.DROP_RANDOM, {"energy": 0.3}),
    (plugin.POWER, {"p": 2.0}),
    (plugin.FLATTEN, {"amount": 0.5}),
    (plugin.LAW, {}),
    (plugin.VECTORS, {}),
    (plugin.VECTORS, {"sides": "left"}),
    (plugin.VECTORS, {"sides": "right"}),
    (plugin.GRAFT, {"source": 1}),
]
RANDOM = [(edit, given) for edit, given in CASES if edit.random]
IDENTITIES = [
    (plugin.SCALE, {"alpha": 1.0}),
    (plugin.KEEP, {"k": 999}),
    (plugin.KEEP, {"energy": 1.0}),
    (plugin.DROP, {"k": 0}),
    (plugin.KEEP_RANDOM, {"k": 999}),
    (plugin.POWER, {"p": 1.0}),
    (plugin.FLATTEN, {"amount": 0.0}),
    (plugin.GRAFT, {"source": 1}),
]


def outputs(model: PretrainedModel, twin: Twin, tokens: Tokens) -> torch.Tensor:
    """Logits, or the last layer's residual stream where there is no head."""
    ids, _, mask = tokens.padded(range(len(tokens)))
    site: Any = "logits" if model.headed else (model.info.n_layers - 1, "resid_post")
    sites = (site,) if model.headed else ("resid_post",)
    return TransformersEngine().runner(twin).forward(ids, sites=sites, mask=mask)[site][torch.as_tensor(mask)]


def test_everything_that_the_plugin_names_exists() -> None:
    assert len(check_references(plugin).edits) == 10


@pytest.mark.parametrize(("edit", "given"), CASES)
@pytest.mark.parametrize("matrices", [("W_Q", "W_K", "W_V", "W_O"), ("QK", "OV")])
def test_as_the_host_applies_it(edit: Any, given: dict[str, Any], matrices: tuple[str, ...]) -> None:
    model = TinyModel(TinyParameters(layers=3))
    parameters = {"matrices": matrices} | given
    check_edit(edit, gausslens_parameters(edit, parameters), model=model)


def gausslens_parameters(edit: Any, given: dict[str, Any]) -> Any:
    from gausslens.contract.reference import resolve

    return resolve(edit.parameters).model_validate(given)


@pytest.mark.parametrize("matrices", [ALL, PRODUCTS])
def test_all_else_stays_bit_equal_and_undoing_leaves_no_trace(
    family: str, family_model: Opens, family_tokens: Tokens, twin_of: Any, matrices: tuple[str, ...]
) -> None:
    model = family_model(family)
    before = outputs(model, Twin(model), family_tokens)
    fingerprint = module_fingerprint(model.module)
    for edit, given in CASES:
        twin = twin_of(model, (edit, given | {"matrices": matrices}))
        after = outputs(model, twin, family_tokens)
        allowed = set(touched(twin.edits[0], twin.info))
        changed = set()
        for layer in (*model.info.layers, None):
            for name in model.names(layer):
                same = torch.equal(twin.weights(layer)[name], model.tensor(layer, name))
                assert same or name in allowed, f"{edit.name} changed {name}"
                changed |= set() if same else {name}
        assert changed, edit.name
        # Query and key norms undo nothing of these but a scale, and that goes into their gains.
        assert not torch.allclose(after, before, atol=1e-4), edit.name
        del twin
        assert module_fingerprint(model.module) == fingerprint
    assert torch.equal(outputs(model, Twin(model), family_tokens), before)


@pytest.mark.parametrize("by", ["head", "matrix"])
def test_an_edit_that_changes_nothing_changes_no_logits(
    family: str, family_model: Opens, family_tokens: Tokens, twin_of: Any, by: str
) -> None:
    model = family_model(family)
    before = outputs(model, Twin(model), family_tokens)
    for matrices in (ALL, PRODUCTS):
        for edit, given in IDENTITIES:
            scope = {"layers": (1,)} if edit is plugin.GRAFT else {}
            twin = twin_of(model, (edit, given | {"matrices": matrices, "by": by}), **scope)
            moved = float((outputs(model, twin, family_tokens) - before).abs().max())
            assert moved < 1e-5, f"{edit.name} on {matrices}: {moved}"


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_alpha_on_queries_and_keys_multiplies_scores_by_its_square(
    family: str, family_model: Opens, family_tokens: Tokens, twin_of: Any, alpha: float
) -> None:
    """As the model computes them: with biases, query norms, rotation; before scaling, soft cap and mask."""
    model = family_model(family)
    ids = family_tokens.ids[0][None]
    sites = ("q_rot", "k_rot") if "q_rot" in model.sites else ("q", "k")
    # In a norm, the epsilon is a smaller or larger share of a scaled vector: here up to 5e-5.
    most = 1e-4 if model.info.facts["query_norm"] else 1e-5
    found = []
    for layer in model.info.layers:
        if "W_Q" not in model.names(layer):
            continue
        twin = twin_of(model, (plugin.SCALE, {"alpha": alpha}), layers=(layer,))  # what comes in is the same
        for one in (Twin(model), twin):
            q, k = (TransformersEngine().runner(one).forward(ids, sites=sites)[layer, s].double() for s in sites)
            k = k[:, :, list(model.info.kv_of_head)]
            found.append(torch.einsum("pqhe,pkhe->phqk", q, k))
        plain, scaled = found[-2:]
        assert float((scaled - alpha**2 * plain).abs().max() / (alpha**2 * plain).abs().max()) < most


def test_alpha_scales_the_content_form_of_the_weights(family: str, family_model: Opens, twin_of: Any) -> None:
    model = family_model(family)
    for given in ({"alpha": 3.0}, {"alpha": 9.0, "matrices": ("QK",)}):
        twin = twin_of(model, (plugin.SCALE, given))
        for layer in model.info.layers:
            if "W_Q" in model.names(layer):
                before, after = (product("QK", one.weights(layer)) for one in (Twin(model), twin))
                torch.testing.assert_close(after, 9 * before, rtol=1e-5, atol=1e-6)


def product(name: str, weights: Any) -> torch.Tensor:
    """The products of all heads [head, d_model, d_model], made whole."""
    each = list(weights.kv_of_head)
    if name == "QK":
        return weights.W_Q.double() @ weights.W_K.double()[each].mT
    return weights.W_V.double()[each] @ weights.W_O.double()


def spectrum(name: str, weights: Any, values: int) -> torch.Tensor:
    found = product(name, weights) if name in ("QK", "OV") else weights[name].double()
    return torch.linalg.svdvals(found)[..., :values]


@pytest.mark.parametrize("name", ["W_Q", "W_K", "W_V", "W_O", "QK", "OV"])
def test_each_head_gets_the_spectrum_that_is_asked_for(
    name: str, family: str, family_model: Opens, twin_of: Any
) -> None:
    model = family_model(family)
    layers = [n for n in model.info.layers if "W_Q" in model.names(n)]
    layer, other = layers[-1], layers[0]
    n = model.info.d_head
    s, t = (spectrum(name, Twin(model).weights(which), n) for which in (layer, other))

    def after(edit: Any, given: dict[str, Any], draw: int = 0) -> torch.Tensor:
        twin = twin_of(model, (edit, given | {"matrices": (name,)}), draw=draw)
        return spectrum(name, twin.weights(layer), n)

    def near(found: torch.Tensor, wanted: torch.Tensor) -> None:
        assert float(((found - wanted).abs() / s[:, :1]).max()) < 1e-5

    near(after(plugin.KEEP, {"k": 2}), torch.where(torch.arange(n) < 2, s, 0.0))
    near(after(plugin.KEEP, {"k": 2, "end": "bottom"})[:, :2], s[:, -2:])
    near(after(plugin.DROP, {"k": 2})[:, :-2], s[:, 2:])
    near(after(plugin.GRAFT, {"source": other}), t)
    near(after(plugin.FLATTEN, {}), s.square().mean(-1, keepdim=True).sqrt().expand_as(s))
    near(after(plugin.POWER, {"p": 2.0, "hold": "largest"}), s**2 / s[:, :1])
    for sides in ("left", "right", "both"):
        near(after(plugin.VECTORS, {"sides": sides}), s)
    kept = [after(plugin.KEEP_RANDOM, {"k": 2}, draw)[:, :2] for draw in range(6)]
    for found in kept:  # two of the values, in order
        nearest = (found[:, :, None] - s[:, None, :]).abs().min(-1)
        assert float((nearest.values / s[:, :1]).max()) < 1e-5
    assert any(not torch.allclose(found, kept[0], atol=1e-3) for found in kept[1:])


def test_the_matrix_of_all_heads_has_a_spectrum_of_its_own(family: str, family_model: Opens, twin_of: Any) -> None:
    model = family_model(family)
    for name in ALL:
        if name not in model.names(0):
            continue
        twin = twin_of(model, (plugin.KEEP, {"k": 3, "by": "matrix", "matrices": (name,)}))
        before, after = (whole(name, one.weights(0)[name]) for one in (Twin(model), twin))
        s, t = (torch.linalg.svdvals(x) for x in (before, after))
        torch.testing.assert_close(t[:3], s[:3], rtol=1e-5, atol=1e-6)
        assert float(t[3]) < 1e-5 * float(s[0])


def whole(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """As the linear layer x W that it is."""
    wide = tensor.double()
    if name == "W_O":
        return wide.flatten(0, 1)
    return wide if wide.ndim == 2 else torch.cat(list(wide), dim=1)


@pytest.mark.parametrize("matrices", [("W_Q", "W_V"), ("QK", "OV")])
def test_only_the_heads_asked_for_change(family: str, family_model: Opens, twin_of: Any, matrices: Any) -> None:
    model = family_model(family)
    twin = twin_of(model, (plugin.KEEP, {"k": 1, "matrices": matrices}), heads=(3,))
    for layer in model.info.layers:
        for name, head in (("W_Q", 3), ("W_O", 3), ("W_V", model.info.kv_of_head[3])):
            if name not in model.names(layer):
                continue
            before, after = model.tensor(layer, name), twin.weights(layer)[name]
            changed = [i for i in range(len(before)) if not torch.equal(before[i], after[i])]
            assert changed == ([head] if name in touched(twin.edits[0], twin.info) else [])


def test_the_one_spectrum_of_all_heads_is_not_edited_in_some(family_model: Opens, twin_of: Any) -> None:
    model = family_model("llama")
    for edit, given in ((plugin.KEEP, {"k": 1}), (plugin.VECTORS, {"sides": "left"})):
        twin = twin_of(model, (edit, {**given, "matrices": ("W_Q",), "by": "matrix"}), heads=(3,))
        with pytest.raises(ModelError, match="W_Q has one spectrum with by: matrix, of all heads"):
            twin.weights(0)["W_Q"]
    # A factor is the same for all and for some.
    scaled = twin_of(model, (plugin.SCALE, {"alpha": 2.0, "matrices": ("W_Q",), "by": "matrix"}), heads=(3,))
    assert torch.equal(scaled.weights(0)["W_Q"][3], 2 * model.tensor(0, "W_Q")[3])


def test_the_same_seed_gives_the_same_twin_from_files_and_from_a_module(
    family: str, family_model: Opens, family_files: Any, twin_of: Any
) -> None:
    running, files = family_model(family), family_files(family)
    running.module  # noqa: B018  from here on tensors are views of its parameters
    for edit, given in (*RANDOM[:3], (plugin.LAW, {})):
        for matrices in (ALL, ("QK", "OV")):
            case = (edit, given | {"matrices": matrices})
            one, other = twin_of(running, case, seed=5, draw=1), twin_of(files, case, seed=5, draw=1)
            for layer in running.info.layers:
                assert one.overlay(layer).keys() == other.overlay(layer).keys()
                for name, tensor in one.overlay(layer).items():
                    assert torch.equal(tensor, other.overlay(layer)[name]), f"{edit.name}, {name}"


def test_haar_vectors_are_new_on_the_sides_asked_for_alone(twin_of: Any) -> None:
    model = TinyModel()
    before = torch.linalg.svd(model.tensor(0, "W_Q").double(), full_matrices=False)

    def overlap(sides: str) -> tuple[float, float]:
        """How much of the span of the first two vectors is left, on each side."""
        twin = twin_of(model, (plugin.VECTORS, {"matrices": ("W_Q",), "sides": sides}))
        after = torch.linalg.svd(twin.weights(0).W_Q.double(), full_matrices=False)
        pairs = ((before[0][..., :2], after[0][..., :2]), (before[2].mT[..., :2], after[2].mT[..., :2]))
        left, right = (float((a.mT @ b).square().sum((-1, -2)).mean()) / 2 for a, b in pairs)
        return left, right

    left, right = overlap("left")
    assert left < 0.9 < 0.999 < right
    left, right = overlap("right")
    assert right < 0.9 < 0.999 < left


def test_a_bias_follows_the_map_of_its_matrix(family: str, family_model: Opens, twin_of: Any) -> None:
    """x W + b becomes T applied to it: for kept values the projection onto the directions that are left."""
    model = family_model(family)
    if "b_Q" not in model.names(0):
        return
    W, b = (model.tensor(0, n).double() for n in ("W_Q", "b_Q"))
    x = torch.randn(5, W.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    V = torch.linalg.svd(W, full_matrices=False)[2].mT[..., :2]
    old = x @ W + b[:, None]
    held = {}
    for biases in ("follow", "keep", "zero"):
        twin = twin_of(model, (plugin.KEEP, {"k": 2, "matrices": ("W_Q",), "biases": biases}))
        held[biases] = twin.weights(0).b_Q.double()
        if biases == "follow":
            new = x @ twin.weights(0).W_Q.double() + held["follow"][:, None]
            torch.testing.assert_close(new, old @ V @ V.mT, rtol=1e-5, atol=1e-5)
    assert torch.equal(held["keep"], b)
    assert not held["zero"].any()


def test_a_products_bias_follows_too(twin_of: Any, family_model: Opens) -> None:
    """The query bias adds b_Q W_K^T y to a score: after the edit it adds what the same map makes of it."""
    model = family_model("gpt2")
    twin = twin_of(model, (plugin.POWER, {"p": 2.0, "matrices": ("QK",), "hold": "nothing"}))
    before, after = Twin(model).weights(0), twin.weights(0)
    through = torch.linalg.pinv(before.W_Q.double()) @ after.W_Q.double()
    torch.testing.assert_close(
        after.b_Q.double()[:, None], before.b_Q.double()[:, None] @ through, rtol=1e-4, atol=1e-5
    )
    assert torch.equal(after.W_K, before.W_K)
    zero = twin_of(model, (plugin.KEEP, {"k": 1, "matrices": ("QK",), "biases": "zero"})).weights(0)
    assert not zero.b_Q.any()
    assert not zero.b_K.any()


def test_a_product_whose_key_matrix_lacks_directions_says_so(twin_of: Any) -> None:
    class Deficient(TinyModel):
        def tensor(self, layer: int | None, name: str) -> torch.Tensor:
            tensor = super().tensor(layer, name)
            return tensor * (torch.arange(tensor.shape[-1]) > 0) if name == "W_K" else tensor

    twin = twin_of(Deficient(), (plugin.LAW, {"matrices": ("QK",)}))
    with pytest.raises(ModelError, match="QK of head 0 cannot have that spectrum"):
        twin.overlay(0)
    kept = twin_of(Deficient(), (plugin.KEEP, {"k": 1, "matrices": ("QK",)}))
    assert np.linalg.matrix_rank(product("QK", kept.weights(0))[0].numpy(), tol=1e-6) == 1


def test_grafts_name_a_layer_that_there_is(twin_of: Any) -> None:
    with pytest.raises(ModelError, match="there is no layer 9 to graft from: it has 2 layers"):
        twin_of(TinyModel(), (plugin.GRAFT, {"source": 9})).overlay(0)
    free = TinyModel(TinyParameters(layers=3, attention_free=[1]))
    with pytest.raises(ModelError, match="layer 1 has no W_Q to graft from"):
        twin_of(free, (plugin.GRAFT, {"source": 1})).overlay(0)


def test_a_graft_reads_the_unedited_layer_though_a_pass_has_edited_it_by_then(
    family_model: Opens, family_tokens: Tokens, twin_of: Any
) -> None:
    model = family_model("llama")
    edits = (plugin.SCALE, {"alpha": 9.0, "matrices": ("W_V",)}), (plugin.GRAFT, {"source": 0, "matrices": ("W_V",)})
    alone, running = twin_of(model, *edits), twin_of(model, *edits)
    outputs(model, running, family_tokens)
    for layer in (1, 2):
        assert torch.equal(running.weights(layer).W_V, alone.weights(layer).W_V)


def test_a_graft_may_hold_the_energy(twin_of: Any) -> None:
    model = TinyModel(TinyParameters(planted=[(1, 0, 5.0)]))
    twin = twin_of(model, (plugin.GRAFT, {"source": 1, "hold": "energy", "matrices": ("W_Q",)}), layers=(0,))
    before, after = (x.double().square().sum((1, 2)) for x in (model.tensor(0, "W_Q"), twin.weights(0).W_Q))
    torch.testing.assert_close(after, before, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (ChoiceParameters, {"k": -1}, "k"),
        (ChoiceParameters, {"energy": 1.5}, "energy"),
        (ScaleParameters, {"alpha": 1.0, "matrices": ("W_Q", "W_Q")}, "W_Q is named twice"),
        (ScaleParameters, {"alpha": 1.0, "matrices": ("QK", "W_K")}, "QK is made of W_Q and W_K"),
        (ScaleParameters, {}, "alpha"),
        (GraftParameters, {"source": -1}, "source"),
    ],
)
def test_what_cannot_be_is_refused(model: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        model.model_validate(given)
