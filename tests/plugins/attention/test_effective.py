"""Pooling on real modules, against fits to the module's own queries, keys and scores by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gausslens import Context, ModelSpec, Prompt, Twin
from gausslens_attention.analyses.patterns import drawn_by_head
from gausslens_attention.analyses.pooling import Pooling
from gausslens_attention.parameters import PoolingParameters
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.parameters import TransformersParameters
from gausslens_models.prompts.tokenise import tokenise

from ..scores_by_hand import MODELS, QUERY_NORMS, VOCABULARY, build, checked

IDS = np.random.default_rng(0).integers(3, VOCABULARY, (3, 14))


@pytest.mark.parametrize("name", MODELS)
def test_the_dot_product_explains_what_it_does_by_hand(name: str, tmp_path: Path, cache_of_tests: Any) -> None:
    module = build(name)
    module.save_pretrained(tmp_path)
    layers = checked(module, IDS)
    model = open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    tokens = tokenise(None, [Prompt(ids=tuple(map(int, row))) for row in IDS], name)
    pooling = Pooling(PoolingParameters(functions=("dot",)), Context(model.info, 3, tokens))
    TransformersEngine().run(Twin(model), tokens, np.arange(len(IDS)), pooling.request(), pooling.update)
    found = pooling.result().sel(scoring="dot")
    n = IDS.shape[1]
    seen = np.ones((n, n), dtype=bool) if name == "bert" else np.tril(np.ones((n, n), dtype=bool))
    for at, layer in enumerate(layers):
        rngs = drawn_by_head(pooling.context, f"cells {n}", at, range(4), 0)
        for head, rng in enumerate(rngs):
            half = rng.random((n, n)) < 0.5
            by_kind = {}
            for kind, (q, k) in {"explained": (layer.q, layer.k), "explained_raw": layer.raw}.items():
                each = []
                for prompt in range(len(IDS)):
                    x = (q[prompt, :, head] @ k[prompt, :, head].T).numpy()
                    y = layer.scores[prompt, head].numpy()
                    a, c = np.polyfit(x[seen & half], y[seen & half], 1)
                    left = (a * x + c - y)[seen & ~half]
                    each.append(1 - (left**2).mean() / y[seen & ~half].var())
                by_kind[kind] = np.mean(each)
            place = found.sel(layer=at, head=head)
            assert float(place["explained"]) == pytest.approx(by_kind["explained"], rel=1e-5, abs=1e-5)
            if name in QUERY_NORMS:
                assert float(place["explained_raw"]) == pytest.approx(by_kind["explained_raw"], rel=1e-5, abs=1e-5)
    assert ("explained_raw" in found) == (name in QUERY_NORMS)
    if name in QUERY_NORMS:
        # What the norms do is a part of what makes the scores.
        assert float(found["explained"].median()) > float(found["explained_raw"].median())
