"""docs/models.md names what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from gausslens import SITES
from gausslens_models.families.layout import FAMILIES
from gausslens_models.plugin import loaders

TEXT = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
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


def test_the_table_of_models_is_of_today() -> None:
    root = Path(__file__).parents[3]
    made = subprocess.run([sys.executable, str(root / "docs" / "list_models.py"), "--check"], check=False)
    assert made.returncode == 0, "python docs/list_models.py makes it again"
