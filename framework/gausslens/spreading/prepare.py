"""All that comes before computing: plugins, run file, models, plan; in this process, or again in another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError
from ..guard import wait_quietly
from ..runs.open import Models
from ..runs.plan import make_plan

if TYPE_CHECKING:
    from ..plugins import Host
    from ..runs.steps import Plan
    from ..runs.study import Study

# A run file: a path, or the same as plain data.
RunFile = str | os.PathLike[str] | Mapping[str, Any]


def prepare(
    source: RunFile,
    sets: Sequence[str] = (),
    without: Iterable[str] = (),
    model: Any = None,
    tokenizer: Any = None,
    host: Host | None = None,
    mapping: Mapping[str, Any] | None = None,
) -> tuple[Host, Study, Models, Plan]:
    """Everything before computing: plugins, run file, models, plan."""
    from .. import plugins, runfile

    if mapping is not None and (model is None or not isinstance(mapping, Mapping)):
        raise InputError("mapping= is a dict that says where the live module has what, which is given as model=")

    wait_quietly()
    host = host or plugins.load(without=without)
    live = None if model is None else live_name(model, mapping)
    study = runfile.read(source, host, sets, live, mapping)
    models = Models(study, host, model, tokenizer)
    try:
        return host, study, models, make_plan(study, models)
    except BaseException:
        models.close()
        raise


def live_name(model: Any, mapping: Mapping[str, Any] | None) -> str:
    """What stands behind ``live:`` in the path of a live model."""
    return f"mapped:{type(model).__name__}" if mapping is not None else type(model).__name__
