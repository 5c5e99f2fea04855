"""The plan: every step that a study asks for, with its key, before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..contract.analyses import Context, DerivedAnalysis, StepRef
from ..contract.digests_and_seeds import derive, digest
from ..contract.errors import GausslensError, InputError
from ..contract.model import NO_MODEL
from ..contract.prompts import SourceContext
from ..contract.reference import resolve
from ..contract.sites import site
from ..contract.twin import check_edit
from . import keys
from .errors import no_errors
from .passes import check_request
from .provenance import distributions, now
from .shuffled_prompts import Reads, shuffle_seed
from .study import PromptCall, Shuffle

if TYPE_CHECKING:
    from ..contract.errors import Mark
    from ..contract.model import ModelInfo
    from ..contract.prompts import Tokens
    from .open import Opened
    from .study import Point, Study, Use, Variant

# The variant under which a derived analysis of scope "run" is stored.
WHOLE_RUN = "all"


class PlanError(InputError):
    """A run file is well formed but asks for what cannot be."""


@dataclass(frozen=True)
class Step:
    """One analysis on one draw of one point of one variant, or one comparison with a null.

    ``inputs`` are the results it reads (derived steps and comparisons, whose ``against`` names the null variant; the
    first input is then the result compared). ``groups`` says how many groups of prompts are left out in turn for
    errors.
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

    @property
    def tokens(self) -> Tokens | None:
        """The prompts as tokens, where it reads any; shuffled ones are made now, the same each time."""
        return self.reads.tokens if self.reads is not None else None

    @property
    def folder(self) -> str:
        """The name of the analysis, under which the part is filed."""
        return self.ref.analysis


@dataclass(frozen=True)
class Plan:
    """All steps, inputs before what reads them; ``notes`` say what was left out and why."""

    study: Study
    info: ModelInfo | None
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    prompts: Mapping[str, Tokens] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """What the manifest is named by: the run file as resolved, and the key of each step."""
        steps = [[s.ref.variant, s.ref.label, s.ref.draw, dict(s.ref.sweep), s.key] for s in self.steps]
        return digest([self.study.resolved, steps])

    @cached_property
    def by_ref(self) -> Mapping[StepRef, Step]:
        """The steps by their references."""
        return {s.ref: s for s in self.steps}


def make_plan(study: Study, opened: Opened | None) -> Plan:
    """Plan a study on an open model; ``opened`` is None where every analysis is derived from nothing."""
    planner = _Planner(study, opened)
    planner.check_edits()
    planner.plan_measured()
    planner.plan_derived()
    planner.plan_comparisons()
    info = opened.model.info if opened else None
    return Plan(study, info, tuple(planner.steps.values()), tuple(planner.notes), planner.prompts)


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
                "analysis": step.ref.analysis,
                "key": step.key,
                "ingredients": dict(step.ingredients),
                "against": step.against,
            }
            for step in plan.steps
        ],
    }


def rung_of(variant: Variant) -> str:
    """What a null is called on the ladder: what its one edit claims to keep of the whole model, else its own name.

    One whose own name is a word of the ladder, which its edits do not claim, is called variant-spectrum and so on.
    """
    from ..maths.ladder import ARRANGEMENT, UNDECIDED, WORDS

    calls, keeps = variant.points[0].edits, None
    whole = len(calls) == 1 and calls[0].layers is None and calls[0].heads is None and variant.prompts is None
    if whole:
        keeps = calls[0].edit.descriptor.keeps
        if keeps is not None and ":" in keeps:
            keeps = resolve(keeps)(calls[0].parameters)
    if keeps is not None and keeps not in (ARRANGEMENT, UNDECIDED):
        return str(keeps)
    return f"variant-{variant.name}" if variant.name in WORDS else variant.name


def step_seed(step: Step, run_seed: int) -> int:
    """The seed of an analysis: by run seed, analysis and parameters; the same for all variants and draws."""
    return derive(run_seed, step.use.analysis.descriptor.name, step.use.parameters.keyed())


class _Planner:
    def __init__(self, study: Study, opened: Opened | None) -> None:
        self.study = study
        self.opened = opened
        self.variants = {v.name: v for v in study.variants}
        self.steps: dict[StepRef, Step] = {}
        self.prompts: dict[str, Tokens] = {}
        self.reads: dict[str, Reads] = {}
        self.left_out: set[StepRef] = set()
        info = opened.model.info if opened else NO_MODEL
        self.notes: list[str] = [f"{info.name}: {note}" for note in info.facts.get("notes", ())]
        self.requests: set[str] = set()

    def check_edits(self) -> None:
        """Look at every edit before anything is computed."""
        calls = {id(call): call for v in self.study.variants for p in v.points for call in p.edits}
        for call in calls.values() if self.opened else ():
            assert self.opened is not None
            try:
                check_edit(call, self.opened.model)
            except GausslensError as error:
                raise PlanError(f"{call.mark}: {error}") from error

    def plan_measured(self) -> None:
        """Steps that look at the model: stream, weights and forward."""
        for use in self.study.uses:
            if use.analysis.descriptor.shape == "derived":
                continue
            opened = self._needs_model(use)
            self._check_view(use, opened.model.info)
            for name in use.variants:
                for point, draw in _twins(self.variants[name]):
                    if _draws_in_vain(use, self.variants[name], point):
                        ref = StepRef(name, use.label, use.analysis.descriptor.name, draw, point.values)
                        self._leave_out(use, ref, "does not read prompts")
                    else:
                        self._measure(use, opened, self.variants[name], point, draw)

    def plan_derived(self) -> None:
        """Derived analyses, in the order of the run file: each may read those before it."""
        for use in self.study.uses:
            if use.analysis.descriptor.shape != "derived":
                continue
            if use.analysis.descriptor.scope == "run":
                place = StepRef(WHOLE_RUN, use.label, use.analysis.descriptor.name)
                self._derive(use, place, tuple(self.steps), _untouched(self.study), tuple(self.left_out))
                continue
            for name in use.variants:
                for point, draw in _twins(self.variants[name]):
                    place = StepRef(name, use.label, use.analysis.descriptor.name, draw, point.values)
                    same, without = (
                        tuple(r for r in refs if (r.variant, r.draw, r.sweep) == (name, draw, point.values))
                        for refs in (self.steps, self.left_out)
                    )
                    self._derive(use, place, same, point, without)

    def plan_comparisons(self) -> None:
        """Comparisons of every variant that is no null with each null."""
        finished = list(self.steps.values())
        alone: dict[str, list[str]] = {}
        for null in self.study.against:
            for use in self.study.uses:
                draws = [s for s in finished if (s.ref.variant, s.ref.label) == (null, use.label)]
                apart = (*self.study.against, WHOLE_RUN)
                others = [s for s in finished if s.ref.label == use.label and s.ref.variant not in apart]
                known = any((r.variant, r.label) == (null, use.label) for r in self.left_out)
                if others and not draws and not known:
                    alone.setdefault(f"{use.mark}: {use.label}", []).append(null)
                if others and draws:
                    for step in others:
                        self._compare(step, null, draws)
        reads = {v.name: v.prompts for v in self.study.variants}
        plain = ", ".join(null for null in self.study.against if reads[null] is None)
        for name, prompts in reads.items():
            if isinstance(prompts, PromptCall) and name not in self.study.against and plain:
                self.notes.append(f"{name} reads prompts of its own, {plain} the run's: it differs from them by both")
        for label, nulls in alone.items():
            self.notes.append(f"{label} is not computed on {', '.join(nulls)}: it has no null columns")

    def _needs_model(self, use: Use) -> Opened:
        if self.opened is None:
            raise PlanError(f"{use.mark}: {use.label} needs a model: add `model: {{path: ...}}` to the run file")
        return self.opened

    def _check_view(self, use: Use, info: ModelInfo) -> None:
        try:
            info.narrowed(use.layers, use.heads)
        except GausslensError as error:
            raise PlanError(f"{use.mark}: {use.label}: {error}") from error

    def _check_request(self, use: Use, opened: Opened, reads: Reads) -> None:
        """Ask a stream analysis once what it wants, so that a wrong site is told before anything runs."""
        assert opened.running is not None
        if use.label in self.requests:
            return
        self.requests.add(use.label)
        context = Context(opened.model.info.narrowed(use.layers, use.heads), 0, reads.tokens)
        try:
            analysis = resolve(use.analysis.descriptor.analysis)(use.parameters, context)
            check_request(analysis, opened.running, opened.model, context.model)
            if any(site(s).of_keys for s in analysis.request().sites):
                _refuse_crossed(use, opened)
        except PlanError:
            raise
        except GausslensError as error:
            raise PlanError(f"{use.mark}: {use.label}: {error}") from error
        except Exception:
            return  # a defect of the analysis: its steps fail, and say so, when the run comes to them

    def _leave_out(self, use: Use, ref: StepRef, why: str) -> None:
        self.left_out.add(ref)
        note = f"{use.mark}: {use.label} is left out on {ref.variant}, whose draws differ in prompts alone: it {why}"
        if note not in self.notes:
            self.notes.append(note)

    def _measure(self, use: Use, opened: Opened, variant: Variant, point: Point, draw: int | None) -> None:
        shape = use.analysis.descriptor.shape
        ref = StepRef(variant.name, use.label, use.analysis.descriptor.name, draw, point.values)
        seed = self.study.seed
        made: dict[str, Any] = {"host": keys.HOST_VERSION}
        made["model"] = keys.of_model(opened.call, opened.model.info)
        made["twin"] = keys.of_edits(point, seed, draw)
        made["analysis"] = keys.of_use(use, seed)
        reads = groups = None
        if shape in ("stream", "forward"):
            if opened.engine is None:
                raise PlanError(
                    f"{use.mark}: {use.label} runs the model, and no capture engine serves the loader "
                    f"{opened.call.loader.descriptor.name!r}; use another loader, or leave this analysis out"
                )
            reads = self._reads(use, opened, variant, draw)
            if shape == "stream":
                self._check_request(use, opened, reads)
                groups = self._groups(use, reads)
            else:
                _refuse_crossed(use, opened)
            made["engine"] = {"name": opened.engine.descriptor.name, "version": opened.engine.descriptor.version}
            made["tokens"] = reads.digest
            if use.analysis.descriptor.texts:
                made["text"] = keys.of_text(reads, opened.model)
            if groups is not None:
                made["errors"] = keys.of_errors(groups)
        self.steps[ref] = Step(ref, keys.key_of(made), made, use, point, reads, groups=groups)

    def _reads(self, use: Use, opened: Opened, variant: Variant, draw: int | None) -> Reads:
        """An analysis' own prompts, else the variant's, else the run's; shuffled where the variant says so."""
        whole = variant.prompts if isinstance(variant.prompts, PromptCall) and not use.own else None
        call = whole or use.prompts or self.study.prompts
        if call is None:
            raise PlanError(f"{use.mark}: {use.label} needs prompts: add `prompts: {{source: text, text: [...]}}`")
        what = [call.source.descriptor.name, call.parameters.canonical()]
        name = digest(what)
        if name not in self.prompts:
            self.prompts[name] = _tokenised(call, opened, self.study)
        if not isinstance(variant.prompts, Shuffle):
            return self.reads.setdefault(name, Reads(self.prompts[name]))
        shuffled = digest([*what, variant.prompts.canonical(), draw])
        if shuffled not in self.reads:
            self.reads[shuffled] = self._shuffled(variant, variant.prompts, self.prompts[name], draw, opened)
        return self.reads[shuffled]

    def _groups(self, use: Use, reads: Reads) -> int | None:
        """How many groups of prompts are left out in turn; None where there are no errors."""
        if use.errors is None:
            return None
        reason = no_errors(use.analysis.descriptor, reads.tokens, use.errors.groups)
        if reason is None:
            return use.errors.groups
        if use.errors.asked == "entry":
            raise PlanError(f"{use.mark}: {use.label} has no errors over prompts: {reason}")
        of_all = use.errors.asked == "nowhere"
        note = f"{'streamed numbers have' if of_all else f'{use.label} has'} no errors over prompts: {reason}"
        # Where nobody asked it is told of claims alone, and not of arrays that are captured.
        told = use.errors.asked == "run" or (self.study.against and not use.analysis.descriptor.bulk)
        if told and note not in self.notes:
            self.notes.append(note)
        return None

    def _shuffled(self, variant: Variant, shuffle: Shuffle, plain: Tokens, draw: int | None, opened: Opened) -> Reads:
        of_draw = "" if draw is None else f", draw {draw}"
        try:
            reads = Reads(plain, shuffle, shuffle_seed(shuffle, self.study.seed, draw))
        except InputError as error:
            raise PlanError(f"{shuffle.mark}: {error}") from error
        if reads.digest == plain.digest():
            raise PlanError(
                f"{shuffle.mark}: shuffled, the prompts of {variant.name}{of_draw} are as before: they are too short, "
                f"or too much in them is equal; take longer ones"
            )
        if any(reads.digest == other.digest for other in self.reads.values()):
            self.notes.append(f"{shuffle.mark}: {variant.name}{of_draw} equals another draw: take longer prompts")
        _check_lengths(shuffle.mark, reads.lengths, opened)
        return reads

    def _derive(
        self, use: Use, place: StepRef, candidates: Sequence[StepRef], point: Point, left_out: Sequence[StepRef]
    ) -> None:
        info = self.opened.model.info if self.opened else NO_MODEL
        seed = derive(self.study.seed, use.analysis.descriptor.name, use.parameters.keyed())
        context = Context(info, seed)
        try:
            analysis: DerivedAnalysis = resolve(use.analysis.descriptor.analysis)(use.parameters, context)
            inputs = tuple(analysis.inputs(candidates))
        except InputError as error:
            if left_out and _could_read(analysis, (*candidates, *left_out)):
                self._leave_out(use, place, "reads what is left out there")
                return
            raise PlanError(f"{use.mark}: {use.label}: {error}") from error
        if not inputs and left_out and _could_read(analysis, (*candidates, *left_out)):
            self._leave_out(use, place, "reads what is left out there")
            return
        unknown = [i for i in inputs if i not in self.steps]
        if unknown or not inputs:
            known = ", ".join(sorted({c.label for c in candidates})) or "none"
            what = f"asks for {unknown[0]}, which is not planned" if unknown else "finds none of the results it reads"
            raise PlanError(f"{use.mark}: {use.label} {what}; the labels planned before it: {known}")
        made = keys.of_results(use, self.study.seed, [self.steps[i].key for i in inputs])
        self.steps[place] = Step(place, keys.key_of(made), made, use, point, inputs=inputs)

    def _compare(self, step: Step, null: str, draws: Sequence[Step]) -> None:
        exchangeable = step.use.analysis.descriptor.exchangeable
        made = keys.of_comparison(step.key, [d.key for d in draws], exchangeable)
        label = f"{step.ref.label}.against.{null}"
        ref = StepRef(step.ref.variant, label, step.ref.analysis, step.ref.draw, step.ref.sweep)
        inputs = (step.ref, *(d.ref for d in draws))
        self.steps[ref] = Step(ref, keys.key_of(made), made, step.use, step.point, inputs=inputs, against=null)


def _refuse_crossed(use: Use, opened: Opened) -> None:
    """What does not say that it knows keys of another stack would take them for tokens of its own."""
    if opened.model.info.facts.crossed and not use.analysis.descriptor.crossed:
        raise PlanError(
            f"{use.mark}: {use.label} does not know attention from one stack to another, whose keys are tokens of the "
            f"source: take `stack: encoder` or `stack: decoder`, or leave {use.analysis.descriptor.name} out"
        )


def _twins(variant: Variant) -> list[tuple[Point, int | None]]:
    draws: list[int | None] = [None] if variant.draws is None else list(range(variant.draws))
    return [(point, draw) for draw in draws for point in variant.points]


def _draws_in_vain(use: Use, variant: Variant, point: Point) -> bool:
    """Whether all draws of a variant are equal to this analysis: only their prompts differ, and it reads none."""
    return variant.draws is not None and not keys.is_random(point) and use.analysis.descriptor.shape == "weights"


def _could_read(analysis: DerivedAnalysis, candidates: Sequence[StepRef]) -> bool:
    try:
        return bool(analysis.inputs(candidates))
    except InputError:
        return False


def _untouched(study: Study) -> Point:
    from .study import Point

    return next((p for v in study.variants for p in v.points if not p.edits), Point((), ()))


def _tokenised(call: PromptCall, opened: Opened, study: Study) -> Tokens:
    name = call.source.descriptor.name
    seed = derive(study.seed, "prompts", name, call.parameters.canonical())
    info = opened.model.info
    facts = {**info.facts, "vocabulary": info.vocabulary, "max_positions": info.max_positions}
    prompts = resolve(call.source.descriptor.prompts)(call.parameters, SourceContext(study.directory, seed, facts))
    if not prompts:
        raise PlanError(f"{call.mark}: the prompt source {name} gave no prompts")
    tokens = opened.model.tokenise(prompts)
    empty = [i for i, n in enumerate(tokens.lengths) if n == 0]
    if empty:
        raise PlanError(f"{call.mark}: prompt {empty[0]} has no tokens")
    _check_lengths(call.mark, tokens.lengths, opened)
    _check_ids(call.mark, tokens, opened)
    return tokens


def _check_lengths(mark: Mark, lengths: Sequence[int], opened: Opened) -> None:
    most = opened.model.info.max_positions
    if most is not None and max(lengths) > most:
        longest = max(range(len(lengths)), key=lambda i: lengths[i])
        reason = opened.model.info.facts.get("longest")
        why = f" ({reason})" if reason else ""
        raise PlanError(
            f"{mark}: prompt {longest} has {lengths[longest]} tokens, the model takes {most}{why}: shorten it, "
            f"or cut the text with `source: file` and `max_tokens: {most}`"
        )


def _check_ids(mark: Mark, tokens: Tokens, opened: Opened) -> None:
    """Refuse token numbers that the embedding has no row for."""
    vocabulary = opened.model.info.vocabulary
    for prompt, ids in enumerate(tokens.ids):
        if vocabulary and (int(ids.max()) >= vocabulary or int(ids.min()) < 0):
            wrong = next(int(i) for i in ids if not 0 <= i < vocabulary)
            raise PlanError(
                f"{mark}: prompt {prompt} has the token {wrong}; the embedding of {opened.model.info.name} has rows "
                f"for 0 to {vocabulary - 1}: is the tokenizer that of the model?"
            )
