"""A check of analyses of shape ``forward``: those that run the model themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..contract.analyses import Context
from ..contract.descriptors import Analysis
from ..contract.engines import NarrowedRunner, ReadingRunner, no_texts
from ..contract.parameters import Parameters
from ..contract.prompts import Part, Prompt
from ..contract.reference import resolve
from ..contract.twin import Twin
from ..runs.outcome import labelled
from .result_checks import check_result, check_same
from .stream_checks import TEXTS
from .tiny_engine import TinyEngine
from .tiny_model import TinyModel

if TYPE_CHECKING:
    import xarray as xr


def check_forward(
    analysis: Analysis,
    parameters: Parameters | None = None,
    *,
    model: TinyModel | None = None,
    texts: Sequence[str] = TEXTS,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> xr.Dataset:
    """Run a forward analysis on the tiny model and return its result, with these layers and heads in view (None: all),

    after checking that

    - a new instance gives the same bits;
    - the result is well formed (``check_result``).
    """
    held = model or TinyModel()
    chosen = parameters or resolve(analysis.parameters)()
    tokens = held.tokenise([Prompt((Part(text),)) for text in texts])

    def run() -> xr.Dataset:
        info, twin = held.info.narrowed(layers, heads), Twin(held)
        made = resolve(analysis.analysis)(chosen, Context(info, 0, tokens))
        reading = ReadingRunner(TinyEngine().runner(twin), held, no_texts(analysis))
        return labelled(made.run(NarrowedRunner(reading, twin, info), tokens), info)

    result = run()
    check_same(run(), result, "a second run differs; draw random numbers from context.generator() alone")
    return check_result(result)
