"""What is in the key: what files hold that no parameter names, and what a loader tells of its model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_run import by_label, do, host, study

import gausslens
from gausslens.contract.descriptors import Owned, Owner
from gausslens.contract.errors import InputError, Mark, ModelError
from gausslens.contract.parameters import NoParameters
from gausslens.runs import keys
from gausslens.runs.study import ModelCall
from gausslens.spreading.prepare import prepare
from gausslens.testing import TinyModel, wiring

INFO = TinyModel().info


def filed(directory: Path, **changes: Any) -> dict[str, Any]:
    whole = study(
        variants={"trained": [], "edited": [{"edit": "probe.of_file", "directory": str(directory)}]},
        analyses=[{"use": "probe.filed", "with": {"directory": str(directory)}}, {"use": "probe.norm"}],
    )
    del whole["against"]
    return whole | changes


def test_an_overwritten_file_is_computed_again_and_not_found_in_the_store(tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("2.0")
    first = do(filed(tmp_path), tmp_path / "store")
    assert str(do(filed(tmp_path), tmp_path / "store").outcome) == "4 found in the store"
    file.write_text("3.0")
    second = do(filed(tmp_path), tmp_path / "store")
    assert second.outcome.counts() == {"computed": 3, "found": 1, "failed": 0}
    read = gausslens.open(tmp_path / "store")
    assert (read["trained", "probe.filed"]["value"] == 3.0).all()
    plain = read["trained", "probe.norm"]["norm"]
    np.testing.assert_allclose(read["edited", "probe.norm"]["norm"], 9.0 * plain, rtol=1e-5)  # of squares
    same = {name for name, found in by_label(first).items() if by_label(second)[name] == found}
    assert same == {"probe.norm/trained"}


def test_a_source_says_what_it_read_too(tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("2.0")
    whole = filed(tmp_path, prompts={"source": "told", "directory": str(tmp_path)}, analyses=[{"use": "probe.power"}])
    *_, before = prepare(whole, host=host())
    file.write_text("3.0")
    *_, after = prepare(whole, host=host())
    assert {s.ingredients["source"] for s in before.steps} == {"2.0"}
    assert not {s.key for s in before.steps} & {s.key for s in after.steps}


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ({"use": "probe.filed", "with": {"directory": "/none"}}, r"probe\.filed: /none holds no file"),
        ({"use": "probe.unfiled"}, r"probe\.unfiled: its fingerprint is None, and no text"),
        ({"use": "probe.unfiled", "with": {"directory": "x"}}, r"its fingerprint cannot be had: ZeroDivisionError"),
    ],
)
def test_a_fingerprint_that_cannot_be_had_is_told_with_its_line(use, said, tmp_path):
    whole = filed(tmp_path, analyses=[use], variants={"trained": []})
    with pytest.raises(InputError, match=said):
        prepare(whole, host=host())


def call(distribution: str) -> ModelCall:
    owned = Owned(wiring.TINY, Owner("tiny", distribution, "1"))
    return ModelCall("builtin:testing", owned, NoParameters(), None, "cpu", Mark("<test>", 1, 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"facts": dict(INFO.facts) | {"norm_epsilon": 1e-5}},
        {"facts": dict(INFO.facts) | {"norm": "layer"}},
        {"facts": dict(INFO.facts) | {"rotary": ({"frequencies": np.array([1.0, 0.5]), "scaling": 1.0},)}},
        {"facts": {}},
        {"causal": False},
        {"lacking": {0: {"q": "it has a state"}}},
    ],
)
def test_what_an_outside_loader_tells_is_in_the_key_and_of_ours_it_is_in_the_fingerprint(changes):
    other = replace(INFO, **changes)
    assert keys.of_model(call("gausslens-other"), other) != keys.of_model(call("gausslens-other"), INFO)
    assert set(keys.of_model(call("gausslens"), INFO)) == {"fingerprint", "dtype", "loader"}


def test_facts_are_equal_in_any_order_and_form_and_words_for_people_do_not_count():
    facts: dict[str, Any] = {"norm": "rms", "scale": [0.5, 0.25], "special_ids": {3, 1, 2}, "window": float("inf")}
    same = {"window": float("inf"), "special_ids": {2, 3, 1}, "scale": np.array([0.5, 0.25]), "norm": "rms"}
    made = [keys.of_model(call("o"), replace(INFO, facts=f)) for f in (facts, same, facts | {"notes": ("a word",)})]
    assert made[0] == made[1] == made[2]
    with pytest.raises(ModelError, match="a fact that is a object, of which no key can be made"):
        keys.of_model(call("o"), replace(INFO, facts={"norm": object()}))


def test_no_fact_is_guessed_that_a_loader_must_tell():
    told = replace(INFO, facts={}).facts
    for name in ("norm", "epsilon", "norm_first", "gains", "biases", "position", "query_norm", "soft_cap"):
        with pytest.raises(ModelError, match="its loader does not tell"):
            getattr(told, name)
    for read in (told.scale, told.window, told.rotation, told.scoring):
        with pytest.raises(ModelError, match="its loader does not tell"):
            read(0)
    assert not told.scoring_is_known
