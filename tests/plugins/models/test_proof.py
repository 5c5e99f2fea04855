"""The parity proof holds for every family, and fails when the table of a family is wrong."""

from __future__ import annotations

from collections.abc import Callable

from gausslens_models.engine import TransformersEngine
from gausslens_models.pretrained import PretrainedModel

Opens = Callable[[str], PretrainedModel]


def test_it_holds(which: str, opened: Opens) -> None:
    findings = TransformersEngine().prove(opened(which))
    assert [f for f in findings if not f.holds] == []
    exact = [f for f in findings if f.what in ("logits", "final hidden state") or f.what.startswith("pattern")]
    assert all(f.difference == 0.0 for f in exact if "weights" not in f.what)
