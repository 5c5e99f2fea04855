"""What the report shows of loss, attention, embeddings and written text: the store's numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gausslens
from gausslens.figures import Heatmap, Table, Texts, TokenMap
from gausslens_models.figures import attention, tables

STUDY = {
    "model": {"path": "builtin:tiny"},
    "prompts": {"source": "text", "text": ["abcd abcd abcd", "the ant", "x y"]},
    "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.config"}], "draws": 5}},
    "analyses": [
        {"use": "model.loss"},
        {"use": "model.attention", "with": {"level": "word"}},
        {"use": "model.attention", "as": "heads", "with": {"maps": "heads", "queries": ["text"]}},
        {"use": "model.attention", "as": "numbers", "with": {"maps": "none"}},
        {"use": "model.generate", "with": {"tokens": 4, "samples": 2, "temperature": 1.0}},
        {"use": "model.embeddings"},
    ],
    "against": "chance",
}


@pytest.fixture
def results(gausslens_run: Callable[..., Any]) -> Any:
    return gausslens_run(STUDY, "models", "reinit")


def test_every_section_draws_and_holds_the_stores_numbers(results: Any) -> None:
    whole, segments = tables.loss(results)
    assert isinstance(whole, Table)
    assert isinstance(segments, Table)
    by_variant = {row[0]: row[1:] for row in whole.rows}
    assert by_variant["trained"][1] == float(results["trained", "model.loss"].bits_per_byte)
    assert by_variant["chance"][0] == pytest.approx(float(results["chance", "model.loss"].mean_loss.mean()))
    assert [row[0] for row in segments.rows] == ["trained", "chance"]
    assert segments.columns[0] == "variant"

    drawn = attention.attention(results)
    maps = [f for f in drawn if isinstance(f, TokenMap)]
    heat = [f for f in drawn if isinstance(f, Heatmap)]
    assert len(maps) == 2 * attention.PROMPTS
    assert len(heat) == 3 * (3 + 1)
    assert all("chance" not in f.title or "against chance" in f.title for f in drawn), "a null is shown as a null"
    assert [q for q in maps[0].queries if "a" in q] == ["abcd"] * 3
    for figure in maps:
        rows = np.nansum(np.asarray(figure.values), axis=-1)
        assert ((rows > 0) & (rows < 1 + 1e-6)).all(), "every row shown looks somewhere"
    deficit = next(f for f in heat if f.title == "Entropy deficit, trained (numbers)")
    assert np.array_equal(np.asarray(deficit.values), results["trained", "numbers"].entropy_deficit.values)
    z = next(f for f in heat if f.title == "Entropy deficit of trained, z against chance (numbers)")
    assert np.array_equal(np.asarray(z.values), results.against("trained", "numbers").entropy_deficit_z.values)

    texts = tables.generate(results)
    assert len(texts) == 3
    assert all(isinstance(f, Texts) for f in texts)
    first = texts[0]
    assert isinstance(first, Texts)
    assert {t.name: t.text for t in first.texts}["trained"] == str(
        results["trained", "model.generate"].text.values[0, 0]
    )

    (near,) = tables.embeddings(results)
    assert isinstance(near, Table)
    assert "trained" in near.title


def test_each_source_gets_its_array_back(results: Any) -> None:
    for section in (tables.loss, attention.attention, tables.generate, tables.embeddings):
        for figure in section(results):
            for source in figure.sources:
                assert source.array in results[source.variant, source.label]


def test_the_map_opens_where_attention_is_farthest_from_flat(results: Any) -> None:
    data = results["trained", "heads"]
    figure = next(f for f in attention.attention(results) if isinstance(f, TokenMap) and "(heads)" in f.title)
    assert [dial.name for dial in figure.dials] == ["layer", "head"]
    at = tuple(dial.start for dial in figure.dials)
    assert at == np.unravel_index(int(np.argmax(data.entropy_deficit.values)), data.entropy_deficit.shape)
    expected = data.pattern.isel(layer=at[0], head=at[1], prompt=0).values
    rows, columns = ~np.isnan(expected).all(axis=1), ~np.isnan(expected).all(axis=0)
    shown = np.asarray(figure.values)[at]
    assert np.allclose(np.nan_to_num(shown), np.nan_to_num(expected[rows][:, columns]))
    assert "".join(figure.queries) == "abcd abcd abcd"


def test_swept_values_are_told_apart(gausslens_run: Callable[..., Any]) -> None:
    edit = {"edit": "spectrum.scale", "matrices": ["W_Q", "W_K"], "sweep": {"alpha": [0.5, 2.0]}}
    swept = gausslens_run(STUDY | {"variants": {"dose": [edit]}, "against": []}, "models", "spectrum")
    deficit = swept["dose", "heads"].entropy_deficit
    drawn = attention.attention(swept)
    heat = next(f for f in drawn if f.title == "Entropy deficit, dose (heads)")
    assert isinstance(heat, Heatmap)
    assert [(d.name, d.labels) for d in heat.dials] == [("alpha", ("0.5", "2.0"))]
    np.testing.assert_array_equal(heat.values, deficit.transpose("alpha", "layer", "head"))
    token_map = next(f for f in drawn if isinstance(f, TokenMap) and "(heads)" in f.title)
    assert [d.name for d in token_map.dials] == ["layer", "head", "alpha"]
    whole, segments = tables.loss(swept)
    assert isinstance(whole, Table)
    assert isinstance(segments, Table)
    losses = swept["dose", "model.loss"].mean_loss
    wanted = {f"dose, alpha {a}": float(losses.sel(alpha=a)) for a in (0.5, 2.0)}
    assert {row[0]: row[1] for row in whole.rows} == wanted
    assert [row[0] for row in segments.rows] == list(wanted)
    texts = tables.generate(swept)[0]
    assert isinstance(texts, Texts)
    assert [t.name for t in texts.texts] == list(wanted)


def test_variants_of_runs_with_other_prompts_stand_apart(gausslens_run: Callable[..., Any], tmp_path: Path) -> None:
    writes = {"use": "model.generate", "with": {"tokens": 2}}
    study = STUDY | {"variants": {"trained": []}, "analyses": [{"use": "model.loss"}, writes], "against": []}
    gausslens_run(study, "models", "reinit")
    other = {"source": "few-shot", "words": "animals", "shots": 1, "targets": ["Ant"]}
    twin = {"chance": [{"edit": "reinit.config"}]}
    gausslens_run(study | {"name": "other", "prompts": other, "variants": twin}, "models", "reinit")
    store = gausslens.open(tmp_path / "store")
    for name, segment, variant in (("test", "text", "trained"), ("other", "target", "chance")):
        _, segments = tables.loss(store.run(name))
        assert isinstance(segments, Table)
        assert [row[0] for row in segments.rows] == [variant]
        assert segment in segments.columns
    (alone,) = [f for f in tables.loss(store.run("test")) if isinstance(f, Table) and "segment" in f.title]
    assert "target" not in alone.columns
    texts = [f for f in tables.generate(store.run("test")) if isinstance(f, Texts)]
    assert [[t.name for t in f.texts] for f in texts] == [["trained"]] * 3
