"""What analyses give: each variable with dimensions, unit and meaning, as ``outputs.json`` beside their code lists it.

The file lies in the package that has the analysis, one for all of a plugin, and is made from results:
``gausslens schema NAME --outputs STORE``. Nothing of the plugin is imported to read it. The checks of
``gausslens.testing`` hold it against live results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from ..contract.descriptors import Analysis

FILE = "outputs.json"


@dataclass(frozen=True)
class Output:
    """A variable of a result. ``dims`` are those that it may have: more than one where parameters or models decide."""

    name: str
    dims: tuple[tuple[str, ...], ...]
    units: str
    meaning: str

    @property
    def shape(self) -> str:
        """Its dimensions in words: ``[layer, head]``, or ``[layer, head] or [layer]``."""
        return " or ".join(f"[{', '.join(dims)}]" for dims in self.dims)


def package_of(analysis: Analysis) -> str:
    """The package that has the analysis, and so its ``outputs.json``: ``gausslens_loud``."""
    return analysis.analysis.split(":")[0].split(".")[0]


def outputs_of(analysis: Analysis) -> tuple[Output, ...] | None:
    """What an analysis is listed to give; None where nothing lists it. A list that cannot be read is an error."""
    path = _file(package_of(analysis))
    if path is None:
        return None
    try:
        listed = json.loads(path.read_text(encoding="utf-8")).get(analysis.name)
        return None if listed is None else tuple(_output(name, told) for name, told in listed.items())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}: {error}): make it again by 'gausslens schema NAME "
            "--outputs STORE'"
        ) from error


def outputs_in(results: Iterable[tuple[str, xr.Dataset]]) -> dict[str, tuple[Output, ...]]:
    """What results (pairs of an analysis and what it gave) hold, by analysis, in the order in which each gives it."""
    found: dict[str, dict[str, Output]] = {}
    for analysis, dataset in results:
        mine = found.setdefault(analysis, {})
        for key, variable in dataset.data_vars.items():
            name, dims = str(key), tuple(map(str, variable.dims))
            told = {word: str(variable.attrs.get(word, "")) for word in ("units", "long_name")}
            before = mine.get(name)
            known = () if before is None else before.dims
            units, meaning = (told["units"], told["long_name"]) if before is None else (before.units, before.meaning)
            mine[name] = Output(name, known if dims in known else tuple(sorted((*known, dims))), units, meaning)
    return {analysis: tuple(mine.values()) for analysis, mine in sorted(found.items())}


def as_json(found: Mapping[str, Iterable[Output]]) -> str:
    """The text of an ``outputs.json``: a line for each variable."""
    tables = []
    for analysis, outputs in found.items():
        lines = [f"    {json.dumps(each.name)}: {_line(each)}" for each in outputs]
        tables.append(f"  {json.dumps(analysis)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(tables) + "\n}\n"


def _line(output: Output) -> str:
    told = {key: value for key, value in asdict(output).items() if key != "name"}
    return json.dumps(told, ensure_ascii=False)


def _output(name: str, told: Mapping[str, Any]) -> Output:
    dims = tuple(tuple(map(str, each)) for each in told["dims"])
    return Output(str(name), dims, str(told["units"]), str(told["meaning"]))


def _file(package: str) -> Path | None:
    """The list of a package; None where the package has none, or is none."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    places = [] if spec is None or spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    return next((path for place in places if (path := Path(place) / FILE).is_file()), None)
