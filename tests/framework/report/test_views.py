"""Views of a plugin's own: what they are given, what stands in for them, and that their text cannot leave its place."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import gausslens
from gausslens.figures import BadFigure, Custom, Figure, Heatmap, View
from gausslens.report import write
from gausslens.report.page import LARGEST
from gausslens.report.page_figures import draw
from gausslens.report.thinning import COARSE, FINE

from . import sections, views
from .conftest import Page, host_with
from .sections import ABOUT, HOSTILE
from .views import WRITES, view

HERE = views.__name__
TYPES = {"Uint8Array": "u1", "Uint16Array": "<u2", "Uint32Array": "<u4", "Int8Array": "i1", "Int16Array": "<i2"}
TYPES |= {"Int32Array": "<i4", "Float32Array": "<f4", "Float64Array": "<f8"}
NUMBERS = st.one_of(arrays.boolean_dtypes(), arrays.integer_dtypes(sizes=(8, 16, 32)), arrays.floating_dtypes())


def data_of(figure: Figure) -> dict[str, Any]:
    drawing = figure.drawing()
    assert isinstance(drawing, View)
    found = json.loads(drawing.data)
    return {**found["plain"], **found["arrays"]}


def values_of(array: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(array["base64"]), TYPES[array["type"]]).reshape(array["shape"])


@given(arrays.arrays(NUMBERS, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0)))
def test_arrays_come_as_typed_arrays_of_the_same_values(given_array: np.ndarray) -> None:
    found = data_of(view("v", data={"x": given_array}))["x"]
    np.testing.assert_array_equal(values_of(found), given_array)
    assert (found["dims"], found["coords"]) == ([], {})


def test_arrays_of_xarray_keep_dimensions_and_coordinates_and_a_dataset_is_data() -> None:
    score = xr.DataArray(np.eye(2), dims=("layer", "head"), coords={"layer": [3, 7]})
    words = xr.DataArray(["a", "b"], dims="head", coords={"head": ["x", "y"]})
    found = data_of(view("v", data=xr.Dataset({"score": score, "words": words.drop_vars("head")})))
    assert found["score"]["dims"] == ["layer", "head"]
    assert found["score"]["coords"] == {"layer": [3, 7]}
    assert found["words"] == {"values": ["a", "b"], "shape": [2], "dims": ["head"], "coords": {}}
    assert data_of(view("v", data={"words": words}))["words"]["coords"] == {"head": ["x", "y"]}


def test_large_integers_that_doubles_hold_are_doubles() -> None:
    most = 1 << 53
    found = data_of(view("v", data={"x": np.array([most, -most])}))["x"]
    assert found["type"] == "Float64Array"
    assert values_of(found).tolist() == [most, -most]


def test_plain_values_are_json_and_nan_is_missing() -> None:
    given_values = {"a": [1, 2.5, None, float("nan"), True], "b": np.float32(0.5), "c": {"d": ("e", HOSTILE)}}
    assert data_of(view("v", data=given_values)) == {
        "a": [1, 2.5, None, None, True],
        "b": 0.5,
        "c": {"d": ["e", HOSTILE]},
    }


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"data": [1]}, "its data are a list: give a dict"),
        ({"data": {1: 2}}, "names are text"),
        ({"data": {"x": float("inf")}}, "data 'x' is infinite, which JSON has not: give it in an array"),
        ({"data": {"x": {"y": Path()}}}, "data 'x' holds a PosixPath, which JSON has not"),
        ({"data": {"x": [np.ones(2)]}}, "arrays have names of their own in data"),
        ({"data": {"x": 1 << 60}}, r"an integer beyond 2\^53, which JavaScript rounds: give it as text"),
        ({"data": {"x": np.array([1 << 60])}}, r"integers beyond 2\^53"),
        ({"data": {"x": np.ones(1, complex)}}, "type complex128, which JavaScript has not"),
        ({"data": {"x": np.array([None])}}, "data 'x' holds objects: give numbers or text"),
        ({"data": {"x": CIRCLE}}, "nested more than 50 deep"),
        ({"data": {"x": np.zeros(1 << 24)}}, "more than 64 MB"),
        ({"module": "gausslens_nowhere:view.js"}, "and there is no package gausslens_nowhere"),
        ({"module": "gausslens:view.js"}, "the package gausslens holds no view.js: .*package-data"),
        ({"module": "gausslens:../secret.js"}, "its module is no 'package:file.js'"),
        ({"module": "gausslens.report:page.js"}, r"'gausslens.report:page.js' defines no function draw\(element"),
        ({"module": "const a = 1;"}, r"as a module it defines no function draw\(element, data, theme\)"),
        ({"module": 3}, "its module is no 'package:file.js'"),
        ({"module": "function draw() { '\ud800' }"}, "half of a surrogate pair"),
        ({"height": 40}, "its height is 40: give pixels between 80 and 1200"),
        ({"fallback": None}, "its fallback is no figure"),
        ({"fallback": view("another")}, "its fallback is no figure"),
        ({"sources": ()}, "it names no source"),
    ],
)
def test_what_a_page_cannot_hold_is_refused(changed: dict[str, Any], words: str) -> None:
    still = view("v").fallback  # type: ignore[attr-defined]
    with pytest.raises(BadFigure, match=f"Custom 'v': .*{words}"):
        Custom(**{"title": "v", **ABOUT, "data": {}, "module": WRITES, "fallback": still} | changed)


def test_a_module_is_a_file_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "views_of_tests"
    (package / "js").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "js" / "my-view.mjs").write_text(WRITES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    try:
        drawing = view("v", "views_of_tests:js/my-view.mjs").drawing()
    finally:
        sys.modules.pop("views_of_tests", None)
    assert isinstance(drawing, View)
    assert drawing.module == WRITES


def inside(page: Page) -> list[Page]:
    """The documents of the frames of a page."""
    return [Page(str(each["srcdoc"])) for each in page.all("iframe")]


def sha(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def policies(page: Page) -> list[str]:
    return [str(m["content"]) for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]


def test_a_frame_may_run_its_two_scripts_and_nothing_else(study: Path) -> None:
    page = Page(write(study, host_with(f"{HERE}:views")).read_text(encoding="utf-8"))
    assert len(page.scripts) == 1
    [policy] = policies(page)
    frames = inside(page)
    assert len(frames) == 7
    for attributes, frame in zip(page.all("iframe"), frames, strict=True):
        assert attributes["sandbox"] == "allow-scripts"
        assert attributes["title"]
        assert not {"src", "allow", "name"} & set(attributes)
        given_text, script = frame.scripts
        digests = [sha(script), sha(json.loads(given_text)["module"])]
        [own] = policies(frame)
        assert own == (
            "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
            f"script-src {' '.join(digests)}; base-uri 'none'; form-action 'none'"
        )
        assert set(digests) < set(policy.replace(";", "").split())
    assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")


def test_a_page_without_views_allows_what_it_did(study: Path) -> None:
    page = Page(write(study, host_with(f"{sections.__name__}:every_kind")).read_text(encoding="utf-8"))
    [policy] = policies(page)
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {sha(page.scripts[0])}; "
        "base-uri 'none'; form-action 'none'"
    )


def test_without_a_script_what_stands_in_is_there(study: Path) -> None:
    text = write(study, host_with(f"{HERE}:views")).read_text(encoding="utf-8")
    first = text[text.index('<div class="view"') : text.index("<figcaption", text.index('<div class="view"'))]
    assert first.startswith('<div class="view" style="--height:240px"><template><iframe ')
    assert '</iframe></template><div class="instead"><div class="key">' in first or "<svg" in first
    assert first.index("</template>") < first.index("<svg") < first.index("What stands in for it.")


SHAPE = Page(str(draw(view("plain", data={"x": "plain"}))))


@given(st.text(), st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_no_text_leaves_its_place(said: str, comment: str) -> None:
    safe = "".join(comment.replace("*/", "").splitlines()).replace("\x00", "")
    page = Page(str(draw(view(f"t{said}", f"/*{safe}*/{WRITES}", {f"n{said}": said, "x": np.array([f"a{said}"])}))))
    assert [name for name, _ in page.elements] == [name for name, _ in SHAPE.elements]
    [frame], [plain] = inside(page), inside(SHAPE)
    assert [name for name, _ in frame.elements] == [name for name, _ in plain.elements]
    told = json.loads(frame.scripts[0])
    assert told["data"]["plain"] == {f"n{said}": said}
    assert told["data"]["arrays"]["x"]["values"] == [f"a{said}"]
    assert f"/*{safe}*/{WRITES}" in told["module"]


def test_a_view_for_which_the_page_has_no_room_is_replaced_and_that_is_told(study: Path) -> None:
    path = write(study, host_with(f"{HERE}:heavy_views"))
    page = Page(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < LARGEST
    notes = [text for text in page.texts if text.startswith("The view is left out: it takes ")]
    assert notes[0].endswith(
        f"letters, and the page has room for {FINE.view:,} of it. In its place: What stands in for it."
    )
    assert notes[-1].endswith(f"room for {COARSE.view:,} of it. In its place: What stands in for it.")
    assert len(page.all("iframe")) + len(notes) == 13
    assert len(page.all("iframe")) > 2
    # What is not on the page need not be allowed.
    assert policies(page)[0].count("sha256-") == 3


def test_a_notebook_and_a_picture_have_what_stands_in_for_it(study: Path) -> None:
    host = host_with(f"{HERE}:views")
    drawn = [each for each in gausslens.draw(study, host=host) if each.section not in ("ladder", "heads")]
    assert len(drawn) == 7
    canvas = drawn[0].plot()
    axes = canvas.axes[0]
    assert axes.get_title(loc="left") == "given"
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), np.arange(1.0, 6.0))
    assert "What stands in for it." in [text.get_text() for text in axes.texts]
    assert drawn[0]._repr_png_().startswith(b"\x89PNG")


def test_sliders_of_what_stands_in_are_arguments_of_plot() -> None:
    from gausslens.drawings import Drawn
    from gausslens.figures import Dial

    labels = {"rows": [0, 1], "columns": "ab", "row_name": "r", "column_name": "c", "dials": (Dial("layer", [4, 5]),)}
    maps = np.arange(8.0).reshape(2, 2, 2)
    figure = Custom(
        title="v", **ABOUT, data={}, module=WRITES, fallback=Heatmap(title="m", **ABOUT, values=maps, **labels)
    )
    cells = Drawn(figure, "s").plot(layer=5).axes[0].collections[0].get_array()
    assert cells is not None
    np.testing.assert_array_equal(np.ravel(cells), maps[1].ravel())
