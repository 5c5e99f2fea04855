"""The plan: every step that a study asks for, with its key, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..contract.analyses import Context, StepRef
from ..contract.digests_and_seeds import derive, digest
from ..contract.errors import GausslensError, InputError
from ..contract.model import NO_MODEL
from ..contract.prompts import SourceContext, tokenised
from ..contract.sites import site
from ..contract.twin import check_edit, left_whole
from ..guard import Guard, Stopped, is_outside, settled
from . import keys
from .inputs import OfEdits, Twin, known, picked, picked_by_edits, planned_after, reads_results
from .inputs import PlanError as PlanError
from .lending import analysis_of, prompts_of, settled_use
from .open import by_layer, equal_sides, equal_steps, steps_out_of_line
from .plan_comparisons import comparisons, words
from .requests import check_request, no_errors
from .shuffled_prompts import Reads, shuffle_seed
from .steps import Plan as Plan
from .steps import Step as Step
from .study import WHOLE_RUN, PromptCall, Shuffle

if TYPE_CHECKING:
    from ..contract.batches import Request
    from ..contract.descriptors import Analysis
    from ..contract.errors import Mark
    from ..contract.model import ModelInfo
    from ..contract.prompts import Prompt, Tokens
    from ..contract.twin import EditCall
    from .open import Models, Opened, Twins
    from .study import Point, Study, Use, Variant


SHOWN = 40  # mistakes
_OF_TWO = "it reads a difference of two models: add a variant, as `added: {difference: [tuned, base]}`"


def make_plan(study: Study, models: Models) -> Plan:
    """Plan a study on its models, which are opened as they are met."""
    planner = _Planner(study, models)
    planner.open_models()
    planner.plan_steps()
    planner.notes += by_layer(models, list(planner.steps.values()))
    compared, notes = comparisons(study, list(planner.steps.values()), planner.left_out)
    steps = (*planner.steps.values(), *compared)
    return Plan(study, steps, (*study.warnings, *planner.notes, *notes))


class _Planner:
    def __init__(self, study: Study, models: Models) -> None:
        self.study = study
        self.models = models
        self.variants = {v.name: v for v in study.variants}
        self.twins: dict[str, list[Twins]] = {}
        self.steps: dict[StepRef, Step] = {}
        self.tokenised: dict[tuple[str, Opened], Reads] = {}
        self.reads: dict[str, Reads] = {}
        self.fingerprints: dict[str, str | None] = {}
        self.left_out: set[StepRef] = set()
        self.notes: list[str] = []
        self._last_reason = ""
        self.requests: dict[tuple[str, Opened], Request | None] = {}
        self.of_edits: Mapping[Twin, OfEdits] = {}
        self.mistakes: dict[str, GausslensError] = {}  # by what they say

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what of a run file does not fit its models, so that all of it can be said at once."""
        try:
            yield
        except GausslensError as error:
            self.mistakes.setdefault(str(error), error)

    def settle(self) -> None:
        """Raise what was noted."""
        if len(self.mistakes) > 1:
            raise PlanError(_in_one_screen(list(self.mistakes)))
        for only in self.mistakes.values():
            raise only

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
                        with self.noting():
                            _check_edit(call, opened)
                            self.notes += left_whole(call, opened.model)
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

    def plan_steps(self) -> None:
        """Variants whose edits read results after those that they read; of each those first that read no results."""
        self.of_edits = picked_by_edits(self.study, [ref for use in self.study.uses for *_, ref in self._places(use)])
        planned: set[str] = set()
        order = planned_after(self.study, self.of_edits)
        for together in order:
            names = {variant.name for variant in together}
            planned |= names
            for use in self.study.uses:
                if use.analysis.descriptor.shape != "derived" and not reads_results(use):
                    with self.noting():
                        self._plan_measured(use, names, planned)
            self.settle()  # before what reads their results
            for use in self.study.uses:
                if reads_results(use):
                    self._plan_measured(use, names, planned)
                elif use.analysis.descriptor.shape == "derived":
                    self._plan_derived(use, names, last=together is order[-1])

    def _places(self, use: Use) -> Iterator[tuple[Point, Opened, StepRef]]:
        """Where an analysis may be computed, as far as that is known before what it reads is."""
        descriptor = use.analysis.descriptor
        for name in use.variants if descriptor.scope == "variant" else ():
            for point, draw, opened in self.twins[name]:
                ref = StepRef(name, use.label, descriptor.name, draw, point.values)
                fits = descriptor.shape == "derived" or (opened is not None and _unfit(descriptor, opened) is None)
                if opened is not None and fits and not _draws_in_vain(use, self.variants[name], point):
                    yield point, opened, ref

    def _plan_measured(self, use: Use, names: set[str], planned: set[str]) -> None:
        """Steps that look at the model, on these variants: stream, weights and forward."""
        for name in (n for n in use.variants if n in names):
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
        if planned >= set(use.variants) and not any(ref.label == use.label for ref in self.steps):
            raise PlanError(f"{use.mark}: {use.label} is computed on none of its variants: {self._last_reason}")

    def _plan_derived(self, use: Use, names: set[str], last: bool) -> None:
        """Derived analyses on these variants, each after what is planned; those of the run after all variants."""
        if use.analysis.descriptor.scope == "run":
            if last:
                place = StepRef(WHOLE_RUN, use.label, use.analysis.descriptor.name)
                whole = (_untouched(self.study), self.models.of_run())
                self._derive(use, place, tuple(self.steps), *whole, tuple(self.left_out))
            return
        for name in (n for n in use.variants if n in names):
            for point, draw, opened in self.twins[name]:
                place = StepRef(name, use.label, use.analysis.descriptor.name, draw, point.values)
                same, without = (
                    tuple(r for r in refs if (r.variant, r.draw, r.sweep) == (name, draw, point.values))
                    for refs in (self.steps, self.left_out)
                )
                self._derive(use, place, same, point, opened, without)

    def _requested(self, use: Use, opened: Opened, reads: Reads, ref: StepRef) -> Request | None:
        """What a stream analysis wants, asked once, so that a wrong site is told before anything runs."""
        if (use.label, opened) not in self.requests:
            self.requests[use.label, opened] = self._checked_request(use, opened, reads, ref)
        return self.requests[use.label, opened]

    def _checked_request(self, use: Use, opened: Opened, reads: Reads, ref: StepRef) -> Request | None:
        assert opened.running is not None
        context = Step(ref, "", {}, use, _untouched(self.study), reads, opened=opened).planned
        try:
            analysis = analysis_of(use, context)
            guard = Guard.of(use.analysis.owner, context.seed)
            request = guard.call(check_request, analysis, opened.running, opened.model, context.model)
            if any(site(s).of_keys for s in request.sites):
                _refuse_crossed(use, opened)
        except PlanError:
            raise
        except GausslensError as error:
            raise PlanError(f"{use.mark}: {use.label}: {error}") from error
        except BaseException as error:
            settled(error)
            return None  # a defect of the analysis: its steps fail, and say so, when the run comes to them
        return request

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
        of_edits = self._of_edits(point, ref)
        read = [[self.steps[r].key for r in refs] for refs in of_edits]
        made["twin"] = keys.of_edits(point.edits, opened.model.info, seed, ref.draw, read)
        reads = groups = None
        if shape in ("stream", "forward"):
            if opened.engine is None:
                raise PlanError(
                    f"{use.mark}: {use.label} runs the model, and no capture engine serves the loader "
                    f"{opened.call.loader.descriptor.name!r}; use another loader, or leave this analysis out"
                )
            reads = self._reads(use, opened, variant, ref.draw)
            use = _settled(use, opened, reads)
            if shape == "stream":
                request = self._requested(use, opened, reads, ref)
                ordered = request is not None and request.ordered
                groups = self._groups(use, reads, ordered)
                if ordered:
                    made["order"] = seed
            else:
                _refuse_crossed(use, opened)
            made["engine"] = {"name": opened.engine.descriptor.first_name, "version": opened.engine.descriptor.version}
            made["tokens"] = reads.digest
            if (fingerprint := self.fingerprints[reads.source]) is not None:
                made["source"] = fingerprint
            if use.analysis.descriptor.texts:
                made["text"] = keys.of_text(reads, opened.model)
            if groups is not None:
                made["errors"] = keys.of_errors(groups)
        else:
            use = _settled(use, opened, None)
        made["analysis"] = keys.of_use(use, seed, ref)
        step = Step(ref, "", made, use, point, reads, groups=groups, opened=opened, of_edits=of_edits)
        if reads_results(use):
            given = picked(use, step.planned, tuple(self.steps), tuple(self.left_out))
            if given is None:
                self._leave_out(use, ref, "reads what is left out there")
                return
            if given:
                made["inputs"] = [self.steps[r].key for r in given]
            elif (note := f"{use.mark}: {use.label} reads no results; {known(tuple(self.steps))}") not in self.notes:
                self.notes.append(note)
            step = replace(step, given=given)
        self.steps[ref] = replace(step, key=keys.key_of(made))

    def _of_edits(self, point: Point, ref: StepRef) -> OfEdits:
        """The results that each edit of a twin reads."""
        found = self.of_edits.get((ref.variant, ref.sweep, ref.draw), ())
        for call, refs in zip(point.edits, found, strict=bool(found)):
            for missing in (r for r in refs if r not in self.steps):
                name = call.edit.descriptor.name
                raise PlanError(
                    f"{call.mark}: edit {name} reads {missing.label} on {missing.variant}, which is left out"
                )
        return found

    def _reads(self, use: Use, opened: Opened, variant: Variant, draw: int | None) -> Reads:
        """An analysis' own prompts, else the variant's, else the run's; shuffled where the variant says so."""
        whole = variant.prompts if isinstance(variant.prompts, PromptCall) and not use.own else None
        call = whole or use.prompts or self.study.prompts
        if call is None:
            raise PlanError(f"{use.mark}: {use.label} needs prompts: add `prompts: {{source: text, text: [...]}}`")
        what = digest([call.source.descriptor.name, call.parameters.canonical()])
        self.fingerprints[what] = call.fingerprint
        plain = self._plain(call, what, opened)
        if not isinstance(variant.prompts, Shuffle):
            return plain
        name = digest([what, plain.digest, plain.text_digest])
        shuffled = digest([name, variant.prompts.canonical(), draw])
        if shuffled not in self.reads:
            self.reads[shuffled] = self._shuffled(variant, variant.prompts, plain, draw, opened)
        return self.reads[shuffled]

    def _plain(self, call: PromptCall, what: str, opened: Opened) -> Reads:
        """Prompts as the tokens of a model; those of models that read alike are held once."""
        if (what, opened) not in self.tokenised:
            made = Reads(_tokenised(call, opened, self.study), source=what)
            held = (reads for (source, _), reads in self.tokenised.items() if source == what)
            alike = (r for r in held if r.digest == made.digest and r.text_digest == made.text_digest)
            self.tokenised[what, opened] = next(alike, made)
        return self.tokenised[what, opened]

    def _groups(self, use: Use, reads: Reads, ordered: bool) -> int | None:
        """How many groups of prompts are left out in turn; None where there are no errors."""
        if use.errors is None:
            return None
        reason = no_errors(use.analysis.descriptor, reads.tokens, use.errors.groups, ordered)
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

    def _shuffled(self, variant: Variant, shuffle: Shuffle, plain: Reads, draw: int | None, opened: Opened) -> Reads:
        of_draw = "" if draw is None else f", draw {draw}"
        try:
            reads = Reads(plain.tokens, shuffle, shuffle_seed(shuffle, self.study.seed, draw), plain.source)
        except InputError as error:
            raise PlanError(f"{shuffle.mark}: {error}") from error
        if reads.digest == plain.digest:
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
        seed = derive(self.study.seed, use.analysis.descriptor.first_name, use.parameters.keyed())
        context = Context(info, seed).at(place, use.analysis.descriptor.knows)
        inputs = picked(use, context, candidates, left_out)
        if inputs is None:
            self._leave_out(use, place, "reads what is left out there")
            return
        made = keys.of_results(use, self.study.seed, place, [self.steps[i].key for i in inputs])
        self.steps[place] = Step(place, keys.key_of(made), made, use, point, inputs=inputs, opened=opened)


def _in_one_screen(said: Sequence[str]) -> str:
    left = [f"... and {len(said) - SHOWN} more"] if len(said) > SHOWN else []
    return "\n".join([f"{len(said)} mistakes", *said[:SHOWN], *left])


def _unfit(analysis: Analysis, opened: Opened) -> str | None:
    """Why an analysis has no meaning on a difference of weights, or on a model; None where it has."""
    if not opened.is_difference:
        return _OF_TWO if analysis.differences == "only" else None
    if analysis.shape != "weights":
        return "runs a model"
    return "is of a model as a whole, which a difference is not" if analysis.differences == "never" else None


def _settled(use: Use, opened: Opened, reads: Reads | None) -> Use:
    """What the run file left open has a value now, which goes into the key."""
    try:
        return settled_use(use, opened.model.info, None if reads is None else reads.tokens)
    except GausslensError as error:
        raise PlanError(f"{use.mark}: {use.label}: {error}") from error


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


def _untouched(study: Study) -> Point:
    from .study import Point

    plain = (p for v in study.variants for p in v.points if not (p.edits or p.models or p.difference))
    return next(plain, Point((), ()))


def _tokenised(call: PromptCall, opened: Opened, study: Study) -> Tokens:
    name = call.source.descriptor.name
    told = call.parameters.first_named(call.parameters.canonical())
    seed = derive(study.seed, "prompts", call.source.descriptor.first_name, told)
    info = opened.model.info
    facts = {**info.facts, "vocabulary": info.vocabulary, "max_positions": info.max_positions}
    given = [0]
    prompts = _counted(prompts_of(call, SourceContext(study.directory, seed, facts)), given)
    try:
        tokens = tokenised(opened.model, prompts, opened.call.loader.descriptor.name)
    except GausslensError:
        raise
    except BaseException as error:
        stopped = _not_asked_for(call, opened, given[0], error)
        kind = "" if isinstance(stopped, Stopped) else f"{type(stopped).__name__}: "
        what = f"what the prompt source {name} of plugin {call.source.owner.plugin} gave cannot be made tokens"
        raise InputError(f"{call.mark}: {what}, after {given[0]} prompts: {kind}{stopped}") from error
    if not len(tokens):
        raise PlanError(f"{call.mark}: the prompt source {name} gave no prompts")
    if min(tokens.lengths) == 0:
        raise PlanError(f"{call.mark}: prompt {tokens.lengths.index(0)} has no tokens")
    _check_lengths(call.mark, tokens.lengths, opened)
    _check_ids(call.mark, tokens, opened)
    return tokens


def _counted(prompts: Iterator[Prompt], given: list[int]) -> Iterator[Prompt]:
    for prompt in prompts:
        given[0] += 1
        yield prompt


def _not_asked_for(call: PromptCall, opened: Opened, given: int, error: BaseException) -> Exception:
    """The error, where an outside plugin may be at its root; a Ctrl-C is raised again, and told how far it was."""
    try:
        stopped = settled(error)
    except BaseException as asked:
        asked.add_note(f"{call.mark}: {given} prompts were read of the source {call.source.descriptor.name}")
        raise
    if not (is_outside(call.source.owner) or is_outside(opened.call.loader.owner)):
        raise error
    return stopped


def _check_lengths(mark: Mark, lengths: Sequence[int], opened: Opened) -> None:
    most = opened.model.info.max_positions
    if most is not None and max(lengths) > most:
        longest = lengths.index(max(lengths))
        reason = opened.model.info.facts.get("longest")
        why = f" ({reason})" if reason else ""
        raise PlanError(
            f"{mark}: prompt {longest} has {lengths[longest]} tokens, the model takes {most}{why}: shorten it, "
            f"or cut the text with `source: file` and `max_tokens: {most}`"
        )


def _check_ids(mark: Mark, tokens: Tokens, opened: Opened) -> None:
    """Refuse token numbers that the embedding has no row for."""
    vocabulary = opened.model.info.vocabulary
    held: Any = tokens.ids
    beyond = (held.flat >= vocabulary) | (held.flat < 0)
    if vocabulary and beyond.any():
        place = int(beyond.argmax())
        prompt = int(held.ends.searchsorted(place, side="right"))
        raise PlanError(
            f"{mark}: prompt {prompt} has the token {held.flat[place]}; the embedding of {opened.model.info.name} has "
            f"rows for 0 to {vocabulary - 1}: is the tokenizer that of the model?"
        )
