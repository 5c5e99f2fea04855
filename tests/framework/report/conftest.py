"""Stores written by hand, and hosts with one section."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from gausslens import ReportSection, hookimpl
from gausslens.contract.digests_and_seeds import digest
from gausslens.runs.compare import against
from gausslens.store import Store
from gausslens.testing import host_of

from .browser import CHROMEDRIVER, CHROMIUM, Browser, browser

CREATED = "2026-01-02T03:04:05+00:00"
META = {"plugin": "probe", "plugin_version": "0", "version": 1, "object_id": "0" * 32}
PROVENANCE: dict[str, Any] = {
    "model": {"name": "<b>tiny</b>", "family": "made", "dtype": "float32", "fingerprint": "f" * 64},
    "wall_seconds": 75.0,
    "threads": 1,
    "peak_memory_bytes": 3 << 30,
}


def measured(seed: int, shift: float = 0.0) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    return xr.Dataset(
        {
            "score": (("layer", "head"), rng.normal(shift, 1.0, (3, 4)), {"long_name": "a score", "units": "nat"}),
            "mass": (("layer",), rng.normal(0.0, 1.0, 3), {"long_name": "a mass", "units": "1"}),
        },
        coords={"layer": np.arange(3), "head": np.arange(4)},
    )


class Written:
    """A store that tests fill: results of variants and draws, and what compares them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store(path)
        self.store.create()
        self.steps: list[dict[str, Any]] = []
        self.model: dict[str, Any] = PROVENANCE["model"]

    def result(
        self,
        variant: str,
        label: str,
        dataset: xr.Dataset | None,
        draw: int | None = None,
        null: str | None = None,
        **swept: Any,
    ) -> Written:
        """Plan a step, and finish it unless its dataset is None."""
        key = digest([variant, label, draw, *([swept] if swept else [])])
        step = {"variant": variant, "label": label, "draw": draw, "sweep": swept, "key": key, "against": null}
        self.steps.append({**step, "analysis": "probe.scores", "ingredients": {}})
        if dataset is not None:
            provenance = PROVENANCE | {"model": self.model}
            assert self.store.commit("probe.scores", key, dataset, {**META, "provenance": provenance})
        return self

    def compared(self, variant: str, label: str, of: xr.Dataset, null: Iterable[xr.Dataset]) -> Written:
        """The comparison of a result with draws of a null that is called chance."""
        return self.result(variant, f"{label}.against.chance", against(of, list(null)), null="chance")

    def planned(
        self, name: str = "study", created: str = CREATED, rungs: dict[str, str] | None = None, **resolved: Any
    ) -> Path:
        """Write the manifest, with the rungs of nulls on the ladder; the store is then as after a run."""
        resolved = {"model": {"path": "builtin:made"}, "prompts": {"source": "text"}, **resolved}
        manifest = {"format": "gausslens-run", "version": 1, "run": name, "plan": digest([name, created])}
        manifest |= {"created": created, "resolved": resolved, "distributions": {}, "steps": self.steps}
        manifest |= {"nulls": [{"name": null, "rung": rung} for null, rung in rungs.items()]} if rungs else {}
        self.store.manifest(name, manifest)
        self.store.reindex()
        return self.path


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "store")


@pytest.fixture
def study(written: Written) -> Path:
    """A trained variant with a planted effect, eight draws of chance, and the comparison."""
    trained = measured(0)
    trained["score"][1, 2] = 40.0
    chance = [measured(draw + 1) for draw in range(8)]
    written.result("trained", "scores", trained)
    for draw, dataset in enumerate(chance):
        written.result("chance", "scores", dataset, draw)
    return written.compared("trained", "scores", trained, chance).planned()


class Page(HTMLParser):
    """A page as a browser's parser sees it: elements with their attributes, and the text between."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        (self.scripts if inside == "script" else self.texts).append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


Section = Callable[[Any], list[Any]]


def host_with(section: str, analyses: tuple[str, ...] = ("probe.scores",)) -> Any:
    """A host with one section, named as ``"module:function"``."""
    described = ReportSection(
        name="probe.section", version=1, summary="What it is.", section=section, analyses=analyses
    )

    @hookimpl
    def report_sections() -> list[ReportSection]:
        return [described]

    return host_of(probe=SimpleNamespace(report_sections=report_sections))


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    assert CHROMEDRIVER is not None
    with browser(CHROMEDRIVER, CHROMIUM, tmp_path_factory.mktemp("chromium")) as made:
        yield made
