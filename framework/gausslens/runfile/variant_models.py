"""The model of a variant: a path whose {names} sweeps and draws fill in, and differences of two variants."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.study import Difference, ModelCall, Point, Variant
from .model_and_prompts import ELSEWHERE, exists, local_place, read_model_block, resolved_model
from .nodes import Node
from .problems import instead, shortened
from .sweeps import DIMENSIONS, Values, checked_values

if TYPE_CHECKING:
    from .blocks import Reading

MOST_MODELS = 10_000
ALL = "all"
_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Rates are written so: 0.001, 1e-3, 2.5e-4.
_FRACTION = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?(e[+-]?[0-9]{1,2})?")
# So many names are listed where a pattern matches none of them, and so many paths that are not there.
LISTED, MISSED = 12, 4


@dataclass(frozen=True)
class VariantModels:
    """What `model:`, `sweep:` and `draws:` of a variant say of models.

    ``points`` are the values of the sweep, each with a model for every draw (one where draws are not models, none where
    the model is the run's); ``draws`` the values that fill in the path, of each draw that is a model.
    """

    points: tuple[tuple[Values, tuple[ModelCall, ...]], ...] = (((), ()),)
    draws: tuple[Values, ...] = ()
    swept: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict)


def read_variant_models(reading: Reading, variant: Node, of_run: Node | None) -> VariantModels | None:
    """The models of a variant; None where something about them is wrong, which is noted."""
    before = len(reading.problems)
    table = variant.get("model")
    tables = {key: node for key in ("sweep", "draws") if (node := variant.get(key)) is not None and node.is_table}
    given = {key: dict(node.value) for key, node in tables.items()}
    if table is None or not table.is_table:
        for key, node in tables.items():
            hint = 'add one, as `model: {path: "checkpoints/step{step}"}`'
            if key == "sweep":
                hint += "; parameters of an edit are swept within the edit"
            reading.problems.key(node, "fills in the path of a model, and this variant has no `model:`", hint)
        return VariantModels() if len(reading.problems) == before else None
    table = _inherited(table, of_run)
    path = table.get("path")
    if path is None or not isinstance(path.value, str):
        read_model_block(replace(reading, live=None, mapping=None), table)  # it notes what is wrong
        return None
    names = list(dict.fromkeys(_NAME.findall(path.value)))
    _check_names(reading, path, names, given)
    if len(reading.problems) > before:
        return None
    found = _filled(reading, path, {**given.get("sweep", {}), **given.get("draws", {})})
    if found is None or len(reading.problems) > before:
        return None
    return _called(reading, table, path, given, found)


def _inherited(table: Node, of_run: Node | None) -> Node:
    """With dtype and device of the run's model, where it does not say its own: other numbers would be compared."""
    known = {key: node for key in ("dtype", "device") if of_run is not None and (node := of_run.get(key)) is not None}
    return replace(table, value={**known, **table.value})


def _check_names(reading: Reading, path: Node, names: Sequence[str], given: Mapping[str, Mapping[str, Node]]) -> None:
    problems = reading.problems
    for key, nodes in given.items():
        for name, node in nodes.items():
            if name not in names:
                hint = instead(name, names) if names else f'as `path: ".../{{{name}}}"`'
                problems.key(node, f"fills in nothing: the path of this variant's model has no {{{name}}}", hint)
            elif key == "sweep" and name in DIMENSIONS:
                problems.key(node, "cannot be swept: results have a dimension of this name already")
            elif key == "draws" and name in given.get("sweep", {}):
                problems.key(node, "is swept and drawn", "keep one of the two")
    known = {name for nodes in given.values() for name in nodes}
    lacking = [name for name in names if name not in known]
    if lacking:
        what = ", ".join(f"{{{name}}}" for name in lacking)
        hint = f"add `sweep: {{{lacking[0]}: [...]}}` to the variant, or `{ALL}` for what is there"
        problems.value(path, f"nothing fills in {what}", hint)


@dataclass(frozen=True)
class _Filled:
    """The values of each name, and for any choice of them the path."""

    values: Mapping[str, tuple[Any, ...]]
    paths: Mapping[tuple[Any, ...], str]

    def path(self, chosen: Mapping[str, Any]) -> str:
        return self.paths[tuple(chosen[name] for name in self.values)]


def _filled(reading: Reading, path: Node, given: Mapping[str, Node]) -> _Filled | None:
    """Every name with its values, and every path; those that are not there are told together."""
    problems, before = reading.problems, len(reading.problems)
    local = not path.value.startswith(ELSEWHERE)
    there = list(matching(local_place(reading, path.value))) if local and given else []
    values: dict[str, tuple[Any, ...]] = {}
    for name, node in given.items():
        if node.value == ALL:
            found = sorted(_values([each[name] for each in there]))
            if not found:
                problems.value(node, *_none_there(reading, path.value, local))
                return None
            values[name] = tuple(found)
            _check_once(reading, node, name, there, found)
        elif not node.is_list:
            problems.value(node, f"should be a list of values, or {ALL}, is {node.described()}")
            return None
        else:
            values[name] = tuple(item.value for item in checked_values(reading, node))
    if math.prod(map(len, values.values())) > MOST_MODELS:
        problems.value(path, f"more than {MOST_MODELS:,} models are named here")
    if len(problems) > before:
        return None
    # A step is a number: 100 is also what a name like step000100 says.
    known = {tuple(map(_number, each.values())): each for each in there if set(each) == set(values)}
    order = list(there[0]) if there else list(values)
    paths = {}
    for chosen in itertools.product(*values.values()):
        told = dict(zip(values, chosen, strict=True))
        plain = _written(path.value, {name: str(value) for name, value in told.items()})
        named = known.get(tuple(_number(str(told[name])) for name in order))
        is_there = not local or exists(local_place(reading, plain))
        paths[chosen] = plain if is_there or named is None else _written(path.value, named)
    missing = [p for p in paths.values() if local and not exists(local_place(reading, p))]
    if missing:
        shown = ", ".join(missing[:MISSED]) + (f" and {len(missing) - MISSED} more" if len(missing) > MISSED else "")
        what = f"{len(missing)} of {len(paths)} models are not there: {shown}"
        if len(paths) == 1:
            what = f"there is no directory {shortened(str(local_place(reading, missing[0])), 200)}"
        problems.value(path, what, _what_is_there(local_place(reading, path.value)))
        return None
    return _Filled(values, paths)


def _check_once(
    reading: Reading, node: Node, name: str, there: Sequence[Mapping[str, str]], found: Sequence[Any]
) -> None:
    """Names that differ and say one number, as 010 and 10: only one of them would be read."""
    seen: dict[tuple[Any, ...], str] = {}
    for each in there if not isinstance(found[0], str) else ():
        rest = tuple(text for other, text in each.items() if other != name)
        first = seen.setdefault((rest, _number(each[name])), each[name])
        if first != each[name]:
            message = f"{first} and {each[name]} are both there, and both are {_number(first)}"
            reading.problems.value(node, message, "list the values, or rename one of the two")
            return


def _called(
    reading: Reading, table: Node, path: Node, given: Mapping[str, Mapping[str, Node]], filled: _Filled
) -> VariantModels | None:
    """Each model as a call."""
    swept, drawn = (list(given.get(key, ())) for key in ("sweep", "draws"))
    alone = replace(reading, live=None, mapping=None)
    calls: dict[str, ModelCall | None] = {}
    points = []
    for point in itertools.product(*(filled.values[name] for name in swept)):
        at = dict(zip(swept, point, strict=True))
        models = []
        for draw in itertools.product(*(filled.values[name] for name in drawn)):
            text = filled.path(at | dict(zip(drawn, draw, strict=True)))
            if text not in calls:
                calls[text] = read_model_block(
                    alone, replace(table, value={**table.value, "path": replace(path, value=text)})
                )
            models.append(calls[text])
        points.append((tuple(at.items()), tuple(m for m in models if m is not None)))
    draws = [tuple(zip(drawn, draw, strict=True)) for draw in itertools.product(*(filled.values[n] for n in drawn))]
    first = next(iter(calls.values()), None)
    if first is None or None in calls.values():
        return None
    resolved: dict[str, Any] = {"model": resolved_model(first)}
    if swept or drawn:
        resolved["model"]["path"] = _whole(reading, path.value)
    if swept:
        resolved["sweep"] = {name: list(filled.values[name]) for name in swept}
    if drawn:
        resolved["draws"] = {name: list(filled.values[name]) for name in drawn}
    return VariantModels(tuple(points), tuple(draws) if drawn else (), tuple(swept), resolved)


def read_difference(reading: Reading, node: Node, variants: Mapping[str, Variant | None], variant: Variant) -> Variant:
    """A variant whose weights are those of one variant less those of another, both named; mistakes are noted."""
    problems = reading.problems
    sides = []
    for item in node.nodes:
        other = variants.get(item.value) if isinstance(item.value, str) else None
        if not isinstance(item.value, str) or item.value not in variants:
            known = [name for name in variants if name != variant.name]
            problems.value(item, f"there is no variant {shortened(item.value)}", instead(str(item.value), known))
        elif other is not None and (reason := _no_side(other)) is not None:
            problems.value(item, f"a difference is of two models, and {other.name} {reason}")
        elif other is not None:
            sides.append(other)
    if len(sides) != 2:
        return variant
    of, less = sides
    if of.name == less.name:
        problems.value(node, f"the difference of {of.name} from itself is nothing", "name two variants")
        return variant
    points = []
    for mine in of.points:
        theirs = [p for p in less.points if set(p.values) <= set(mine.values)]
        if len(theirs) != 1:
            message = f"{less.name} is swept, and {of.name} does not say which point of it is meant"
            problems.value(node, message, "name a variant without a sweep, or with the same one")
            return variant
        pair = Difference(_side(mine), _side(theirs[0]), node.place)
        points += [replace(p, values=(*mine.values, *p.values), difference=pair) for p in variant.points]
    return replace(variant, points=tuple(points), swept_models=of.swept_models)


def _no_side(variant: Variant) -> str | None:
    if variant.draws is not None:
        return "has draws"
    if variant.points and variant.points[0].difference is not None:
        return "is a difference itself"
    return None


def _side(point: Point) -> tuple[ModelCall | None, Any]:
    return point.model(None, None), point.edits


def _whole(reading: Reading, text: str) -> str:
    return text if text.startswith(ELSEWHERE) else str(local_place(reading, text))


def matching(whole: Path) -> Iterator[dict[str, str]]:
    """What the {names} of a path stand for, for every path that is there."""
    yield from _matching(Path(whole.anchor), whole.parts[1:], {})


def _matching(place: Path, parts: Sequence[str], found: dict[str, str]) -> Iterator[dict[str, str]]:
    if not parts:
        yield found
        return
    first, *rest = parts
    if not _NAME.search(first):
        if exists(place / first):
            yield from _matching(place / first, rest, found)
        return
    pattern = _pattern(first, found)
    for name in _names(place):
        if name.startswith(".") and not first.startswith("."):
            continue  # hidden, as .cache and .lock: a pattern means them only where it says so
        match = pattern.fullmatch(name)
        # What a link names that leads nowhere is missing, and not passed over.
        if match is not None and (exists(place / name) or (place / name).is_symlink()):
            yield from _matching(place / name, rest, found | match.groupdict())


def _pattern(part: str, found: Mapping[str, str]) -> re.Pattern[str]:
    """One name of a directory as a pattern; a {name} that was met before stands for the same."""
    made, last, seen = "", 0, set[str]()
    for match in _NAME.finditer(part):
        name = match[1]
        known = re.escape(found[name]) if name in found else f"(?P={name})" if name in seen else f"(?P<{name}>.+?)"
        made += re.escape(part[last : match.start()]) + known
        seen.add(name)
        last = match.end()
    return re.compile(made + re.escape(part[last:]))


def _names(place: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(place))
    except OSError:
        return []


def _values(texts: Sequence[str]) -> list[Any]:
    """Texts as the values they say: numbers where all are."""
    once = list(dict.fromkeys(texts))
    numbers = [_number(text) for text in once]
    return list(dict.fromkeys(numbers)) if all(isinstance(n, int | float) for n in numbers) else once


def _number(text: str) -> Any:
    """The number that a text is, else the text."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    return float(text) if _FRACTION.fullmatch(text) else text


def _written(template: str, values: Mapping[str, str]) -> str:
    return _NAME.sub(lambda match: values[match[1]], template)


def _none_there(reading: Reading, template: str, local: bool) -> tuple[str, str]:
    if not local:
        return f"{ALL} is what a directory holds, and {shortened(template)} is none", "list the values"
    return f"nothing matches {shortened(template, 200)}", _what_is_there(local_place(reading, template))


def _what_is_there(place: Path) -> str:
    """The names in the first directory of a path that has a {name}, or that ends what is there."""
    whole, parts = Path(place.anchor), place.parts[1:]
    for part in parts:
        if _NAME.search(part) or not exists(whole / part):
            break
        whole /= part
    names = _names(whole)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"in {whole} there {'is' if len(names) < 2 else 'are'} {', '.join(names[:LISTED]) or 'nothing'}{more}"
