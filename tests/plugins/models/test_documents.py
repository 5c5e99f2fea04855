"""docs/models.md names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from gausslens import SITES
from gausslens_models.families.layout import FAMILIES
from gausslens_models.plugin import loaders

TEXT = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"`([\w.-]+)`", TEXT))


def test_every_tensor_is_named() -> None:
    names = {name for family in FAMILIES for name in (*family.tensors, *family.outside)}
    names |= {name for family in FAMILIES for other in family.others.values() for name in other.tensors}
    assert names - QUOTED == set()


def test_every_site_and_loader_is_named() -> None:
    assert set(SITES) - QUOTED == set()
    assert {loader.name for loader in loaders()} - QUOTED == set()


def test_every_family_is_named() -> None:
    listed = re.search(r"Families with a table: ([^(]*)\(", TEXT)
    assert listed is not None
    assert {name.strip() for name in listed[1].split(",")} == {family.name for family in FAMILIES}
