"""The block `analyses:`: labels, parameters, and which variants and prompts each is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..runs.study import Errors, PromptCall, Use
from . import blocks
from .blocks import find, keys
from .check_parameters import checked, names_at
from .model_and_prompts import default_prompts, read_prompts_block, resolved_prompts
from .nodes import Node
from .problems import instead, shortened
from .variants import has_own_prompts, indices

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..contract.descriptors import Analysis, Owned
    from .blocks import Reading

RUNS_THE_MODEL = ("stream", "forward")


def read_uses(
    reading: Reading,
    entries: Sequence[Node],
    variants: Mapping[str, Node] | None,
    prompts: PromptCall | None,
    given: bool,
    errors: Errors | None,
) -> list[Use]:
    """Every entry of `analyses:`.

    ``variants`` are those that there are by name, None where they are not known; ``prompts`` are those of the run, and
    ``given`` says whether it has any, right or wrong; ``errors`` are those of the run.
    """
    bringing = {name for name, node in (variants or {}).items() if has_own_prompts(node)}
    found, labels = [], dict[str, Node]()
    for entry in entries:
        block, table = checked(blocks.AnalysisBlock, _without_parameters(reading, entry), reading.problems)
        _check_label(reading, table, labels)
        _check_variants(reading, table.get("variants"), variants)
        analysis = find("analysis", table.get("use"), reading.host, reading.problems)
        own = _own_prompts(reading, table)
        if analysis is None:
            continue
        parameters = reading.parameters(analysis, _parameters(table))
        on = tuple((block.variants if block else None) or variants or ())
        called = _prompts(reading, table, analysis, own or prompts, given or (bool(on) and bringing.issuperset(on)))
        _check_errors(reading, table, analysis)
        if block is None or parameters is None:
            continue
        label = block.label or block.use  # as it is written, so that what names a label finds it
        layers, heads = indices(block.layers), indices(block.heads)
        over = errors_of(block.errors, "entry", errors)
        found.append(
            Use(label, analysis, parameters, layers, heads, on, called, entry.place, own is not None, over, block.limit)
        )
    return found


def _without_parameters(reading: Reading, entry: Node) -> Node:
    """An entry without what belongs within its `with:`, of which is told."""
    strange = entry.but(keys(blocks.AnalysisBlock)) if entry.is_table else None
    use = entry.get("use") if strange is not None and strange.value else None
    named = reading.host.find("analysis", use.value) if use is not None and isinstance(use.value, str) else None
    model = reading.model(named, entry) if named is not None else None
    if strange is None or named is None or model is None:
        return entry
    theirs = strange.only(names_at(model, ())).value
    for name, node in theirs.items():
        hint = f"write it within `with`, as `with: {{{name}: ...}}`"
        reading.problems.key(node, f"is a parameter of {named.descriptor.name}", hint)
    return entry.but(theirs)


def _check_label(reading: Reading, entry: Node, labels: dict[str, Node]) -> None:
    label = entry.get("as") or entry.get("use")
    if label is not None and label.value is None:
        label = entry.get("use")
    if label is None or not isinstance(label.value, str):
        return
    first = labels.setdefault(label.value, label)
    if first is not label:
        where = f" (line {first.mark.line})" if first.mark.line else f" ({first.path[0]}[{first.path[1]}])"
        message = f"the label {shortened(label.value)} is given to two analyses{where}"
        reading.problems.value(label, message, "name one of them with `as`")


def _check_variants(reading: Reading, node: Node | None, variants: Collection[str] | None) -> None:
    seen = set()
    for item in node.nodes if node is not None and variants is not None else ():
        if isinstance(item.value, str) and item.value not in (variants or ()):
            hint = instead(item.value, variants or ())
            reading.problems.value(item, f"there is no variant {shortened(item.value)}", hint)
        elif isinstance(item.value, str) and item.value in seen:
            reading.problems.value(item, f"the variant {item.value} is named twice", "keep one")
        elif isinstance(item.value, str):
            seen.add(item.value)


def errors_of(
    block: blocks.ErrorsBlock | Literal[False] | None, asked: Literal["run", "entry"], otherwise: Errors | None
) -> Errors | None:
    """What `errors:` of the run or of an entry says; where it says nothing, what holds otherwise."""
    if block is None:
        return otherwise
    return Errors(block.groups, asked) if block else None


def _check_errors(reading: Reading, entry: Node, analysis: Owned[Analysis]) -> None:
    """Errors asked for by name, of an analysis that the host cannot run again without some prompts."""
    given, descriptor = entry.get("errors"), analysis.descriptor
    if given is None or not given.is_table or (descriptor.shape == "stream" and not descriptor.bulk):
        return
    why = "writes arrays as they come" if descriptor.bulk else f"is of shape {descriptor.shape}, not stream"
    reading.problems.key(given, f"{descriptor.name} {why}: it has no errors over prompts", "leave `errors` out")


def _parameters(entry: Node) -> Node:
    given = entry.get("with")
    if given is not None and given.is_table:
        return given
    # Noted already where it is no table; then the defaults are looked at, so that nothing is noted twice.
    return Node({}, entry.mark, (*entry.path, "with"), entry.place)


def _own_prompts(reading: Reading, entry: Node) -> PromptCall | None:
    node = entry.get("prompts")
    return read_prompts_block(reading, node) if node is not None and node.is_table else None


def _prompts(
    reading: Reading, entry: Node, analysis: Owned[Analysis], chosen: PromptCall | None, given: bool
) -> PromptCall | None:
    """The prompts of a step: its own, else the run's, else the analysis'; none where it does not run the model."""
    own = entry.get("prompts")
    if analysis.descriptor.shape not in RUNS_THE_MODEL:
        if own is not None and own.value is not None:
            what = "weights" if analysis.descriptor.shape == "weights" else "results"
            reading.problems.key(own, f"{analysis.descriptor.name} reads {what} and takes no prompts", "leave them out")
        return None
    if chosen is not None or given or (own is not None and own.value is not None):
        return chosen
    if analysis.descriptor.prompts is None:
        message = f"{analysis.descriptor.name} runs the model and has no prompts"
        reading.problems.key(entry, message, "add to the run file, as `prompts: {source: text, text: [Hello world]}`")
        return None
    return default_prompts(reading, entry, analysis)


def resolved_errors(errors: Errors | None) -> dict[str, int] | bool:
    """How `errors:` reads."""
    return {"groups": errors.groups} if errors is not None else False


def resolved(use: Use, of_run: PromptCall | None, errors_of_run: Errors | None) -> dict[str, Any]:
    """How an entry reads with every default filled in; the prompts and errors of the run are not said again."""
    told = {
        "use": use.analysis.descriptor.name,
        "as": use.label,
        "with": use.parameters.canonical(),
        "layers": list(use.layers) if use.layers else None,
        "heads": list(use.heads) if use.heads else None,
        "variants": list(use.variants),
        "prompts": resolved_prompts(None if use.prompts is of_run else use.prompts),
        "errors": None if use.errors == errors_of_run else resolved_errors(use.errors),
    }
    return told | ({} if use.limit is None else {"limit": use.limit})
