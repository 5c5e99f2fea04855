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
from ..contract.sites import site
from ..contract.twin import check_edit
from ..guard import is_outside, settled
from . import keys
from .lending import analysis_of, prompts_of
from .open import equal_sides, equal_steps, steps_out_of_line
from .plan_comparisons import comparisons, rung_of, words
from .provenance import distributions, now
from .requests import check_request, no_errors
from .shuffled_prompts import Reads, shuffle_seed
from .study import WHOLE_RUN, PromptCall, Shuffle

if TYPE_CHECKING:
    from ..contract.descriptors import Analysis
    from ..contract.errors import Mark
    from ..contract.model import ModelInfo
    from ..contract.prompts import Tokens
    from ..contract.twin import EditCall
    from .open import Models, Opened, Twins
    from .study import Point, Study, Use, Variant


_OF_TWO = "it reads a difference of two models: add a variant, as `added: {difference: [tuned, base]}`"


class PlanError(InputError):
    """A run file is well formed but asks for what cannot be."""


@dataclass(frozen=True)
class Step:
    """One analysis on one draw of one point of one variant, or one comparison with a null.

    ``inputs`` are the results it reads (derived steps and comparisons, whose ``against`` names the null variant; the
    first input is then the result compared). ``groups`` says how many groups of prompts are left out in turn for
    errors. ``opened`` is its model. ``as_sets``: heads are compared by rank, for those of another training have no
    counterpart.
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

    @property
    def info(self) -> ModelInfo:
        """The facts of its model; of a derived step over the whole run, those of the model of the run."""
        return self.opened.model.info if self.opened is not None else NO_MODEL

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
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    prompts: Mapping[str, Tokens] = field(default_factory=dict)

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


def make_plan(study: Study, models: Models) -> Plan:
    """Plan a study on its models, which are opened as they are met."""
    planner = _Planner(study, models)
    planner.open_models()
    planner.plan_measured()
    planner.plan_derived()
    compared, notes = comparisons(study, list(planner.steps.values()), planner.left_out)
    steps = (*planner.steps.values(), *compared)
    return Plan(study, steps, (*planner.notes, *notes), planner.prompts)


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


def step_seed(step: Step, run_seed: int) -> int:
    """The seed of an analysis: by run seed, analysis and parameters; the same for all variants and draws."""
    return derive(run_seed, step.use.analysis.descriptor.name, step.use.parameters.keyed())


class _Planner:
    def __init__(self, study: Study, models: Models) -> None:
        self.study = study
        self.models = models
        self.variants = {v.name: v for v in study.variants}
        self.twins: dict[str, list[Twins]] = {}
        self.steps: dict[StepRef, Step] = {}
        self.prompts: dict[str, Tokens] = {}
        self.tokenised: dict[tuple[str, Opened], Tokens] = {}
        self.reads: dict[str, Reads] = {}
        self.left_out: set[StepRef] = set()
        self.notes: list[str] = []
        self._last_reason = ""
        self.requests: set[tuple[str, Opened]] = set()

    def open_models(self) -> None:
        """Open the model of every twin, and look at every edit of it, before anything is computed."""
        checked: set[tuple[int, Opened]] = set()
        for variant in self.study.variants:
            each = [(point, draw, self.models.of(point, draw)) for point, draw in variant.twins()]
            self.twins[variant.name] = kept = self._different(variant, each)
            for point, _, opened in kept:
                for call in point.edits if opened is not None else ():
                    assert opened is not None
                    if (id(call), opened) not in checked:
                        checked.add((id(call), opened))
                        _check_edit(call, opened)
        for opened in self.models:
            info = opened.model.info
            self.notes += [f"{info.name}: {note}" for note in info.facts.get("notes", ())]
        self.notes += equal_steps(self.study.variants, self.twins)
        self.notes += equal_sides(self.study.variants, self.twins)
        self.notes += steps_out_of_line(self.study.variants, self.twins)

    def _different(self, variant: Variant, twins: list[Twins]) -> list[Twins]:
        """Without draws that are models of equal weights: they count once."""
        if not variant.draw_values:
            return twins
        seen: dict[tuple[Any, ...], int | None] = {}
        kept: list[Twins] = []
        for point, draw, opened in twins:
            assert opened is not None
            what = (point.values, digest(opened.identity), draw if keys.is_random(point.edits) else None)
            first = seen.setdefault(what, draw)
            if first == draw:
                kept.append((point, draw, opened))
            else:
                named = " and ".join(words(variant.draw_values[i]) for i in (first, draw) if i is not None)
                self.notes.append(f"{variant.mark}: {named} of {variant.name} are the same weights: they count once")
        return kept

    def plan_measured(self) -> None:
        """Steps that look at the model: stream, weights and forward."""
        for use in self.study.uses:
            if use.analysis.descriptor.shape == "derived":
                continue
            for name in use.variants:
                variant = self.variants[name]
                for point, draw, opened in self.twins[name]:
                    if opened is None:
                        raise PlanError(
                            f"{use.mark}: {use.label} needs a model: add `model: {{path: ...}}` to the run file"
                        )
                    _check_view(use, opened.model.info)
                    ref = StepRef(name, use.label, use.analysis.descriptor.name, draw, point.values)
                    if _draws_in_vain(use, variant, point):
                        self._leave_out(use, ref, "does not read prompts")
                    elif (reason := _unfit(use.analysis.descriptor, opened)) is not None:
                        self._leave_out(use, ref, reason)
                    else:
                        self._measure(use, opened, variant, point, ref)
            if not any(ref.label == use.label for ref in self.steps):
                raise PlanError(f"{use.mark}: {use.label} is computed on none of its variants: {self._last_reason}")

    def plan_derived(self) -> None:
        """Derived analyses, in the order of the run file: each may read those before it."""
        for use in self.study.uses:
            if use.analysis.descriptor.shape != "derived":
                continue
            if use.analysis.descriptor.scope == "run":
                place = StepRef(WHOLE_RUN, use.label, use.analysis.descriptor.name)
                whole = (_untouched(self.study), self.models.of_run())
                self._derive(use, place, tuple(self.steps), *whole, tuple(self.left_out))
                continue
            for name in use.variants:
                for point, draw, opened in self.twins[name]:
                    place = StepRef(name, use.label, use.analysis.descriptor.name, draw, point.values)
                    same, without = (
                        tuple(r for r in refs if (r.variant, r.draw, r.sweep) == (name, draw, point.values))
                        for refs in (self.steps, self.left_out)
                    )
                    self._derive(use, place, same, point, opened, without)

    def _check_request(self, use: Use, opened: Opened, reads: Reads) -> None:
        """Ask a stream analysis once what it wants, so that a wrong site is told before anything runs."""
        assert opened.running is not None
        if (use.label, opened) in self.requests:
            return
        self.requests.add((use.label, opened))
        context = Context(opened.model.info.narrowed(use.layers, use.heads), 0, reads.tokens)
        try:
            analysis = analysis_of(use, context)
            check_request(analysis, opened.running, opened.model, context.model)
            if any(site(s).of_keys for s in analysis.request().sites):
                _refuse_crossed(use, opened)
        except PlanError:
            raise
        except GausslensError as error:
            raise PlanError(f"{use.mark}: {use.label}: {error}") from error
        except BaseException as error:
            settled(error)
            return  # a defect of the analysis: its steps fail, and say so, when the run comes to them

    def _leave_out(self, use: Use, ref: StepRef, why: str) -> None:
        self.left_out.add(ref)
        points = self.variants[ref.variant].points if ref.variant in self.variants else ()
        of_weights = any(point.difference is not None for point in points)
        what = "a difference of weights" if of_weights else "whose draws differ in prompts alone"
        self._last_reason = why if why is _OF_TWO else f"{use.label} is left out on {ref.variant}, {what}: it {why}"
        note = f"{use.mark}: {self._last_reason}"
        if why is not _OF_TWO and note not in self.notes:  # what reads differences alone says so in its summary
            self.notes.append(note)

    def _measure(self, use: Use, opened: Opened, variant: Variant, point: Point, ref: StepRef) -> None:
        shape = use.analysis.descriptor.shape
        seed = self.study.seed
        made: dict[str, Any] = {"host": keys.HOST_VERSION}
        made["model"] = opened.identity
        made["twin"] = keys.of_edits(point.edits, seed, ref.draw)
        made["analysis"] = keys.of_use(use, seed)
        reads = groups = None
        if shape in ("stream", "forward"):
            if opened.engine is None:
                raise PlanError(
                    f"{use.mark}: {use.label} runs the model, and no capture engine serves the loader "
                    f"{opened.call.loader.descriptor.name!r}; use another loader, or leave this analysis out"
                )
            reads = self._reads(use, opened, variant, ref.draw)
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
        self.steps[ref] = Step(ref, keys.key_of(made), made, use, point, reads, groups=groups, opened=opened)

    def _reads(self, use: Use, opened: Opened, variant: Variant, draw: int | None) -> Reads:
        """An analysis' own prompts, else the variant's, else the run's; shuffled where the variant says so."""
        whole = variant.prompts if isinstance(variant.prompts, PromptCall) and not use.own else None
        call = whole or use.prompts or self.study.prompts
        if call is None:
            raise PlanError(f"{use.mark}: {use.label} needs prompts: add `prompts: {{source: text, text: [...]}}`")
        what = digest([call.source.descriptor.name, call.parameters.canonical()])
        plain = self._tokens(call, what, opened)
        name = digest([what, plain.digest(), plain.text_digest()])
        self.prompts.setdefault(name, plain)
        if not isinstance(variant.prompts, Shuffle):
            return self.reads.setdefault(name, Reads(plain, source=what))
        shuffled = digest([name, variant.prompts.canonical(), draw])
        if shuffled not in self.reads:
            self.reads[shuffled] = self._shuffled(variant, variant.prompts, plain, draw, opened, what)
        return self.reads[shuffled]

    def _tokens(self, call: PromptCall, what: str, opened: Opened) -> Tokens:
        """Prompts as the tokens of a model; those of models that read alike are held once."""
        if (what, opened) not in self.tokenised:
            made = _tokenised(call, opened, self.study)
            held = (t for (source, _), t in self.tokenised.items() if source == what)
            alike = (made.digest(), made.text_digest())
            self.tokenised[what, opened] = next((t for t in held if (t.digest(), t.text_digest()) == alike), made)
        return self.tokenised[what, opened]

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

    def _shuffled(
        self, variant: Variant, shuffle: Shuffle, plain: Tokens, draw: int | None, opened: Opened, source: str
    ) -> Reads:
        of_draw = "" if draw is None else f", draw {draw}"
        try:
            reads = Reads(plain, shuffle, shuffle_seed(shuffle, self.study.seed, draw), source)
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
        self,
        use: Use,
        place: StepRef,
        candidates: Sequence[StepRef],
        point: Point,
        opened: Opened | None,
        left_out: Sequence[StepRef],
    ) -> None:
        info = opened.model.info if opened else NO_MODEL
        seed = derive(self.study.seed, use.analysis.descriptor.name, use.parameters.keyed())
        context = Context(info, seed)
        try:
            analysis: DerivedAnalysis = analysis_of(use, context)
            inputs = tuple(analysis.inputs(candidates))
        except InputError as error:
            if left_out and _could_read(analysis, (*candidates, *left_out)):
                self._leave_out(use, place, "reads what is left out there")
                return
            raise PlanError(f"{use.mark}: {use.label}: {error}") from error
        except BaseException as stopped:
            defect = settled(stopped)
            if isinstance(defect, GausslensError) or not is_outside(use.analysis.owner):
                raise defect from None
            whose = f"plugin {use.analysis.owner.plugin} ({use.analysis.owner.distribution})"
            raise PlanError(f"{use.mark}: {use.label} of {whose} cannot say what it reads: {defect!r}") from defect
        if not inputs and left_out and _could_read(analysis, (*candidates, *left_out)):
            self._leave_out(use, place, "reads what is left out there")
            return
        unknown = [i for i in inputs if i not in self.steps]
        if unknown or not inputs:
            known = ", ".join(sorted({c.label for c in candidates})) or "none"
            what = f"asks for {unknown[0]}, which is not planned" if unknown else "finds none of the results it reads"
            raise PlanError(f"{use.mark}: {use.label} {what}; the labels planned before it: {known}")
        made = keys.of_results(use, self.study.seed, [self.steps[i].key for i in inputs])
        self.steps[place] = Step(place, keys.key_of(made), made, use, point, inputs=inputs, opened=opened)


def _unfit(analysis: Analysis, opened: Opened) -> str | None:
    """Why an analysis has no meaning on a difference of weights, or on a model; None where it has."""
    if not opened.is_difference:
        return _OF_TWO if analysis.differences == "only" else None
    if analysis.shape != "weights":
        return "runs a model"
    return "is of a model as a whole, which a difference is not" if analysis.differences == "never" else None


def _refuse_crossed(use: Use, opened: Opened) -> None:
    """What does not say that it knows keys of another stack would take them for tokens of its own."""
    if opened.model.info.facts.crossed and not use.analysis.descriptor.crossed:
        raise PlanError(
            f"{use.mark}: {use.label} does not know attention from one stack to another, whose keys are tokens of the "
            f"source: take `stack: encoder` or `stack: decoder`, or leave {use.analysis.descriptor.name} out"
        )


def _check_view(use: Use, info: ModelInfo) -> None:
    try:
        info.narrowed(use.layers, use.heads)
    except GausslensError as error:
        raise PlanError(f"{use.mark}: {use.label}: {error}") from error


def _check_edit(call: EditCall, opened: Opened) -> None:
    try:
        check_edit(call, opened.model)
    except GausslensError as error:
        raise PlanError(f"{call.mark}: {error}") from error


def _draws_in_vain(use: Use, variant: Variant, point: Point) -> bool:
    """Whether all draws of a variant are equal to this analysis: only their prompts differ, and it reads none."""
    equal = variant.draws is not None and not variant.draw_values and not keys.is_random(point.edits)
    return equal and use.analysis.descriptor.shape == "weights"


def _could_read(analysis: DerivedAnalysis, candidates: Sequence[StepRef]) -> bool:
    try:
        return bool(analysis.inputs(candidates))
    except InputError:
        return False


def _untouched(study: Study) -> Point:
    from .study import Point

    plain = (p for v in study.variants for p in v.points if not (p.edits or p.models or p.difference))
    return next(plain, Point((), ()))


def _tokenised(call: PromptCall, opened: Opened, study: Study) -> Tokens:
    name = call.source.descriptor.name
    seed = derive(study.seed, "prompts", name, call.parameters.canonical())
    info = opened.model.info
    facts = {**info.facts, "vocabulary": info.vocabulary, "max_positions": info.max_positions}
    prompts = prompts_of(call, SourceContext(study.directory, seed, facts))
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
