"""What docs/three-questions.md answers on builtin:tiny, by its run files with fewer draws."""

from __future__ import annotations

from pathlib import Path

import pytest

import gausslens

pytestmark = pytest.mark.full


def test_one_head_looks_at_the_token_before_and_twins_do_not(root: Path, tmp_path: Path) -> None:
    fewer = ("variants.before.draws=2", "variants.spectrum.draws=2", "report=false")
    store = gausslens.run(root / "examples/previous-token.yaml", tmp_path, sets=fewer, shown=False)
    looks = {name: store[name, "attention"].to_previous for name in store.variants}
    first, second = sorted(looks["trained"].values.ravel())[:-3:-1]
    assert looks["trained"].values.argmax() == 1
    assert first == pytest.approx(0.59, abs=0.005)
    assert second < first / 2
    for twins in ("before", "spectrum"):
        assert looks[twins].values.mean() == pytest.approx(0.06, abs=0.01)


def test_a_head_needs_its_strongest_direction_and_no_other(root: Path, tmp_path: Path) -> None:
    fewer = ("variants.control.draws=2", "report=false")
    store = gausslens.run(root / "examples/drop-qk.yaml", tmp_path, sets=fewer, shown=False)
    cost = {name: store[name, "effect"].loss_change.values for name in store.variants}
    assert cost["dropped"] == pytest.approx(3.1, abs=0.05)
    assert cost["alone"] == pytest.approx(-0.002, abs=0.002)
    assert cost["control"] == pytest.approx([0.25, 0.0], abs=0.01)
