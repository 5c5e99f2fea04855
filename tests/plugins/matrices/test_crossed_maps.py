"""Saved maps of n queries and m keys: what they give is what the model gives that they were saved from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import gausslens
from gausslens import Batch, InputError, ModelSpec, Part, Prompt, Request, Twin
from gausslens.testing import host_of
from gausslens_matrices.model import MatricesEngine, MatricesModel, open_matrices
from gausslens_matrices.parameters import MatricesParameters

from .. import crossed_model
from ..crossed_model import CrossedEngine, CrossedModel

TEXTS = ["the lazy dog sleeps|der Hund", "ja|yes of course", "same len|gth here"]
MODEL = CrossedModel()
TOKENS = MODEL.tokenise([Prompt((Part(text),)) for text in TEXTS])
ANALYSES: list[dict[str, Any]] = [
    {"use": "attention.band", "with": {"w": [0, 2], "budget": [0, 3]}},
    {"use": "attention.masks", "with": {"keys": [3, 6]}},
    {"use": "attention.lowrank", "with": {"rank": [1, 4]}},
    {"use": "attention.kernels", "with": {"features": [8]}},
    {"use": "attention.roles"},
    {"use": "attention.pooling", "with": {"functions": ["dot", "multiplicative"], "directions": 1}},
]


def arrays_of(*sites: str) -> dict[str, np.ndarray]:
    """[prompt, layer, head, ...] as an engine hands them out, padded; maps of padded queries as the model has them."""
    found: dict[str, list[np.ndarray]] = {site: [] for site in sites}

    def sink(batch: Batch) -> None:
        for site in sites:
            one = batch.numpy(site)
            found[site].append(one if site in ("pattern", "scores") else one.swapaxes(1, 2))

    CrossedEngine().run(Twin(MODEL), TOKENS, np.arange(3), Request(sites), sink)
    return {site: np.stack(each, axis=1) for site, each in found.items()}


def run(where: Path, what: dict[str, Any], analyses: list[dict[str, Any]]) -> Any:
    host = host_of("models", "attention", "matrices", crossed=crossed_model)
    study = {"gausslens": 1, "name": "maps", "analyses": analyses, **what}
    return gausslens.run(study, store=where, host=host, shown=False)


def test_each_analysis_gives_on_saved_maps_what_it_gives_on_the_model(tmp_path: Path) -> None:
    arrays = arrays_of("pattern", "q", "k", "v", "scores")
    np.savez(
        tmp_path / "maps.npz",
        lengths=TOKENS.lengths,
        key_mask=TOKENS.keys.padded(range(3))[2],
        key_tokens=np.where(TOKENS.keys.padded(range(3))[2], "key", ""),
        **arrays,  # type: ignore[arg-type]
    )
    own = {"model": {"path": "builtin:crossed"}, "prompts": {"source": "text", "text": TEXTS}}
    saved = {"prompts": {"source": "matrices", "path": str(tmp_path / "maps.npz"), "crossed": True}}
    of_model = run(tmp_path / "model", own, ANALYSES)
    of_maps = run(tmp_path / "maps", saved, [*ANALYSES, {"use": "model.attention", "with": {"maps": "heads"}}])
    for use in ANALYSES:
        one, other = (results["trained", use["use"]] for results in (of_model, of_maps))
        xr.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert one.attrs["keys"] == other.attrs["keys"]
    maps = of_maps["trained", "model.attention"]
    assert maps["key_text"].values[0].tolist()[:3] == ["key"] * 3
    assert maps["query_text"].values[0].tolist()[:3] == ["0", "1", "2"]


def opened(where: Path, crossed: bool = True, arrays: dict[str, Any] | None = None, **options: Any) -> MatricesModel:
    np.savez(where / "maps.npz", **(arrays or {}))
    given = MatricesParameters.model_validate({"crossed": crossed, **options})
    return open_matrices(ModelSpec(str(where / "maps.npz"), given))


def soft(*shape: int) -> np.ndarray:
    made = np.exp(np.random.default_rng(0).normal(size=shape))
    return np.asarray(made / made.sum(axis=-1, keepdims=True))


def test_only_maps_that_are_said_to_be_crossed_may_have_two_sides(tmp_path: Path) -> None:
    P = soft(2, 4, 6)
    with pytest.raises(InputError, match=r"maps of 4 queries by 6 keys; .* is told by `crossed: true`"):
        opened(tmp_path, False, {"pattern": P})
    model = opened(
        tmp_path, True, {"pattern": P, "q": np.ones((2, 4, 3)), "k": np.ones((1, 6, 3)), "v": np.ones((1, 6, 5))}
    )
    assert (model.info.facts.crossed, model.info.causal, model.info.kv_heads) == (True, False, (0,))
    tokens = model.tokenise([Prompt(ids=(0, 1, 2, 3))])
    assert (tokens.lengths, tokens.keys.lengths) == ((4,), (6,))
    shapes = {}
    request = Request(("pattern", "q", "k", "v"))
    MatricesEngine().run(
        Twin(model),
        tokens,
        np.array([0]),
        request,
        lambda b: shapes.update({s: tuple(a.shape) for s, a in b.arrays.items()} | {"mask": tuple(b.key_mask.shape)}),
    )
    assert shapes == {"pattern": (1, 2, 4, 6), "q": (1, 4, 2, 3), "k": (1, 6, 1, 3), "v": (1, 6, 1, 5), "mask": (1, 6)}
    with pytest.raises(InputError, match="with 1 prompts, 1 layers, 2 heads and 6 keys"):
        opened(tmp_path, True, {"pattern": P, "v": np.ones((2, 4, 3))})
    with pytest.raises(InputError, match="2 heads and 4 queries"):
        opened(tmp_path, True, {"pattern": P, "q": np.ones((2, 6, 3))})


def test_square_maps_may_be_crossed_too(tmp_path: Path) -> None:
    P = np.tril(np.ones((4, 4)))
    P /= P.sum(axis=1, keepdims=True)
    assert opened(tmp_path, False, {"pattern": P}).info.causal
    crossed = opened(tmp_path, True, {"pattern": P})
    assert not crossed.info.causal
    assert crossed.tokenise([Prompt(ids=(0, 1, 2, 3))]).crossed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"crossed": True, "causal": True}, "keys of another stack are all seen"),
        ({"crossed": False, "key_lengths": [3]}, "key_lengths goes with `crossed: true`"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MatricesParameters.model_validate(options)


def padded() -> np.ndarray:
    """Maps [head, 7, 9] of 4 queries and 5 keys: rows behind are empty, columns seen by none."""
    P = np.zeros((2, 7, 9))
    P[:, :4, :5] = soft(2, 4, 5)
    return P


def sizes(model: MatricesModel) -> tuple[int, int]:
    return model.maps.take("pattern", 0, 0).shape[1:]  # type: ignore[return-value]


def test_padding_of_either_side_is_refused_by_name_and_cut_as_told(tmp_path: Path) -> None:
    P = {"pattern": padded()}
    with pytest.raises(InputError, match=r"rows 4 to 6 are empty .* 4 of 7 queries real.*`lengths: found`"):
        opened(tmp_path, True, P)
    with pytest.raises(
        InputError, match=r"keys 5 to 8 are looked at by no row .* 5 of 9 keys real.*`key_lengths: found`"
    ):
        opened(tmp_path, True, P, lengths=[4])
    assert sizes(opened(tmp_path, True, P, lengths="found", key_lengths="found")) == (4, 5)
    assert sizes(opened(tmp_path, True, P, lengths=[4], key_lengths="whole")) == (4, 9)
    assert sizes(opened(tmp_path, True, P | {"lengths": np.array([4]), "key_lengths": np.array([5])})) == (4, 5)
    mask = np.arange(9)[None] < 5
    assert sizes(opened(tmp_path, True, P | {"lengths": np.array([4]), "key_mask": mask})) == (4, 5)
    with pytest.raises(InputError, match="its number of keys is said to be 12, its map has 9 keys"):
        opened(tmp_path, True, P, lengths=[4], key_lengths=[12])
    with pytest.raises(InputError, match="2 key_lengths are given for 1 prompts"):
        opened(tmp_path, True, P, lengths=[4], key_lengths=[5, 5])
    with pytest.raises(InputError, match=r"key_mask has shape \(1, 7\); it should be \[prompt, token\], \(1, 9\)"):
        opened(tmp_path, True, P | {"lengths": np.array([4]), "key_mask": np.ones((1, 7), bool)})
