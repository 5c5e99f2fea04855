"""The block `variants:`: edits and draws, and sweeps multiplied out into points; and `against:`, which names nulls."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..contract.errors import near
from ..contract.twin import EditCall
from ..runs.study import Point, Shuffle, Variant
from . import blocks
from .blocks import find, split_keys, with_name
from .check_parameters import checked, names_at, with_current_names
from .model_and_prompts import read_variant_prompts, resolved_prompts
from .nodes import Node
from .problems import Problems, instead, shortened
from .sweeps import DIMENSIONS, MOST_POINTS, Values, checked_values
from .variant_models import read_difference, read_variant_models

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..contract.descriptors import Edit, Owned
    from ..contract.parameters import Parameters
    from ..runs.study import ModelCall
    from .blocks import Reading

KEYS = blocks.keys(blocks.EditBlock)


def variants_by_name(root: Node) -> dict[str, Node] | None:
    """The variants by name; None where they are no table."""
    node = root.get("variants")
    if node is None:
        trained = Node([], root.mark, ("variants", "trained"), root.mark)
        return {"trained": trained}
    return dict(node.value) if node.is_table else None


def read_variants(
    reading: Reading, named: Mapping[str, Node], of_run: Node | None
) -> dict[str, tuple[Variant, Mapping[str, Any]]]:
    """The variants that are right, each with how it reads with every default filled in; ``of_run`` is `model:`."""
    read = {name: _read_variant(reading, name, node, of_run) for name, node in named.items()}
    known = {name: found[0] if found is not None else None for name, found in read.items()}
    made: dict[str, tuple[Variant, Mapping[str, Any]]] = {}
    for name, found in read.items():
        if found is None:
            continue
        difference = named[name].get("difference")
        if difference is not None:
            found = (read_difference(reading, difference, known, found[0]), found[1])
        made[name] = found
    return made


def _read_variant(
    reading: Reading, name: str, node: Node, of_run: Node | None
) -> tuple[Variant, Mapping[str, Any]] | None:
    """A variant, and how it reads; None where something in it is wrong."""
    problems = reading.problems
    before = len(problems)
    _check_name(reading, name, node)
    node = _as_block(reading, node)
    block, node = checked(blocks.VariantBlock, node, problems)
    edits = node.get("edits")
    entries = edits.value if edits is not None and edits.is_list else []
    _check_sweeps(reading, entries, node.get("sweep"))
    read = [read_edit(reading, entry) for entry in entries]
    models = read_variant_models(reading, node, of_run)
    _check_difference(reading, node)
    given = node.get("prompts")
    prompts = read_variant_prompts(reading, given) if given is not None and given.is_table else None
    is_shuffled = isinstance(prompts, Shuffle) or len(problems) > before
    _check_draws(reading, node.get("draws"), read, is_shuffled)
    points = math.prod((*(len(each.choices) for each in read), len(models.points) if models is not None else 1))
    if points > MOST_POINTS:
        problems.key(node, f"its sweeps multiply to {points:,} points; there may be {MOST_POINTS:,}")
    if len(problems) > before or block is None or models is None:
        return None
    edited = list(itertools.product(*(each.choices for each in read)))
    combined = tuple(_point(of_model, chosen) for of_model, chosen in itertools.product(models.points, edited))
    resolved: dict[str, Any] = {"edits": [each.resolved for each in read], "draws": block.draws, **models.resolved}
    if prompts is not None:
        resolved["prompts"] = resolved_prompts(prompts)
    if block.difference is not None:
        resolved["difference"] = block.difference
    draws = block.draws if isinstance(block.draws, int) else len(models.draws) or None
    return Variant(name, draws, combined, node.place, prompts, models.draws, models.swept), resolved


def _check_name(reading: Reading, name: str, node: Node) -> None:
    if not blocks.is_name(name):
        reading.problems.key(node, f"should be {blocks.NAME_WORDS}")
    elif name == blocks.WHOLE_RUN:
        reading.problems.key(node, "this name is kept for the results of a whole run", "give the variant another")


def _as_block(reading: Reading, node: Node) -> Node:
    """The variant as a table of edits and draws, which a list of edits stands for."""
    if node.is_table and node.get("edit") is not None and node.get("edits") is None:
        hint = "write {edits: [{edit: ...}], draws: ...}" if node.get("draws") is not None else "put it in [ ]"
        reading.problems.value(node, "should be a list of edits, is one edit alone", hint)
        edits = replace(node.but(["draws"]), value=[node.but(["draws"])])
        node = replace(node, value={"edits": edits} | node.only(["draws"]).value)
    elif not node.is_table and not node.is_list:
        hint = f"write [{{edit: {node.value}}}]" if isinstance(node.value, str) else "write [] for no edits"
        reading.problems.value(node, f"should be a list of edits, is {node.described()}", hint)
        node = replace(node, value=[])
    return node if node.is_table else replace(node, value={"edits": node})


def _check_sweeps(reading: Reading, entries: list[Node], of_model: Node | None) -> None:
    """A swept parameter becomes a dimension, so no two edits of a variant may sweep one of the same name."""
    first: dict[str, Node] = dict(of_model.value) if of_model is not None and of_model.is_table else {}
    for entry in entries:
        sweep = entry.get("sweep")
        for name, values in sweep.value.items() if sweep is not None and sweep.is_table else ():
            if name in first:
                where = f", first on line {first[name].place.line}" if first[name].place.line else ""
                message = f"{name} is swept twice in this variant{where}"
                reading.problems.key(
                    values, message, "its values become a dimension of that name: sweep one of the two"
                )
            first.setdefault(name, values)


def _check_difference(reading: Reading, node: Node) -> None:
    """What stands beside a difference of two variants: edits of it and their draws, and no model of its own."""
    difference = node.get("difference")
    for key in ("model", "prompts") if difference is not None and difference.value is not None else ():
        given = node.get(key)
        if given is not None and given.value is not None:
            message = f"a difference of two variants has no {key} of its own: it has weights alone"
            reading.problems.key(given, message, "leave it out")


def has_own_prompts(variant: Node) -> bool:
    """Whether a variant brings prompts, right or wrong, and does not shuffle those of the run."""
    prompts = variant.get("prompts")
    return prompts is not None and prompts.get("source") is not None


def _check_draws(reading: Reading, draws: Node | None, read: list[EditRead], is_shuffled: bool) -> None:
    if draws is None or draws.value is None or draws.is_table or is_shuffled or any(e.edit is None for e in read):
        return
    if not any(each.edit.descriptor.random for each in read if each.edit is not None):
        random = [owned.descriptor.name for owned in reading.host.edits.values() if owned.descriptor.random]
        add = f", or add a random edit: {', '.join(sorted(random)[:6])}" if random else ""
        add += ", or shuffle its prompts: `prompts: {shuffle: tokens}`"
        message = "no edit of this variant is random, so all draws would be equal"
        reading.problems.key(draws, message, f"leave draws out{add}")


def _point(of_model: tuple[Values, tuple[ModelCall, ...]], chosen: tuple[tuple[Values, EditCall], ...]) -> Point:
    values = (*of_model[0], *(pair for taken, _ in chosen for pair in taken))
    return Point(values, tuple(call for _, call in chosen), of_model[1])


@dataclass(frozen=True)
class EditRead:
    """An edit as read: a call for each combination of swept values, and how it reads with every default filled in."""

    edit: Owned[Edit] | None
    choices: tuple[tuple[Values, EditCall], ...] = ()
    resolved: Mapping[str, Any] | None = None


def read_edit(reading: Reading, entry: Node) -> EditRead:
    """One entry of a list of edits."""
    entry = with_name(entry, blocks.EditBlock, reading.problems)
    edit = find("edit", entry.get("edit"), reading.host, reading.problems)
    model = reading.model(edit, entry) if edit is not None else None
    if model is not None and entry.is_table:
        entry = _with_current_names(reading, model, entry)
    known = names_at(model, ()) if model is not None else None
    values, ours, rest = split_keys(entry, blocks.EditBlock, reading.problems, known)
    if edit is None or known is None:
        return EditRead(edit)
    sweep = ours.get("sweep")
    swept = _known(reading, sweep, rest, known) if sweep is not None and sweep.is_table else {}
    lists = [checked_values(reading, node) for node in swept.values()]
    if math.prod(map(len, lists)) > MOST_POINTS:
        reading.problems.key(entry, f"its sweep has more than {MOST_POINTS:,} points")
        lists = [items[:1] for items in lists]
    layers, heads = (indices(values.layers), indices(values.heads)) if values else (None, None)
    choices = []
    for items in itertools.product(*lists):
        given = dict(zip(swept, items, strict=True))
        table = replace(rest, value=rest.value | given)
        at = ", ".join(f"{name} {node.described()}" for name, node in given.items())
        parameters = reading.parameters(edit, table, KEYS, at)
        if parameters is not None:
            plain = {k: v for k, v in parameters.canonical().items() if k not in parameters.paths()}
            taken = tuple((name, _taken(plain.get(name), node)) for name, node in given.items())
            choices.append((taken, EditCall(edit, parameters, layers, heads, entry.place)))
    return EditRead(edit, tuple(choices), _resolved(edit, choices, list(swept)))


def _with_current_names(reading: Reading, model: type[Parameters], entry: Node) -> Node:
    """An edit with parameters under the names that they have now, swept ones too."""
    ours = blocks.keys(blocks.EditBlock)
    given = with_current_names(model, entry.but(ours), reading.problems)
    entry = replace(entry, value=entry.only(ours).value | given.value)
    sweep = entry.get("sweep")
    if sweep is None or not sweep.is_table:
        return entry
    # Of the parameter itself alone: what is swept are values.
    names = with_current_names(model, sweep, reading.problems)
    return replace(entry, value=entry.value | {"sweep": names})


def _known(reading: Reading, sweep: Node, rest: Node, known: list[str]) -> dict[str, Node]:
    """The swept parameters by name; a misspelt one is noted and put right."""
    found: dict[str, Node] = {}
    for written, node in sweep.value.items():
        name = written
        if name not in known:
            reading.problems.key(node, "there is no such parameter to sweep", instead(name, known))
            meant = near(name, [k for k in known if k not in sweep.value and rest.get(k) is None], most=1)
            if not meant:
                continue
            name = meant[0]
        elif name in DIMENSIONS:
            reading.problems.key(node, "cannot be swept: results have a dimension of this name already")
        elif rest.get(name) is not None:
            reading.problems.key(node, "is swept here and given as well", "keep one of the two")
        found[name] = node
    return found


def _taken(canonical: Any, node: Node) -> Any:
    """The swept value as the parameters hold it: 1 is 1.0 where a number is wanted."""
    return canonical if isinstance(canonical, bool | int | float | str) else node.value


def indices(values: list[int] | None) -> tuple[int, ...] | None:
    """Layers or heads in order, each once."""
    return tuple(sorted(set(values))) if values else None


def _each(values: Iterable[Any]) -> list[Any]:
    """Each value once; lists too, which are no keys of a dict."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _resolved(edit: Owned[Edit], choices: list[tuple[Values, EditCall]], swept: list[str]) -> dict[str, Any]:
    if not choices:
        return {}
    call = choices[0][1]
    return {
        "edit": edit.descriptor.name,
        "layers": list(call.layers) if call.layers else None,
        "heads": list(call.heads) if call.heads else None,
        "sweep": {name: _each(dict(values)[name] for values, _ in choices) for name in swept},
        **{name: value for name, value in call.parameters.canonical().items() if name not in swept},
    }


def read_against(
    reading: Reading, node: Node | None, named: Mapping[str, Node] | None, variants: Mapping[str, Variant]
) -> tuple[str, ...]:
    """The null variants: each has several draws and no sweep of edits, and there is something to compare with it."""
    found: list[str] = []
    problems = reading.problems
    for item in [] if node is None or node.value is None else node.nodes if node.is_list else [node]:
        name = item.value
        if not isinstance(name, str):
            problems.value(item, f"should be the name of a variant, is {item.described()}")
        elif named is None:
            continue  # noted already: the variants are no table
        elif name not in named:
            problems.value(item, f"there is no variant {shortened(name)}", instead(name, named))
        elif name in found:
            problems.value(item, f"the variant {name} is named twice", "keep one")
        elif name in variants:
            _check_null(problems, item, variants[name])
            found.append(name)
            if len(named) == 1:
                message = f"there is no variant to compare with {name}"
                problems.value(item, message, "add the model itself to variants, as `trained: []`")
    return tuple(found)


def _check_null(problems: Problems, item: Node, variant: Variant) -> None:
    where = f" (line {variant.mark.line})" if variant.mark.line else ""
    if variant.draws is None or variant.draws < 2:
        has = "no draws" if variant.draws is None else "one draw"
        message = f"a null has 2 draws or more, and the variant {variant.name}{where} has {has}"
        edits = any(point.edits for point in variant.points)
        write = f"`{variant.name}: {{edits: [...], draws: 8}}`"
        if variant.draw_values:
            problems.value(item, message, "name more models in its draws")
        elif variant.prompts is not None:
            problems.value(item, message, f"write `{variant.name}: {{prompts: {{shuffle: tokens}}, draws: 8}}`")
        else:
            problems.value(item, message, f"write {write}" if edits else f"write {write} with a random edit")
    if any(name not in variant.swept_models for point in variant.points for name, _ in point.values):
        message = f"a null sweeps nothing but models, and the variant {variant.name}{where} sweeps"
        problems.value(item, message, "make a variant of its own for each value")
