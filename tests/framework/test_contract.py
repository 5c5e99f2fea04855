"""What passes between host and plugins as data: sites, facts of models, variables of results."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import gausslens
from gausslens import HEAD_AXIS, KV_HEAD_AXIS, SITES, Facts, ModelError, Part, Prompt, Request, Twin, variable
from gausslens.contract.facts import USUAL, WORDS
from gausslens.contract.sites import MODEL_SITES, SQUARE_SITES, TABLE
from gausslens.testing import TinyEngine, TinyModel, TinyParameters

MODEL = TinyModel(TinyParameters(layers=2, heads=4, kv_heads=2))
INFO = MODEL.info
PER_LAYER = {"scale", "sliding_window", "rotary"}


class TestSites:
    def test_the_table_is_the_vocabulary(self) -> None:
        assert tuple(TABLE) == SITES
        assert MODEL_SITES == ("embed", "logits")
        assert SQUARE_SITES == ("scores", "pattern")
        assert HEAD_AXIS == {"q": 2, "q_rot": 2, "scores": 1, "pattern": 1, "z": 2}
        assert KV_HEAD_AXIS == {"k": 2, "v": 2, "k_rot": 2}

    def test_shapes_are_those_that_an_engine_gives(self) -> None:
        engine = TinyEngine()
        tokens = MODEL.tokenise([Prompt((Part(text),)) for text in ("ab", "abcdef")])
        shard = np.array([0, 1])
        seen: dict[str, tuple[int, ...]] = {}

        def sink(batch: object) -> None:
            seen.update({site: tuple(array.shape) for site, array in batch.arrays.items()})  # type: ignore[attr-defined]

        sites = engine.sites(MODEL)
        engine.run(Twin(MODEL), tokens, shard, Request(sites), sink)
        assert set(seen) == set(sites)
        for site, shape in seen.items():
            assert TABLE[site].shape(INFO, 2, max(tokens.lengths)) == shape, site

    def test_a_width_is_that_of_one_vector(self) -> None:
        widths = {name: site.width(INFO) for name, site in TABLE.items()}
        assert widths["resid_pre"] == INFO.d_model
        assert widths["q"] == widths["k"] == INFO.d_head
        assert widths["logits"] == INFO.vocabulary
        assert widths["pattern"] == 1
        assert TABLE["v"].vectors(INFO) == (INFO.n_layers, INFO.n_kv_heads, INFO.d_head)
        assert TABLE["embed"].vectors(INFO) == (1, 1, INFO.d_model)
        assert [TABLE[name].heads_dim for name in ("q", "k_rot", "pattern", "resid_pre")] == [
            "head",
            "kv_head",
            "head",
            None,
        ]
        assert TABLE["k"].heads(INFO.narrowed(None, [3])) == (1,)


class TestFacts:
    def test_what_was_told_is_read_with_its_type(self) -> None:
        facts = INFO.facts
        assert isinstance(facts, Facts)
        assert (facts.norm, facts.epsilon, facts.norm_first, facts.gains, facts.biases) == (
            "rms",
            1e-6,
            True,
            False,
            (),
        )
        assert facts.scale(1) == INFO.d_head**-0.5
        assert facts.window(0) is None
        assert facts.soft_cap is None
        assert facts.rotation(0).frequencies == ()

    def test_what_few_families_have_need_not_be_told(self) -> None:
        facts = replace(INFO, facts={}).facts
        assert (facts.query_norm_over, facts.query_norm_late, facts.clip, facts.sinks) == ("head", False, None, False)
        assert (facts.embedding_scale, facts.residual_scale, facts.logit_scale) == (1.0, 1.0, 1.0)
        assert (facts.parallel, facts.query_growth(0), facts.experts(0)) == (False, None, 0)
        told = replace(INFO, facts={"clip": 8, "query_growth": [None, (0.1, 4, 1)], "experts": (0, 4)}).facts
        assert (told.clip, told.query_growth(0), told.query_growth(1)) == (8.0, None, (0.1, 4, 1))
        assert (told.experts(0), told.experts(1)) == (0, 4)

    def test_a_rotation_of_pairs_is_told(self) -> None:
        told = {"frequencies": (1.0,), "scaling": 1.0, "pairs": True}
        assert replace(INFO, facts={"position": "rotary", "rotary": [told]}).facts.rotation(0).pairs

    @pytest.mark.parametrize("name", sorted(WORDS.keys() - USUAL.keys()))
    def test_what_was_not_told_is_refused_by_its_name(self, name: str) -> None:
        foreign = replace(INFO, name="foreign", facts={})
        read = {"norm_epsilon": "epsilon", "sliding_window": "window", "rotary": "rotation"}.get(name, name)
        if name == "rotary":
            foreign = replace(foreign, facts={"position": "rotary"})
        with pytest.raises(ModelError, match=f"foreign: its loader does not tell '{name}'"):
            getattr(foreign.facts, read)(0) if name in PER_LAYER else getattr(foreign.facts, read)

    def test_unknown_is_not_told(self) -> None:
        facts = replace(INFO, facts={"position": "unknown", "norm": "unknown"}).facts
        assert not facts.position_is_known
        with pytest.raises(ModelError, match="does not tell 'norm'"):
            _ = facts.norm

    def test_arrays_are_facts_too(self) -> None:
        facts = replace(INFO, facts={"scale": np.array([0.5, 0.25]), "sliding_window": np.array([4, 8])}).facts
        assert (facts.scale(1), facts.window(0)) == (0.25, 4)

    def test_they_stay_the_mapping_that_a_loader_gave(self) -> None:
        told = {"norm": "layer", "mine": (1, 2)}
        info = replace(INFO, facts=told)
        assert dict(info.facts) == told
        assert info.facts == told
        assert info.facts.get("absent", 3) == 3
        assert replace(info, layers=(0,)).facts == told
        assert copy.deepcopy(info) == pickle.loads(pickle.dumps(info)) == info
        told["norm"] = "rms"
        assert info.facts.norm == "layer", "what a loader changes afterwards changes nothing"

    def test_the_page_of_hooks_lists_them_all(self, request: pytest.FixtureRequest) -> None:
        page = (Path(request.config.rootpath) / "framework/HOOKS.md").read_text(encoding="utf-8")
        assert set(re.findall(r"^\| `(\w+)` \|.*`facts\.", page, re.MULTILINE)) == set(WORDS)


def test_a_variable_owes_its_readers_a_name_and_units() -> None:
    made = xr.Dataset({"length": variable("layer", np.ones(2), "mean length", "1", against=False, note="n")})
    assert made["length"].dims == ("layer",)
    assert made["length"].attrs == {"long_name": "mean length", "units": "1", "against": 0, "note": "n"}
    assert "against" not in xr.Dataset({"x": variable(("a", "b"), torch.ones(1, 1).numpy(), "x")})["x"].attrs


def test_where_no_site_is_near_all_are_named():
    with pytest.raises(ModelError, match=f"there are {', '.join(sorted(SITES))}$"):
        gausslens.site("nowhere")
