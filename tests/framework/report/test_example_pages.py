"""Every example run file finishes on the model that it names, its page is whole in a browser, and what rows of
docs/REPRODUCTION.md rest on it for is in its store.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml

import gausslens
from gausslens.__main__ import main

from .browser import Browser

CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")
ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
# What takes minutes on a real model though it is asked for little: CI has these on the built-in one.
_LONG = ("attention-budgets", "attention-roles", "attention-swap", "bilinear-angles")
REAL = [
    pytest.param(path, marks=[pytest.mark.soak] if path.stem in _LONG else [])
    for path in EXAMPLES
    if "On SmolLM2" in path.read_text(encoding="utf-8")
]
# What takes many minutes on a real model is asked for fewer prompts and settings here.
_ONE_PROMPT = ("prompts.targets=[Ant]", "prompts.shots=2")
FEWER = {
    "attention-budgets": (*_ONE_PROMPT, "analyses.kernels.with.features=[16]"),
    "attention-roles": (*_ONE_PROMPT,),
    "attention-swap": (
        *_ONE_PROMPT,
        *(f"analyses.all-heads.with.{each}" for each in ("band=[8]", "budget=[2]", "keys=[8]", "rank=[8]")),
        "analyses.all-heads-linear.layers=[3, 7]",
        "analyses.each-head.layers=[7]",
    ),
    "bilinear-angles": ("prompts.targets=[Bread, Cake]", "prompts.shots=2"),
    "singular-values": ("analyses.spectra.layers=[0, 15]", "analyses.alignment.layers=[0, 15]"),
}
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None or CHROMEDRIVER is None, reason="chromium and chromedriver are not installed"),
]
# A figure is empty if there is nothing to see in it; tables and texts may have no rows.
EMPTY = (
    "return [...document.querySelectorAll('figure:not(.Table):not(.Texts)')].filter(f => "
    "!f.querySelector('svg .cell, svg polyline, svg .dot, .pixels img') && !f.textContent.includes('Left out'))"
    ".map(f => f.querySelector('h3').textContent)"
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_finishes_and_its_page_is_whole(
    driven: Browser, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.syspath_prepend(str(ROOT / "docs/reproduction"))
    import remake

    path = remake.with_checkpoints(path.name, tmp_path, small=True)
    one_prompt = ["prompts.targets=[Ant]"] if path.stem in ("attention-budgets", "attention-swap") else []
    fewer = (*one_prompt, *_few_draws(path))
    options = [option for each in fewer for option in ("--set", each)]
    assert main(["run", str(path), "--store", str(store), *options]) == 0
    _whole(driven, store)
    _numbers_of_rows(path, store)
    if path.stem == "demo":
        assert (store / "report.html").stat().st_size < 5_000_000


@pytest.mark.real_model
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_it_finishes_on_a_real_model_where_it_says_so(driven: Browser, path: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    model = Path(os.environ["GAUSSLENS_MODELS"]) / "smollm2"
    said = next(line for line in path.read_text(encoding="utf-8").splitlines() if "On SmolLM2" in line)
    options = said.replace("path/to/smollm2", str(model)).split(".yaml ", 1)[1].split()
    fewer = (*FEWER.get(path.stem, ()), *_few_draws(path))
    options += [option for each in fewer for option in ("--set", each)]
    assert main(["run", str(path), "--store", str(store), *options]) == 0
    _whole(driven, store)


def _numbers_of_rows(path: Path, store: Path) -> None:
    """All numbers of the rows that rest on this run file can be read; with few draws they are not those of the page."""
    import remake

    for row in remake.rows():
        if "numbers" in row and row["run"][0] == path.name:
            read = remake.read_row(row, gausslens.open(store))
            assert list(read["numbers"]) == list(row["numbers"])


def _few_draws(path: Path) -> list[str]:
    """Two draws in place of many and no errors over prompts, but in one that has all of it, and in the demo errors."""
    if path.stem == "text-nulls":
        return []
    variants = yaml.safe_load(path.read_text(encoding="utf-8")).get("variants", {})
    drawn = [name for name, each in variants.items() if isinstance(each, dict) and (each.get("draws") or 0) > 2]
    errors = [] if path.stem == "demo" else ["errors=false"]
    return [*(f"variants.{name}.draws=2" for name in drawn), *errors]


def _whole(driven: Browser, store: Path) -> None:
    """Everything finished, and the page is drawn and quiet."""
    assert main(["report", str(store)]) == 0
    results = gausslens.open(store)
    assert all(results.finished(step) for manifest in results.manifests() for step in manifest.steps)
    page = store / "report.html"
    assert page.stat().st_size < 20_000_000
    driven.requests()
    driven.log("browser")
    driven.open(page)
    assert driven.run("return document.querySelectorAll('figure').length") > 1
    assert driven.run(EMPTY) == []
    assert driven.run("return document.querySelectorAll('.failed').length") == 0
    assert driven.run("return document.documentElement.scrollWidth <= innerWidth")
    assert driven.log("browser") == []
    assert driven.requests() == [page.as_uri()]
