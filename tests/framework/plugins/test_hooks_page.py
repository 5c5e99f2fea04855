"""HOOKS.md says what the code says, and the plugin that it writes works, part by part."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gausslens
from gausslens.contract import analyses as shapes
from gausslens.contract import batches as batch
from gausslens.contract import descriptors, engines, model, prompts, sites
from gausslens.contract import hooks as announce
from gausslens.contract import hooks as hookspecs
from gausslens.contract.parameters import NoParameters
from gausslens.contract.reference import resolve
from gausslens.contract.twin import Twin
from gausslens.plugins import Host, load
from gausslens.store.read_results import Results
from gausslens.testing import (
    TinyEngine,
    TinyModel,
    check_derived,
    check_edit,
    check_forward,
    check_references,
    check_section,
    check_stream,
    check_weights,
)

from ..report.browser import browser

CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PAGE = Path(__file__).parents[3] / "framework" / "HOOKS.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CALLED = [
    *(vars(descriptors)[n] for n in ("Descriptor", "Analysis", "Edit", "PromptSource", "Loader", "Engine")),
    descriptors.ReportSection,
    shapes.Context,
    shapes.Estimate,
    announce.RunNews,
    announce.StepNews,
    prompts.Prompt,
    prompts.Part,
    batch.Request,
    engines.Intervention,
    engines.Where,
    model.OpenAs,
]
PROTOCOLS = [
    shapes.StreamAnalysis,
    shapes.WeightsAnalysis,
    shapes.ForwardAnalysis,
    shapes.DerivedAnalysis,
    engines.Runner,
    shapes.Bulk,
    engines.CaptureEngine,
    model.OpenModel,
]


@dataclass(frozen=True)
class Block:
    """A block of code of the page; those of a file of the example name it in their first line."""

    text: str

    @property
    def file(self) -> str | None:
        found = re.match(r"(?:#|//) (\S+\.(?:py|toml|js))\n", self.text)
        return found[1] if found else None


def blocks(until: str | None = None) -> list[Block]:
    text = PAGE.read_text(encoding="utf-8")
    return [Block(found[2]) for found in FENCE.finditer(text[: text.index(until)] if until else text)]


def headings() -> list[str]:
    return re.findall(r"^### `(.+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def _parameter(p: inspect.Parameter) -> str:
    default = "" if p.default is p.empty else f" = {p.default!r}"
    default = " = {}" if "<factory>" in default else default
    stars = "**" if p.kind is p.VAR_KEYWORD else ""
    text = f"{stars}{p.name}: {p.annotation}{default}" if p.annotation is not p.empty else p.name
    return text.replace("'", '"')


def called(function: Any) -> str:
    signature = inspect.signature(function)
    inside = ", ".join(map(_parameter, signature.parameters.values()))
    return f"{function.__name__}({inside}) -> {signature.return_annotation}"


def constructed(kind: type) -> str:
    parameters = list(inspect.signature(kind).parameters.values())
    lines = ["*"] if parameters[0].kind is inspect.Parameter.KEYWORD_ONLY else []
    lines += map(_parameter, parameters)
    return f"{kind.__name__}(\n" + "".join(f"    {line},\n" for line in lines) + ")\n"


def protocol(kind: type) -> str:
    lines = []
    for name, member in vars(kind).items():
        if isinstance(member, property):
            lines.append(f"    {name}: {inspect.signature(member.fget).return_annotation}\n")  # type: ignore[arg-type]
        elif inspect.isfunction(member) and not name.startswith("_"):
            lines.append(f"    def {called(member)}\n")
    return f"class {kind.__name__}:\n" + "".join(lines)


def test_every_hook_stands_under_its_exact_signature() -> None:
    specified = [f for f in vars(hookspecs).values() if hasattr(f, "gausslens_spec")]
    assert len(specified) == 11
    assert sorted(headings()) == sorted(map(called, specified))


@pytest.mark.parametrize("kind", CALLED, ids=lambda kind: kind.__name__)
def test_every_descriptor_is_shown_with_all_its_fields(kind: type) -> None:
    assert [b.text for b in blocks() if b.text.startswith(f"{kind.__name__}(")] == [constructed(kind)]


@pytest.mark.parametrize("kind", PROTOCOLS, ids=lambda kind: kind.__name__)
def test_every_class_behind_them_is_shown_with_all_its_methods(kind: type) -> None:
    assert [b.text for b in blocks() if b.text.startswith(f"class {kind.__name__}:")] == [protocol(kind)]


def test_the_table_of_sites_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([a-z_ ]+)` \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(name, tuple(dims.split())) for name, dims in rows] == [(n, s.dims) for n, s in sites.TABLE.items()]


def test_the_example_of_an_intervention_patches(norms: ModuleType) -> None:
    [block] = [b.text for b in blocks() if "def patched(" in b.text]
    made: dict[str, Any] = {}
    exec(block, made)
    runner = TinyEngine().runner(Twin(TinyModel()))
    clean, corrupted = np.array([[5, 9, 40, 7]]), np.array([[5, 9, 80, 7]])
    assert (made["patched"](runner, clean, clean, 1, 2, 3) == runner.forward(clean)["logits"]).all()
    moved = (made["patched"](runner, clean, corrupted, 1, 2, 3) != runner.forward(corrupted)["logits"]).any(-1)
    assert moved.tolist() == [[False, False, False, True]]


def test_every_descriptor_class_is_on_the_page() -> None:
    public = [v for v in vars(descriptors).values() if isinstance(v, type) and issubclass(v, descriptors.Descriptor)]
    assert set(public) <= set(CALLED)


def written(found: list[Block], directory: Path) -> ModuleType:
    """The plugin that the blocks make, imported."""
    for block in found:
        if block.file is not None:
            path = directory / block.file
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(block.text)
    return importlib.import_module("gausslens_norms.plugin")


def _forget() -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "gausslens_norms"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def norms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The plugin of the whole page."""
    directory = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        yield written(blocks(), directory)
        _forget()


def test_the_first_four_files_are_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    try:
        plugin = written(blocks(until="## What a plugin may rely on"), tmp_path)
        assert list(check_references(plugin).analyses) == ["norms.activations"]
        check_stream(plugin.ACTIVATIONS)
    finally:
        _forget()
    assert {p.name for p in tmp_path.rglob("*.py")} == {"plugin.py", "parameters.py", "activations.py", "test_norms.py"}
    assert 'norms = "gausslens_norms.plugin"' in (tmp_path / "pyproject.toml").read_text(encoding="utf-8")


def test_the_host_takes_it_whole(norms: ModuleType) -> None:
    host = check_references(norms)
    [record] = [p for p in host.plugins if p.plugin == "plugin"]
    assert sorted(record.hooks) == sorted(heading.split("(")[0] for heading in headings())


def test_its_stream_analysis(norms: ModuleType) -> None:
    result = check_stream(norms.ACTIVATIONS)
    assert (result["length"] > 0).all()


def test_its_ordered_analysis(norms: ModuleType) -> None:
    few, many = (check_stream(norms.CENTRE, resolve(norms.CENTRE.parameters)(epochs=n)) for n in (1, 3))
    assert set(few.data_vars) == {"centre", "read"}
    assert (few["centre"] != many["centre"]).any()


def test_its_analysis_that_commits_on_the_way(norms: ModuleType) -> None:
    result = check_stream(norms.MOMENTS, model=TinyModel(dtype="float64"))
    np.testing.assert_allclose(result["length"], check_stream(norms.ACTIVATIONS)["length"], rtol=1e-5)


def test_its_weights_analysis(norms: ModuleType) -> None:
    model = TinyModel()
    result = check_weights(norms.WEIGHTS, model=model)
    assert result["norm"].values[1, 0] == pytest.approx(float(model.tensor(1, "W_Q")[0].norm()))


def test_its_forward_analysis(norms: ModuleType) -> None:
    assert (check_forward(norms.SURPRISE)["surprise"] == 0).all()  # nothing was edited


def test_its_derived_analysis(norms: ModuleType) -> None:
    lengths = check_stream(norms.ACTIVATIONS)
    ref = shapes.StepRef("trained", "norms.activations", "norms.activations")
    found = check_derived(norms.GROWTH, {ref: lengths})
    assert float(found["growth"]) == pytest.approx(float(lengths["length"][-1] / lengths["length"][0]))


def test_what_reads_results_finds_them(norms: ModuleType) -> None:
    ref = shapes.StepRef("trained", "norms.centre", "norms.centre")
    found = check_stream(norms.CENTRE)
    assert (check_forward(norms.ALONG, inputs={ref: found})["along"] != 0).all()
    for layer, tensors in check_edit(norms.BLIND, inputs={ref: found}).items():
        if layer is not None:
            read = np.einsum("d,hde->he", found["centre"].sel(layer=layer), tensors["W_Q"].double())
            np.testing.assert_allclose(read, 0, atol=1e-5)


def test_its_edit(norms: ModuleType) -> None:
    for tensors in check_edit(norms.UNIT).values():
        for tensor in tensors.values():
            np.testing.assert_allclose(tensor.flatten(1).norm(dim=1), 1.0, rtol=1e-6)


def test_its_source(norms: ModuleType) -> None:
    parameters = resolve(norms.COUNTING.parameters)(prompts=3)
    made = resolve(norms.COUNTING.prompts)(parameters, prompts.SourceContext(Path()))
    assert ["".join(part.text for part in prompt.parts) for prompt in made][2] == "Count: 1 2 3"
    assert len(TinyModel().tokenise(made)) == 3


def test_its_loader_and_engine(norms: ModuleType, tmp_path: Path) -> None:
    path = str(tmp_path / "model.npz")
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape) for name, shape in (("0.W_Q", (2, 8, 4)), ("W_E", (50, 8)))}
    np.savez(path, **tensors)  # type: ignore[arg-type]
    assert resolve(norms.NPZ.claims)(path)
    opened = resolve(norms.NPZ.open)(model.ModelSpec(path, NoParameters()))
    assert opened.names(0) == ("W_Q",)
    assert opened.names(None) == ("W_E",)
    engine = resolve(norms.EMBEDDING.engine)()
    tokens = opened.tokenise([prompts.Prompt((prompts.Part("ab"),)), prompts.Prompt((prompts.Part("c"),))])
    batches: list[batch.Batch] = []
    for shard in tokens.shards():
        engine.run(Twin(opened), tokens, shard, batch.Request(engine.sites(opened)), batches.append)
    total = sum(float(b["embed"].double()[b.mask].sum()) for b in batches)
    assert total == pytest.approx(tensors["W_E"][[ord(c) % 50 for c in "abc"]].sum(), rel=1e-5)
    text = "abcdefgh" * 7
    cut = prompts.tokenised(opened, [prompts.Prompt((prompts.Part(text),), chunk=7)], "npz")
    assert len(opened.tokenise([prompts.Prompt((prompts.Part(text),), chunk=7)])) == 1  # it knows of no chunks
    assert ["".join(pieces) for pieces in cut.pieces] == [text[i : i + 7] for i in range(0, 56, 7)]
    runner = engine.runner(Twin(opened))
    assert runner.forward(np.array([[1, 2]]))["embed"].shape == (1, 2, 8)
    assert runner.weights(0).W_Q.shape == (2, 8, 4)
    opened.close()

    study = {"gausslens": 1, "name": "npz", "model": {"path": path}, "analyses": [{"use": "norms.weights"}]}
    host = load(only=(), extra={"norms": norms})
    results = gausslens.run(study | {"report": False}, store=tmp_path / "store", host=host, shown=False)
    wanted = np.sqrt((tensors["0.W_Q"] ** 2).sum((1, 2)))
    np.testing.assert_allclose(results["trained", "norms.weights"]["norm"][0], wanted, rtol=1e-6)


def test_its_loader_of_modules(norms: ModuleType, tmp_path: Path) -> None:
    import torch

    path = str(tmp_path / "tiny.one")
    module = importlib.import_module("gausslens_norms.one_layer").OneLayer(30, 8)
    torch.save(module.state_dict(), path)
    host = load(only=("models", "reinit"), extra={"norms": norms})
    study = {
        "gausslens": 1,
        "name": "one",
        "model": {"path": path},
        "prompts": {"source": "tokens", "ids": [[1, 7, 3], [2, 29, 0]]},
        "variants": {"trained": [], "before": {"edits": [{"edit": "reinit.config", "embeddings": True}], "draws": 2}},
        "analyses": [{"use": "model.capture", "with": {"sites": ["logits"]}}, {"use": "norms.weights"}],
        "report": False,
    }
    results = gausslens.run(study, store=tmp_path / "store", host=host, shown=False)
    logits = module(torch.tensor([[1, 7, 3], [2, 29, 0]])).detach()
    np.testing.assert_allclose(results["trained", "model.capture"]["logits"], logits, atol=1e-5)
    norm = module.layers[0].q.weight.norm()
    assert results["trained", "norms.weights"]["norm"].item() == pytest.approx(norm.item())
    assert float(results["before", "norms.weights"]["norm"].std()) > 0


def test_its_announcements(norms: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    host = load(only=(), extra={"norms": norms})
    run = announce.RunNews("study", "store", "0" * 64, 3)
    step = announce.StepNews("trained", "norms.activations", "norms.activations", "1" * 64)
    caplog.set_level("INFO", logger="gausslens_norms")
    news = {
        "run_started": {"run": run},
        "step_started": {"run": run, "step": step},
        "step_finished": {"run": run, "step": step},
        "run_failed": {"run": run, "step": None, "error": ValueError("x")},
        "run_finished": {"run": run, "summary": {"computed": 3}},
    }
    for name, told in news.items():
        assert host.announce(name, **told) == []
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "study",
        "norms.activations on trained begins",
        f"norms.activations on trained is {'1' * 64}",
        "the run",
        "study",
    ]


def ran(norms: ModuleType, store: Path) -> tuple[Results, Host]:
    """A run with all of the plugin, and the host that ran it."""
    from gausslens.testing import wiring

    study = {
        "gausslens": 1,
        "name": "page",
        "model": {"path": "builtin:testing"},
        "prompts": {"source": "counting", "prompts": 4},
        "variants": {
            "trained": [],
            "unit": [{"edit": "norms.unit"}],
            "sweep": [{"edit": "norms.unit", "sweep": {"norm": [0.5, 1.0, 2.0]}}],
            "blind": [{"edit": "norms.blind"}],
            "chance": {"edits": [{"edit": "reinit.gaussian"}], "draws": 3},
        },
        "analyses": [
            {"use": f"norms.{name}"} for name in ("activations", "centre", "weights", "surprise", "growth", "along")
        ],
        "against": "chance",
        "report": False,
    }
    host = load(only=("reinit",), extra={"norms": norms, "tiny": wiring})
    assert not host.broken
    results = gausslens.run(study, store=store, host=host, shown=False)
    return results, host


def test_a_run_with_it_has_its_null_columns_and_its_sections(norms: ModuleType, tmp_path: Path) -> None:
    from gausslens.figures import Custom, Lines

    results, _ = ran(norms, tmp_path / "store")
    compared = results.against("unit", "norms.activations", "chance")
    assert {"length", "length_z", "length_p", "length_q"} <= set(compared.data_vars)
    assert (results["trained", "norms.surprise"]["surprise"] == 0).all()
    assert (results["unit", "norms.surprise"]["surprise"] != 0).any()
    assert (results["blind", "norms.centre"]["read"][0] < 1e-4 * results["trained", "norms.centre"]["read"][0]).all()
    assert "along_z" in results.against("blind", "norms.along", "chance")
    assert results["sweep", "norms.growth"]["growth"].dims == ("norm",)
    [drawn] = check_section(norms.LENGTHS, results)
    assert isinstance(drawn, Lines)
    assert [series.name for series in drawn.series] == ["trained", "unit", "sweep", "chance", "blind"]
    [rings] = check_section(norms.RINGS, results)
    assert isinstance(rings, Custom)
    assert rings.fallback.title == drawn.title


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None or CHROMEDRIVER is None, reason="chromium and chromedriver are not installed")
def test_its_view_draws_a_ring_for_each_layer_of_the_variant_that_is_chosen(norms: ModuleType, tmp_path: Path) -> None:
    from gausslens.report import write

    assert CHROMIUM is not None
    assert CHROMEDRIVER is not None
    page = write(*ran(norms, tmp_path / "store"))
    widths = "return [...document.querySelectorAll('circle')].map((ring) => Number(ring.getAttribute('r')))"
    chosen = "const s = document.querySelector('select'); s.value = 'unit'; s.dispatchEvent(new Event('change'))"
    with browser(CHROMEDRIVER, CHROMIUM, tmp_path) as driven:
        driven.open(page)
        driven.run("document.querySelector('.view').scrollIntoView()")
        driven.until(lambda: driven.run("return document.querySelectorAll('iframe').length"))
        with driven.inside("iframe"):
            first = driven.until(lambda: driven.run(widths))
            driven.run(chosen)
            second = driven.run(widths)
        assert driven.log("browser") == []
    assert len(first) == len(second) == TinyModel().info.n_layers
    assert first != second
    assert max(first + second) <= 100
