"""The notebooks of examples/notebooks: without outputs as they are kept, executed without a fault, and true."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[2] / "examples" / "notebooks"
NAMES = ("explore", "own-number", "plugin", "study", "trajectory")
BAR = """
import time
from gausslens.progress import progress

with progress("seen <b>", 40) as bar:
    for part in range(40):
        bar.one(f"part {part}")
        time.sleep(0.05)
"""
BROKEN = """
with progress("broken", 3) as bar:
    bar.one("a part")
    raise ValueError("on purpose")
"""


def cells(name: str) -> list[Any]:
    return json.loads((HERE / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def executed(notebook: Any, place: Path, allow_errors: bool = False) -> Any:
    """The notebook, run by a kernel of its own in a place of its own."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="nbclient is not installed")
    where = {"metadata": {"path": str(place)}}
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=where, allow_errors=allow_errors
    )
    return client.execute()


def of_code(*sources: str) -> Any:
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def test_every_notebook_is_tested() -> None:
    assert sorted(path.stem for path in HERE.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_without_outputs_and_says_how_to_take_another_model(name: str) -> None:
    for cell in cells(name):
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    told = json.dumps(cells(name))
    assert any(path in told for path in ("path/to/checkpoint", "runs/step{step}"))


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_its_sentence_is_true(name: str, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    done = executed(nbformat.read(HERE / f"{name}.ipynb", as_version=4), tmp_path)
    code = [cell for cell in done.cells if cell.cell_type == "code"]
    said = [output for cell in code for output in cell.outputs if output.get("name") == "stderr"]
    assert said == []
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    [told] = code[-1].outputs
    after = done.cells[done.cells.index(code[-1]) + 1].source
    quoted = [line.removeprefix("> ") for line in after.splitlines() if line.startswith("> ")]
    assert " ".join(quoted) == told["text"].strip()


def test_progress_in_a_notebook_is_one_output_that_ends_with_a_line(tmp_path: Path) -> None:
    """In a kernel, without ipywidgets: what is stored is what a reader sees at the end, and no line more."""
    hidden = "import sys\nsys.modules['ipywidgets'] = None\n"
    done = executed(of_code(hidden + BAR, BROKEN), tmp_path, allow_errors=True)
    [seen] = done.cells[0].outputs
    assert re.fullmatch(r"seen <b>: 40 of 40 in \d+ s", seen["data"]["text/plain"])
    assert re.fullmatch(r"<small>seen &lt;b&gt;: 40 of 40 in \d+ s</small>", seen["data"]["text/html"])
    stopped, error = done.cells[1].outputs
    assert re.fullmatch(r"broken: 1 of 3 in \d+ s", stopped["data"]["text/plain"])
    assert error["evalue"] == "on purpose"


def test_progress_in_a_notebook_changes_while_it_goes_on(tmp_path: Path) -> None:
    watched = """
    from IPython.display import DisplayHandle
    told, update = [], DisplayHandle.update
    DisplayHandle.update = lambda self, data, **how: told.append(data["text/plain"]) or update(self, data, **how)
    """
    done = executed(of_code(textwrap.dedent(watched) + BAR, "print(*told, sep='\\n')"), tmp_path)
    [told] = done.cells[1].outputs
    lines = told["text"].splitlines()
    assert len(lines) > 2
    assert all(line.startswith("seen <b>: ") for line in lines)
    assert "% " in lines[0].replace(",", " ")
