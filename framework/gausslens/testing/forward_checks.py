"""A check of analyses of shape ``forward``: those that run the model themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..contract.descriptors import Analysis
from ..contract.engines import NarrowedRunner, no_texts
from ..contract.parameters import Parameters
from ..contract.prompts import Part, Prompt
from ..contract.reference import resolve
from ..contract.twin import Twin
from ..runs.outcome import labelled
from .result_checks import check_result, check_same
from .stream_checks import TEXTS, context_of
from .tiny_engine import TinyEngine
from .tiny_model import TinyModel, of_kinds

if TYPE_CHECKING:
    import xarray as xr

    from ..contract.analyses import StepRef


def check_forward(
    analysis: Analysis,
    parameters: Parameters | None = None,
    *,
    model: TinyModel | None = None,
    texts: Sequence[str] = TEXTS,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    inputs: Mapping[StepRef, xr.Dataset] | None = None,
) -> xr.Dataset:
    """Run a forward analysis on the tiny model and return its result, with these layers and heads in view (None: all),

    after checking that

    - without ``model``, it runs on each of ``TinyModel.kinds()``, or refuses a kind by a GausslensError;
    - a new instance gives the same bits;
    - the result is well formed (``check_result``).

    ``inputs`` are the results that it finds in ``context.inputs``.
    """
    chosen = parameters or resolve(analysis.parameters)()

    def checked(held: TinyModel) -> xr.Dataset:
        tokens = held.tokenise([Prompt((Part(text),)) for text in texts])
        info, twin = held.info.narrowed(layers, heads), Twin(held)

        def run() -> xr.Dataset:
            made = resolve(analysis.analysis)(chosen, context_of(analysis, held, inputs, tokens, view=info))
            runner = NarrowedRunner(TinyEngine().runner(twin), twin, info, no_texts(analysis))
            return labelled(made.run(runner, tokens), info)

        result = run()
        check_same(run(), result, "a second run differs; draw random numbers from context.generator() alone")
        return check_result(result)

    return of_kinds(model, checked)
