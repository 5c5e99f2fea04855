"""Which comparisons a plan has: each result beside the same on the draws of each null, as far as they fit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..contract.analyses import StepRef
from ..contract.reference import resolve
from ..guard import Guard
from . import keys
from .inputs import PlanError
from .study import WHOLE_RUN, PromptCall

if TYPE_CHECKING:
    from ..contract.twin import EditCall
    from .steps import Step
    from .study import Study, Variant

# What models that are compared have alike, unless an analysis says that its numbers mean the same at any size.
SIZES = ("n_layers", "n_heads", "n_kv_heads", "d_model", "d_head", "d_mlp")
FEWEST = 2


def comparisons(
    study: Study, steps: Sequence[Step], left_out: Collection[StepRef]
) -> tuple[list[Step], tuple[str, ...]]:
    """Comparisons of every variant that is no null with each null, and what is to be told of those that cannot be."""
    variants = {v.name: v for v in study.variants}
    made: list[Step] = []
    lost: dict[tuple[str, str, str], dict[str, None]] = {}
    alone: dict[str, list[str]] = {}
    for null in study.against:
        for use in study.uses:
            draws = [s for s in steps if (s.ref.variant, s.ref.label) == (null, use.label)]
            apart = (*study.against, WHOLE_RUN)
            others = [s for s in steps if s.ref.label == use.label and s.ref.variant not in apart]
            known = any((r.variant, r.label) == (null, use.label) for r in left_out)
            if others and not draws and not known:
                alone.setdefault(f"{use.mark}: {use.label}", []).append(null)
            for step in others if draws else ():
                kept, reasons = _fitting(step, draws, variants[null])
                for reason in reasons:
                    lost.setdefault((step.ref.variant, null, reason), {})[use.label] = None
                if kept:
                    made.append(_compared(step, variants[null], kept))
    notes = [f"{', '.join(labels)} of {of} beside {null}: {reason}" for (of, null, reason), labels in lost.items()]
    reads = {v.name: v.prompts for v in study.variants}
    plain = ", ".join(null for null in study.against if reads[null] is None)
    for name, prompts in reads.items():
        if isinstance(prompts, PromptCall) and name not in study.against and plain:
            notes.append(f"{name} reads prompts of its own, {plain} the run's: it differs from them by both")
    for label, nulls in alone.items():
        notes.append(f"{label} is not computed on {', '.join(nulls)}: it has no null columns")
    return made, tuple(notes)


def rung_of(variant: Variant) -> str:
    """What a null is called on the ladder: what its one edit claims to keep of the whole model, else its own name.

    Other trainings, unedited, are `seeds`. One whose own name is a word of the ladder, which its edits do not claim, is
    called variant-spectrum and so on.
    """
    from ..maths.ladder import ARRANGEMENT, SEEDS, UNDECIDED, WORDS

    calls, keeps = variant.points[0].edits, None
    whole = len(calls) == 1 and calls[0].layers is None and calls[0].heads is None and variant.prompts is None
    if variant.draw_values and not calls and variant.prompts is None:
        return SEEDS
    if whole and not variant.draw_values:
        keeps = calls[0].edit.descriptor.keeps
        if keeps is not None and ":" in keeps:
            keeps = _kept(calls[0], keeps)
    if keeps is not None and keeps not in (ARRANGEMENT, UNDECIDED):
        return str(keeps)
    return f"variant-{variant.name}" if variant.name in WORDS else variant.name


def _kept(call: EditCall, keeps: str) -> str | None:
    """What an edit with these parameters claims to keep."""
    try:
        found: str | None = Guard.of(call.edit.owner).call(lambda: resolve(keeps)(call.parameters))
    except Exception as error:
        name = call.edit.descriptor.name
        raise PlanError(f"{call.mark}: edit {name} cannot say what it keeps: {error!r}") from error
    return found


def words(values: Sequence[tuple[str, object]]) -> str:
    """Values of a sweep or a draw as a person writes them: step 100, seed 3."""
    return ", ".join(f"{name} {value}" for name, value in values)


def _fitting(step: Step, draws: Sequence[Step], null: Variant) -> tuple[list[Step], list[str]]:
    """The draws of a null that a result can be compared with, and why others cannot be.

    Where the null is swept over models, it is those at the values of the result itself.
    """
    alike = [d for d in draws if _is_difference(d) == _is_difference(step)]
    if alike and _is_difference(step):  # of equal norm, say, is a null to that difference alone
        alike = [d for d in alike if d.opened is step.opened]
        if not alike:
            return [], ["not compared, it is of another difference"]
    here = [d for d in alike if set(d.ref.sweep) <= set(step.ref.sweep)]
    if alike and not here:
        at = f"at {words(step.ref.sweep)} it has no draws" if step.ref.sweep else "it has draws at swept values alone"
        return [], [f"not compared, {at}"]
    misfits = {d.ref: reason for d in here if (reason := _misfit(step, d)) is not None}
    kept = [d for d in here if d.ref not in misfits]
    if here and len(kept) < FEWEST:
        return [], [f"not compared, {next(iter(misfits.values()), 'its draws are of the same weights')}"]
    reasons = []
    for ref, reason in misfits.items():
        assert ref.draw is not None
        which = words(null.draw_values[ref.draw]) if null.draw_values else f"draw {ref.draw}"
        reasons.append(f"{which} is left out, {reason}")
    return kept, reasons


def _is_difference(step: Step) -> bool:
    return step.opened is not None and step.opened.is_difference


def _misfit(step: Step, draw: Step) -> str | None:
    """Why a draw is of a model that cannot be compared; None where it can."""
    if step.key == draw.key:
        return "it is what is compared: the same weights"
    mine, theirs = step.reads, draw.reads
    if (
        mine is not None
        and theirs is not None
        and mine.source == theirs.source
        and mine.plain_digest != theirs.plain_digest
    ):
        return "the same text is other tokens there"
    if step.opened is draw.opened or step.use.analysis.descriptor.any_size:
        return None
    for size in SIZES:
        mine, theirs = getattr(step.info, size), getattr(draw.info, size)
        if mine != theirs:
            return f"{size} is {theirs} there and {mine} here"
    return None


def _compared(step: Step, null: Variant, draws: Sequence[Step]) -> Step:
    """One comparison. Heads of another training have no counterpart: they are compared as sets."""
    as_sets = bool(null.draw_values)
    exchangeable = step.use.analysis.descriptor.exchangeable
    made = keys.of_comparison(step.key, [d.key for d in draws], exchangeable, as_sets)
    label = f"{step.ref.label}.against.{null.name}"
    ref = StepRef(step.ref.variant, label, step.ref.analysis, step.ref.draw, step.ref.sweep)
    inputs = (step.ref, *(d.ref for d in draws))
    return replace(
        step,
        ref=ref,
        key=keys.key_of(made),
        ingredients=made,
        reads=None,
        groups=None,
        inputs=inputs,
        given=(),
        of_edits=(),
        against=null.name,
        as_sets=as_sets,
    )
