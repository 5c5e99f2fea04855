"""In a notebook: ``draw`` gives the figures of a store, ``load`` opens a model.

import gausslens

store = gausslens.open("store")
figures = gausslens.draw(store, label="stream")
figures[0]                      # shows itself
figures[0].plot().savefig("rank.pdf")
figures[3].plot(layer=2, head=1)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .contract.errors import InputError, did_you_mean
from .contract.model import LayerWeights, ModelInfo
from .contract.prompts import Part, Prompt, Tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from .figures import Figure
    from .plugins.host import Host
    from .report import Undrawn
    from .runs.open import Opened
    from .store.read_results import Results


@dataclass(frozen=True)
class Drawn:
    """A figure of the report: its data are ``.figure``, a notebook shows it, ``plot()`` draws it on matplotlib."""

    figure: Figure
    section: str

    def plot(self, axes: Axes | None = None, **places: Any) -> Canvas:
        """Draw it, on ``axes`` if they are given; sliders of the page are arguments here: ``plot(layer=3)``."""
        from .report.matplotlib_figures import canvas, paint

        if axes is None:
            return canvas([(self.figure, places)])
        paint(self.figure, axes, places)
        return axes.figure  # type: ignore[return-value]

    def _repr_png_(self) -> bytes:
        from .report.matplotlib_figures import png

        return png(self.plot())

    def __repr__(self) -> str:
        sources = ", ".join(dict.fromkeys(source.line for source in self.figure.sources))
        return f"<{type(self.figure).__name__} {self.figure.title!r} from {sources}>"


def draw(
    store: Results | str | os.PathLike[str],
    label: str | None = None,
    variant: str | None = None,
    section: str | None = None,
    host: Host | None = None,
) -> Sequence[Drawn]:
    """The figures that the plugins' report sections make of a store, in the order of the page.

    ``label`` and ``variant`` keep those made from a result, ``section`` those of one section. What could not be drawn
    is a warning; where it leaves nothing to draw, an error.
    """
    found, undrawn = drawn(store, label, variant, section, host)
    for each in undrawn:
        warnings.warn(str(each), stacklevel=2)
    return found


def drawn(
    store: Results | str | os.PathLike[str],
    label: str | None,
    variant: str | None,
    section: str | None,
    host: Host | None,
) -> tuple[Sequence[Drawn], Sequence[Undrawn]]:
    """The figures, and what could not be drawn; an error where that leaves none."""
    from .plugins import load
    from .report.sections import sections
    from .store.read_results import Results
    from .store.read_results import open as open_store

    results = store if isinstance(store, Results) else open_store(store)
    if label is not None and label not in results.labels:
        raise InputError(f"{results.path} has no finished result {label!r}{did_you_mean(label, results.labels)}")
    found = sections(results, load() if host is None else host)
    if section is not None:
        names = [each.name for each in found]
        if section not in names:
            raise InputError(f"{results.path} has no section {section!r}{did_you_mean(section, names)}")
        found = [each for each in found if each.name == section]
    figures = [Drawn(figure, each.name) for each in found for figure in each.made_from(label, variant)]
    undrawn = [failure for each in found for failure in each.undrawn]
    if undrawn and not figures:
        raise InputError("\n".join(map(str, undrawn)))
    return figures, undrawn


def load(
    path: Any,
    loader: str = "auto",
    dtype: str | None = None,
    device: str = "cpu",
    tokenizer: Any = None,
    mapping: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> Model:
    """Open a model from Python: a path as in a run file, or a live module (with its tokenizer).

    ``mapping`` says where a plain torch module has what (docs/models.md).

    ``load("path/to/model", loader="weights").weights(3).W_Q`` is [head, d_model, d_head] of layer 3.
    """
    from . import plugins, runfile
    from .perform import live_name
    from .runs.open import open_model

    live = None if isinstance(path, str | os.PathLike) else path
    if live is None and mapping is not None:
        raise InputError("mapping= says where a live module has what: give the module in place of the path")
    block = {"path": f"live:{live_name(live, mapping)}" if live is not None else os.fspath(path), **(mapping or {})}
    host = plugins.load()
    call = runfile.read_model(block | {"loader": loader, "dtype": dtype, "device": device, **parameters}, host)
    return Model(open_model(call, host, live, tokenizer))


class Model:
    """An open model in Python: its facts, its tensors, its tokens."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    @property
    def info(self) -> ModelInfo:
        """What config and headers tell."""
        return self._opened.model.info

    def weights(self, layer: int | None = None) -> LayerWeights:
        """The tensors of a layer by name; those outside the layers without a number."""
        return LayerWeights(self._opened.model, layer)

    def tokens(self, *texts: str) -> Tokens:
        """Texts as the tokens that the model would see."""
        return self._opened.model.tokenise([Prompt((Part(text),)) for text in texts])

    def __repr__(self) -> str:
        info = self.info
        shape = f"{info.n_layers} layers of {info.n_heads} heads, {info.n_parameters:,} parameters"
        return f"<{info.name}: {info.family}, {shape}>"
