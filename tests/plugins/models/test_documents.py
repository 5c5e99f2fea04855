"""docs/models.md names what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripts import script_at
from tiny_stacks import STACKED

import gausslens
from gausslens import SITES, GausslensError
from gausslens_models.families.layout import FAMILIES
from gausslens_models.families.two_stacks import TWO_STACKS
from gausslens_models.plugin import loaders

TEXT = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
# Some that families without scores have, of each kind.
SERVED = (
    "attention.band",
    "attention.masks",
    "attention.roles",
    "bilinear.head-roles",
    "gaussian.moments",
    "model.loss",
)
QUOTED = set(re.findall(r"`([\w.-]+)`", TEXT))


def test_every_tensor_is_named() -> None:
    names = {name for family in FAMILIES for name in (*family.tensors, *family.outside)}
    names |= {name for family in FAMILIES if family.mixture for name in family.mixture.tensors}
    names |= {name for family in FAMILIES for other in family.others.values() for name in other.tensors}
    assert names - QUOTED == set()


def test_every_site_and_loader_is_named() -> None:
    assert set(SITES) - QUOTED == set()
    assert {loader.name for loader in loaders()} - QUOTED == set()


def test_every_type_has_a_row_that_the_tests_prove() -> None:
    """But for those that are Llama by another name, which transformers builds as Llama."""
    listed = set(re.findall(r"^\| `([\w-]+)` \| [\w-]+ \| `transformer", TEXT, re.MULTILINE))
    assert {t for family in FAMILIES for t in family.model_types} - listed == {"iquestcoder"}


def test_every_type_of_two_stacks_has_a_row_that_the_tests_prove() -> None:
    listed = set(re.findall(r"^\| `([\w-]+)` \| [\w ,]+ \|$", TEXT, re.MULTILINE))
    types = {name for family in TWO_STACKS for name in family.model_types}
    assert types - listed == set()
    assert types == {name for name in STACKED if name in types}
    names = {name for family in TWO_STACKS for name in (*family.tensors, *family.outside)}
    assert names - QUOTED == set()


def test_the_table_of_models_is_of_today() -> None:
    root = Path(__file__).parents[3]
    made = subprocess.run([sys.executable, str(root / "docs" / "list_models.py"), "--check"], check=False)
    assert made.returncode == 0, "python docs/list_models.py makes it again"


@pytest.mark.parametrize("name", ["gptj", "bloom"])
def test_families_that_are_not_watched_lack_the_analyses_that_the_page_names(
    name: str, directory: Callable[[str], Path], tmp_path: Path
) -> None:
    listing = script_at("docs/list_models.py")
    study: dict[str, Any] = {"gausslens": 1, "name": "all", "model": {"path": str(directory(name))}, "report": False}
    study["prompts"] = {"source": "repeated-random", "prompts": 20, "length": 6}
    of_sites = (*listing.OF_SCORES, *(listing.OF_ROTATED if name == "gptj" else ()))
    for analysis in of_sites:  # refused when planned
        with pytest.raises(GausslensError, match=r"no site '(scores|q_rot)'"):
            gausslens.run(study | {"analyses": [{"use": analysis}]}, store=tmp_path, shown=False)
    others = [{"use": analysis} for analysis in (*listing.OF_REPLACEMENT, *SERVED)]
    with pytest.raises(GausslensError) as told:
        gausslens.run(study | {"analyses": others}, store=tmp_path, shown=False)
    failed = re.findall(r"([\w.-]+) on trained: .*replacement needs an attention", str(told.value))
    assert sorted(failed) == sorted(listing.OF_REPLACEMENT)
    assert f"{len(failed)} of {len(others)} steps failed" in str(told.value)
