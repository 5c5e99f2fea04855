"""The plugin as a whole: everything that its descriptors name exists and has the form that the host calls."""

from __future__ import annotations

from gausslens.testing import check_references
from gausslens_models import plugin


def test_everything_that_is_named_exists() -> None:
    host = check_references(plugin)
    assert {"model.loss", "model.generate", "model.attention", "model.embeddings"} <= set(host.analyses)
    assert {"text", "file", "tokens", "few-shot", "repeated-random"} <= set(host.sources)
