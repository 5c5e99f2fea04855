"""The steps of a plan, each with its key and what it reads; the plan as a whole, and its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..contract.analyses import Context, NoBulk, StepRef
from ..contract.digests_and_seeds import derive, digest
from ..contract.model import NO_MODEL
from .plan_comparisons import rung_of
from .provenance import distributions, now

if TYPE_CHECKING:
    from ..contract.model import ModelInfo
    from ..contract.prompts import Tokens
    from .inputs import OfEdits
    from .open import Opened
    from .shuffled_prompts import Reads
    from .study import Point, Study, Use


@dataclass(frozen=True)
class Step:
    """One analysis on one draw of one point of one variant, or one comparison with a null.

    ``inputs`` are the results it reads (derived steps and comparisons, whose ``against`` names the null variant; the
    first input is then the result compared). A step that looks at the model may read results besides: ``given`` are
    those of its analysis, ``of_edits`` those of each edit of its twin. ``groups`` says how many groups of prompts are
    left out in turn for errors. ``opened`` is its model. ``as_sets``: heads are compared by rank, for those of another
    training have no counterpart.
    """

    ref: StepRef
    key: str
    ingredients: Mapping[str, Any]
    use: Use
    point: Point
    reads: Reads | None = None
    inputs: tuple[StepRef, ...] = ()
    against: str | None = None
    groups: int | None = None
    opened: Opened | None = None
    as_sets: bool = False
    given: tuple[StepRef, ...] = ()
    of_edits: OfEdits = ()

    @property
    def waits_for(self) -> tuple[StepRef, ...]:
        """The results that must be there before it looks at the model."""
        return (*self.given, *(ref for refs in self.of_edits for ref in refs))

    @property
    def info(self) -> ModelInfo:
        """The facts of its model; of a derived step over the whole run, those of the model of the run."""
        return self.opened.model.info if self.opened is not None else NO_MODEL

    @property
    def tokens(self) -> Tokens | None:
        """The prompts as tokens, where it reads any; shuffled ones are made now, the same each time."""
        return self.reads.tokens if self.reads is not None else None

    @property
    def planned(self) -> Context:
        """What its analysis is given where it is asked what it wants, and nothing is computed."""
        view = self.info.narrowed(self.use.layers, self.use.heads)
        bulk = NoBulk() if self.use.analysis.descriptor.bulk else None
        return Context(view, 0, self.tokens, bulk).at(self.ref, self.use.analysis.descriptor.knows)

    @property
    def folder(self) -> str:
        """The first name of the analysis, under which the part is filed."""
        return self.use.analysis.descriptor.first_name


@dataclass(frozen=True)
class Plan:
    """All steps, inputs before what reads them; ``notes`` say what was left out and why."""

    study: Study
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def models(self) -> tuple[Opened, ...]:
        """The models that steps look at, in order."""
        return tuple(dict.fromkeys(s.opened for s in self.steps if s.opened is not None and not s.inputs))

    @property
    def digest(self) -> str:
        """What the manifest is named by: the run file as resolved, and the key of each step."""
        steps = [[s.ref.variant, s.ref.label, s.ref.draw, dict(s.ref.sweep), s.key] for s in self.steps]
        return digest([self.study.resolved, steps])

    @cached_property
    def by_ref(self) -> Mapping[StepRef, Step]:
        """The steps by their references."""
        return {s.ref: s for s in self.steps}


def manifest_of(plan: Plan) -> dict[str, Any]:
    """The manifest of a plan: the resolved run file, and each step with its key."""
    return {
        "format": "gausslens-run",
        "version": 1,
        "run": plan.study.name,
        "plan": plan.digest,
        "created": now(),
        "resolved": dict(plan.study.resolved),
        "distributions": dict(distributions()),
        "nulls": [{"name": v.name, "rung": rung_of(v)} for v in plan.study.variants if v.name in plan.study.against],
        "steps": [
            {
                "variant": step.ref.variant,
                "draw": step.ref.draw,
                "sweep": dict(step.ref.sweep),
                "label": step.ref.label,
                "analysis": step.folder,
                "key": step.key,
                "ingredients": dict(step.ingredients),
                "against": step.against,
            }
            for step in plan.steps
        ],
    }


def step_seed(step: Step, run_seed: int) -> int:
    """The seed of an analysis: by run seed, analysis and parameters; the same for all variants and draws.

    Parameters that only name what is read are in no key, and so in no seed of a step that looks at the model. Those of
    derived steps are in their seeds as they were from the first on: what the stores hold of them was drawn so, and the
    host cannot raise the version of another's analysis. HOOKS.md says that one which draws names none.
    """
    descriptor = step.use.analysis.descriptor
    told = step.use.parameters.keyed(without=() if descriptor.shape == "derived" else descriptor.names)
    return derive(run_seed, descriptor.first_name, told)
