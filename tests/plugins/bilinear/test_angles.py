"""bilinear.angles: as the host runs it, against brute force, and theory where vectors are random."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from gausslens import Context, GausslensError, Part, Prompt, Twin
from gausslens.testing import TinyEngine, TinyModel, TinyParameters, TinyRunner, check_forward, check_round_trip
from gausslens_bilinear.analyses.angles import Angles
from gausslens_bilinear.parameters import AnglesParameters
from gausslens_bilinear.plugin import ANGLES


@pytest.mark.parametrize("between", ["stream", "embeddings"])
def test_as_the_host_runs_it(between: str) -> None:
    result = check_forward(ANGLES, AnglesParameters(between=between))
    check_round_trip(result)
    assert result["score_correlation"].dims == ("layer", "head")
    assert result.attrs["between"] == between


def test_correlations_are_those_of_all_pairs() -> None:
    model = TinyModel()
    texts = ("The quick brown fox", "jumps over", "the lazy dog, twice")
    result = check_forward(ANGLES, model=model, texts=texts)
    runner = TinyEngine().runner(Twin(model))
    layer, head = 1, 3
    rows = []
    from gausslens import Part

    tokens = model.tokenise([Prompt((Part(t),)) for t in texts])
    for ids in tokens.ids:
        found = runner.forward(ids[None], sites=("resid_pre", "q", "k", "scores", "pattern"))
        x = torch.nn.functional.normalize(found[layer, "resid_pre"][0].double(), dim=-1).numpy()
        q, k = found[layer, "q"][0, :, head].numpy(), found[layer, "k"][0, :, model.info.kv_of_head[head]].numpy()
        score, pattern = (found[layer, site][0, head].numpy() for site in ("scores", "pattern"))
        rows += [
            (x[i] @ x[j], q[i] @ k[j] / np.sqrt(6), score[i, j], pattern[i, j])
            for i in range(2, len(ids))
            for j in range(1, i)
        ]
    wanted = np.corrcoef(np.array(rows).T)[0, 1:]
    place = result.sel(layer=layer, head=head)
    names = ("content_correlation", "score_correlation", "pattern_correlation")
    np.testing.assert_allclose([float(place[n]) for n in names], wanted, rtol=1e-4, atol=1e-6)
    assert float(place["content_share"]) == pytest.approx(wanted[0] ** 2, rel=1e-3)


def test_maps_of_the_first_prompts_are_those_of_their_tokens() -> None:
    model = TinyModel()
    texts = ("The quick brown fox", "over")
    result = check_forward(ANGLES, AnglesParameters(maps=2), model=model, texts=texts)
    assert result["cosine_map"].dims == ("map", "layer", "query", "key")
    from gausslens import Part

    ids = model.tokenise([Prompt((Part(texts[1]),))]).ids[0]
    found = TinyEngine().runner(Twin(model)).forward(ids[None], sites=("resid_pre", "pattern"))
    x = torch.nn.functional.normalize(found[1, "resid_pre"][0].double(), dim=-1).numpy()
    n = len(ids)
    seen = np.tril(np.ones((n, n), dtype=bool))
    maps = result.sel(layer=1, map=1).isel(query=slice(n), key=slice(n))
    np.testing.assert_allclose(maps["cosine_map"], np.where(seen, x @ x.T, np.nan), atol=1e-5)
    wanted = np.where(seen, found[1, "pattern"][0].mean(0).numpy(), np.nan)
    np.testing.assert_allclose(maps["attention_map"], wanted, atol=1e-6)
    assert "".join(maps["map_text"].values).endswith("over")
    assert np.isnan(result["cosine_map"].sel(layer=1, map=1).values[n:]).all()
    assert "cosine_map" not in check_forward(ANGLES, AnglesParameters(maps=0))


def _random_tokens(model: TinyModel, prompts: int = 120, length: int = 24) -> tuple[Angles, object, object]:
    ids = np.random.default_rng(0).integers(0, 256, (prompts, length))
    tokens = model.tokenise([Prompt(ids=tuple(map(int, row))) for row in ids])
    return Angles(AnglesParameters(), Context(model.info, 0, tokens)), TinyEngine().runner(Twin(model)), tokens


class _Tied(TinyModel):
    """Head 0 has W_Q = W_K: the angle is all that it sees, as far as its width goes."""

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        made = super().tensor(layer, name)
        if name == "W_Q":
            made = made.clone()
            made[0] = super().tensor(layer, "W_K")[0]
        return made


def test_random_vectors_give_the_share_that_theory_predicts() -> None:
    model = _Tied(TinyParameters(layers=1, heads=6, kv_heads=3, d_model=8, d_head=6, seed=3))
    angles, runner, tokens = _random_tokens(model)
    found = angles.run(runner, tokens).isel(layer=0)  # type: ignore[arg-type]
    assert float(found["cosine_sd"]) == pytest.approx(1 / np.sqrt(8), rel=0.06)
    assert float(found["cosine_mean"]) == pytest.approx(0, abs=0.03)
    # Vectors are sums of 256 embeddings and 24 positions, so pairs are far from independent: correlations within .1.
    measured, predicted = found["content_correlation"].values, np.sqrt(found["content_share_predicted"].values)
    weights = [model.tensor(0, n).double().numpy() for n in ("W_Q", "W_K")]
    signs = [np.sign(np.trace(weights[0][h] @ weights[1][model.info.kv_of_head[h]].T)) for h in range(6)]
    np.testing.assert_allclose(measured, signs * predicted, atol=0.1)
    assert measured[0] > max(0.5, np.abs(measured[1:]).max())
    # Without position, the true score has what the content form has.
    np.testing.assert_allclose(found["score_share_predicted"], found["content_share_predicted"], rtol=1e-9)
    np.testing.assert_allclose(found["score_correlation"], found["content_correlation"], atol=1e-5)
    assert float(found["share_untied"][0]) == pytest.approx(1 / 64, rel=0.15)
    assert (found["score_correlation_error"] < 0.1).all()


def test_prompts_without_pairs_are_refused() -> None:
    with pytest.raises(GausslensError, match="no pair of text tokens"):
        check_forward(ANGLES, texts=("x",))


class _Beside(TinyRunner):
    """A runner of a decoder: each row of a pass is given its source, as long as it is."""

    def forward(self, tokens: np.ndarray, *rest: Any, sources: tuple[np.ndarray, np.ndarray], **more: Any) -> Any:
        ids, mask = sources
        assert len(ids) == len(tokens)
        firsts = [bytes(row[held][1:].astype(int).tolist()).decode() for row, held in zip(ids, mask, strict=True)]
        assert firsts == [BESIDE[bytes(row[1:2].tolist()).decode()] for row in tokens]
        return super().forward(tokens, *rest, **more)


BESIDE = {"t": "a source", "j": "another, longer"}


def test_a_decoder_reads_its_source_in_every_pass() -> None:
    model = TinyModel()
    tokens, sources = (
        model.tokenise([Prompt((Part(text),)) for text in texts])
        for texts in (("the quick brown fox", "jumps over it"), tuple(BESIDE.values()))
    )
    given = Context(model.info, 0, tokens)
    found = Angles(AnglesParameters(), given).run(_Beside(Twin(model)), replace(tokens, sources=sources))
    plain = Angles(AnglesParameters(), given).run(TinyEngine().runner(Twin(model)), tokens)
    xr.testing.assert_identical(found, plain)
