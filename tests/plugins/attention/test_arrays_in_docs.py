"""The mathematics is functions on plain arrays: docs/attention.md calls it so, and what it prints is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def test_the_document_calls_the_mathematics_on_one_array(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [code] = re.findall(
        r"```python\n(.+?)```", (root / "docs/attention.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    scores = np.where(np.tri(12, dtype=bool), np.random.default_rng(0).normal(size=(12, 12)), -np.inf)
    P = np.exp(scores)
    P /= P.sum(axis=1, keepdims=True)
    np.save(tmp_path / "map.npy", P)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(code, found)
    apart = np.abs(np.arange(12)[:, None] - np.arange(12))
    outside = np.sort(P[apart > 2])[::-1]
    np.testing.assert_allclose(found["distance"], outside[16:].sum())
    np.testing.assert_allclose(found["by_width"], [P[apart > w].sum() for w in (0, 1, 2, 4)])
    values = np.linalg.svd(P, compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(P - found["rank_4"]), np.sqrt((values[4:] ** 2).sum()))
    np.testing.assert_allclose(found["best"].sum(axis=1), 1)
    assert (np.count_nonzero(found["best"], axis=1) <= 4).all()
    np.testing.assert_allclose(found["band"].captured, P[found["band"].support[0]].sum())
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" {")[0] for line in printed] == ["band", "rank 4", "longformer", "largest"]
