"""Print the steps of a run file, and what each will need."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..terminal import columns, duration, size, table, tell
from . import add_run_file, load_host

if TYPE_CHECKING:
    from ..contract.analyses import Estimate
    from ..runs.steps import Plan, Step
    from ..store import Store


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    add_run_file(parser)
    parser.add_argument("--store", metavar="DIR", help="the store that is asked for what is there already")
    parser.add_argument("--json", action="store_true", help="as JSON, with the whole keys and their ingredients")


def run(arguments: Namespace) -> int:
    """Plan, and print; nothing is computed and nothing is written."""
    import json

    from ..perform import chosen_store
    from ..runs.steps import manifest_of
    from ..spreading.prepare import prepare
    from ..store import Store

    _, study, models, plan = prepare(arguments.file, arguments.set, host=load_host(arguments))
    try:
        if arguments.json:
            print(json.dumps(manifest_of(plan), indent=2, ensure_ascii=False))
        else:
            tell(_as_text(plan, Store(chosen_store(study, arguments.store)), columns()))
    finally:
        models.close()
    return 0


def _as_text(plan: Plan, store: Store, width: int | None) -> str:
    """A line for each label, and for variants of it that need other than the rest; then what the whole will need."""
    there = {step.key for step in plan.steps if store.has(step.folder, step.key)}
    needed = _needed(plan)
    rows = [_row(label, steps, there, needed) for label, steps in _alike(plan, needed)]
    head = ("label", "variants", "steps", "left", "tokens", "memory", "disk", "time each")
    lines = [f"{plan.study.name}: {len(plan.steps)} steps, {len(there)} of them in {store.path}", ""]
    lines += table(head, rows, (2, 3, 4, 5, 6, 7), width)
    lines += _left(plan, there, needed)
    lines += _models(plan)
    lines += _nulls(plan)
    lines += _threads(plan)
    lines += _devices(plan)
    lines += [f"note: {note}" for note in plan.notes]
    groups = sorted({step.groups for step in plan.steps if step.groups})
    if groups:
        in_groups = f"{' or '.join(map(str, groups))} groups"
        lines.append(f"errors: over prompts, by leaving out one of {in_groups} in turn; memory and time are with them")
    return "\n".join(lines)


def _left(plan: Plan, there: Container[str], needed: Mapping[str, Estimate]) -> list[str]:
    """What all that is left to compute will take, by one process."""
    from ..measuring.execute import groups
    from ..runs.resources import together
    from ..spreading.tasks import reading

    todo = list({step.key: step for step in plan.steps if step.key not in there}.values())
    if not todo:
        return []
    each = groups(plan, todo)
    seconds = sum(reading(s[0], plan) if s[0].inputs else together(s) for s in each)
    measured = [needed[step.key] for step in todo if step.key in needed]
    memory, disk = max((need.memory for need in measured), default=0), sum(need.disk for need in measured)
    told = [f"at most {size(memory)} beside the model"] * bool(memory) + [f"{size(disk)} of disk"] * bool(disk)
    took = duration(seconds).replace("< 1 s", "under 1 s")
    return [
        "",
        f"left    {len(todo)} step{'s' * (len(todo) > 1)}, by one process {', '.join(filter(None, (took, *told)))}",
    ]


def _needed(plan: Plan) -> dict[str, Estimate]:
    """What each step that looks at a model needs, by its key; draws of one variant on the same tokens need the same."""
    from ..runs.resources import needs

    once: dict[tuple[object, ...], Estimate] = {}
    found: dict[str, Estimate] = {}
    for step in plan.steps:
        if step.inputs or step.opened is None:
            continue
        what = (step.ref.label, step.ref.variant, step.opened, step.ingredients.get("tokens"), step.groups)
        if what not in once:
            once[what] = needs(step, step.info)
        found[step.key] = once[what]
    return found


def _alike(plan: Plan, needed: Mapping[str, Estimate]) -> Iterator[tuple[str, list[Step]]]:
    """Steps of a label that need the same, by label; all that is compared with one null together."""
    found: dict[tuple[str, ...], list[Step]] = {}
    for step in plan.steps:
        what = (f"against {step.against}",) if step.against else (step.ref.label, *_in_words(step, needed))
        found.setdefault(what, []).append(step)
    for (label, *_), steps in found.items():
        yield label, steps


def _row(label: str, steps: Sequence[Step], there: Container[str], needed: Mapping[str, Estimate]) -> tuple[str, ...]:
    drawn = Counter(step.ref.variant for step in steps)
    variants = ", ".join(f"{name} x {n}" if n > 1 else name for name, n in drawn.items())
    if steps[0].against:
        labels = dict.fromkeys(step.ref.label.split(".against.")[0] for step in steps)
        variants = ", ".join(labels)
    left = sum(step.key not in there for step in steps)
    return (label, variants, str(len(steps)), str(left), *_in_words(steps[0], needed))


def _in_words(step: Step, needed: Mapping[str, Estimate]) -> tuple[str, str, str, str]:
    """Tokens, memory, disk and time of a step."""
    tokens = str(sum(step.tokens.lengths)) if step.tokens else ""
    need = needed.get(step.key)
    if need is None:
        return tokens, "", "", ""
    return tokens, size(need.memory), size(need.disk), duration(need.seconds)


def _models(plan: Plan) -> list[str]:
    """Each model; those of one kind, as the checkpoints of a training, in one line."""
    alike: dict[str, list[str]] = {}
    models = [opened for opened in plan.models if not opened.is_difference]
    for opened in models:
        info = opened.model.info
        kind = (
            f"{info.family}, {info.n_layers} layers of {info.n_heads} heads over {info.n_kv_heads}, "
            f"{info.n_parameters:,} parameters, {size(info.weight_bytes)} in memory as {info.dtype}"
        )
        alike.setdefault(kind, []).append(info.name)
    lines = []
    for kind, names in alike.items():
        several = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"model   {names[0]}{several}: {kind}")
    if len(models) > 1:
        two = ", two where they are subtracted" if len(plan.models) > len(models) else ""
        lines.append(f"        {len(models)} models, opened once each, one in memory at a time{two}")
    return ["", *lines] if lines else []


def _threads(plan: Plan) -> list[str]:
    """How many threads passes of a model have, and who says so."""
    from ..guard import threads

    most = threads()
    told = f"threads {most} in passes of the model, one within analyses; OMP_NUM_THREADS says how many"
    return ["", told] if any(step.tokens is not None for step in plan.steps) else []


def _devices(plan: Plan) -> list[str]:
    """What each device that is not the CPU will hold: weights, and a shard."""
    from ..contract.prompts import SHARD_TOKENS
    from ..measuring.shards import device_memory, longest, shard_tokens, token_bytes, weight_bytes
    from ..runs.lending import asked_of

    lines = []
    streamed = [s for s in plan.steps if s.tokens is not None and s.use.analysis.descriptor.shape == "stream"]
    for opened in plan.models:
        steps = [s for s in streamed if s.opened is opened and s.ref.draw in (None, 0)]
        if opened.call.device == "cpu" or not steps:
            continue
        device, memory = opened.call.device, device_memory(opened.call.device)
        sites = {site for step in steps for site in asked_of(step.use, step.planned).sites}
        tokens = max((s.tokens for s in steps if s.tokens is not None), key=longest)
        width = longest(tokens)
        many = max(shard_tokens(opened, tokens, sites) or SHARD_TOKENS, width)
        shard = many * token_bytes(opened.model.info, sites, width)
        there = f"of {size(memory)} that this process may hold" if memory is not None else "there is none here"
        lines.append(
            f"device  {device}: {size(weight_bytes(opened))} for weights and a twin's, {size(shard)} for a shard of "
            f"{many:,} tokens; {there}"
        )
    return ["", *lines] if lines else []


def _nulls(plan: Plan) -> list[str]:
    """How many draws each null has, what claims need, and what more draws would cost."""
    from ..maths.nulls import FAMILY_DRAWS, FEWEST_DRAWS
    from ..runs.resources import together

    lines = []
    for null in plan.study.against:
        drawn = [s for s in plan.steps if s.ref.variant == null and not s.inputs]
        draws = len({s.ref.draw for s in drawn})
        first = [s for s in drawn if s.ref.draw == 0]
        each = together(first)
        wanted = [(FEWEST_DRAWS, "p, q and cells"), (FAMILY_DRAWS, "the family-wise p of a statistic")]
        lacking = [_lacking(what, least - draws, each) for least, what in wanted if draws < least]
        told = f"; {'; '.join(lacking)}" if lacking else ": enough for every claim"
        lines.append(f"null    {null}, {draws} draw{'s' if draws != 1 else ''}{told}")
    return ["", *lines] if lines else []


def _lacking(what: str, draws: int, seconds: float) -> str:
    cost = duration(seconds * draws)
    told = f", {cost.replace('< ', 'under ')}" if cost else ""
    return f"{what} need{'s' if what.startswith('the') else ''} {draws} draw{'s' if draws > 1 else ''} more{told}"
