"""docs/REPRODUCTION.md of the sources, their rows and the rows' numbers: pure functions from data to text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from judging import VerdictBroken, verdict

Row = Mapping[str, Any]
# For each row and model what was read: {row: {model: {"model": name, "numbers": {...}}}}.
Stored = Mapping[str, Mapping[str, Mapping[str, Any]]]
MODELS = ("builtin", "stories15m", "smollm2")
MOST_LISTED = 8


@dataclass(frozen=True)
class Known:
    """All that the page is made of: what the sources contain, the rows, the tables of formulas, sentences, numbers."""

    sources: Mapping[str, Any]
    rows: Sequence[Row]
    formulas: Sequence[Row]
    texts: Mapping[str, str]
    stored: Stored
    settings: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)


def page(known: Known) -> str:
    """The whole page."""
    sources, rows = known.sources, known.rows
    parts = ["# Reproduction", coverage(known), known.texts["introduction"].strip()]
    for name, source in sources.items():
        parts += [f"## {name}", _source(source), _places(source)]
        parts += [_row(row, known) for row in rows if _places_of(row, sources)[0][0] == name]
    parts += ["## Formulas", known.texts["formulas"].strip(), *(_formulas(table) for table in known.formulas)]
    return "\n\n".join([*parts, waiting(rows)]) + "\n"


def coverage(known: Known) -> str:
    """The first line: what is covered, and what is not."""
    places = [place for source in known.sources.values() for place in source["places"]]
    whole, left, lacking = (sum(len(p["at"]) for p in places if key in p) for key in ("at", "left", "asks"))
    kinds = [kind_of(row) for row in known.rows]
    stored = [row["id"] for row in known.rows if kind_of(row) == "stored"]
    models = ", ".join(f"{sum(model in known.stored.get(row, {}) for row in stored)} on {model}" for model in MODELS)
    claims = sum(len(table["rows"]) for table in known.formulas)
    return (
        f"The sources have {whole} sections, figures and topics: {whole - left} have a row below, {left} are left and "
        f"say why, and {lacking} of those with a row lack a part, which is named beside them. Of {len(kinds)} rows "
        f"{len(stored)} are remade from stored runs ({models}), {kinds.count('held')} are held by tests, and "
        f"{kinds.count('by_hand')} are by hand still; {claims} formulas are held by tests, or say why not."
    )


def kind_of(row: Row) -> str:
    """``stored`` where a row's numbers are read from runs, ``held`` where tests hold it, ``by_hand`` where it waits."""
    kinds = [kind for kind, key in (("stored", "numbers"), ("held", "held"), ("by_hand", "by_hand")) if key in row]
    if len(kinds) != 1:
        raise ValueError(
            f"row {row['id']}: one of numbers, held and by_hand is wanted, not {', '.join(kinds) or 'none'}"
        )
    return kinds[0]


def _source(source: Mapping[str, Any]) -> str:
    return f"{source['author']}, *{source['title']}* ({source['year']}); its model: {source['model']}."


def _places(source: Mapping[str, Any]) -> str:
    lines = ["| place | what is there | rows, or why none | what its rows lack |", "|---|---|---|---|"]
    for place in source["places"]:
        links = ", ".join(f"[{row}](#{row})" for row in place.get("rows", ()))
        cells = (_joined(place["at"]), place["what"], links or f"left: {place['left']}", place.get("asks", ""))
        lines.append(f"| {' | '.join(map(_escaped, cells))} |")
    return "\n".join(lines)


def _joined(at: Sequence[str]) -> str:
    """Places in words: "figures A.1 to A.8" where they follow each other, else one after another."""
    if len(at) > 3 and all(each.startswith("figure ") for each in at):
        return f"figures {at[0].removeprefix('figure ')} to {at[-1].removeprefix('figure ')}"
    return ", ".join(at)


def _places_of(row: Row, sources: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, _joined(place["at"]))
        for name, source in sources.items()
        for place in source["places"]
        if row["id"] in place.get("rows", ())
    ]


def _row(row: Row, known: Known) -> str:
    sources, stored = known.sources, known.stored
    at = [f"{name} {places}" for name, places in _places_of(row, sources)]
    files = [f"`examples/{name}`" for name in row.get("run", ())]
    files += [f"`{path}`" for key in ("tests", "scripts") for path in row.get(key, ())]
    head = f"### {row['id']}\n\n{'; '.join(at)}: *{row['says']}*. {', '.join(files)}."
    if kind_of(row) == "by_hand":
        return f"{head}\n\n*By hand.* {row['by_hand']}\n\n**{row['verdict']}**"
    if kind_of(row) == "held":
        return f"{head}\n\n{row['held']}\n\n**{row['verdict']}**"
    found = {m: stored[row["id"]][m] for m in MODELS if m in stored.get(row["id"], {})}
    other = [model for model, one in found.items() if set(one["numbers"]) != set(row["numbers"])]
    if other:
        raise VerdictBroken(
            f"{row['id']}: numbers on {', '.join(other)} are of another reading: read them anew, --store"
        )
    if not found:
        raise VerdictBroken(f"row {row['id']} has no numbers yet: run it with --store")
    said = verdict(row["verdict"], {model: one["numbers"] for model, one in found.items()}, row["id"])
    earlier = f"\n\n*By hand, of earlier runs.* {row['earlier'].strip()}" if "earlier" in row else ""
    return f"{head}\n\n{_table(row, found)}{_asked_less(row, found, known)}{earlier}\n\n**{said}**"


def _asked_less(row: Row, found: Mapping[str, Any], known: Known) -> str:
    """What was asked of the run file on a model where it is not all of it."""
    less = known.settings.get(row["run"][0], {})
    told = [f"{model} `{', '.join(less[model])}`" for model in found if model in less]
    return f"\n\nNot all that the run file has was asked for: {'; '.join(told)}." if told else ""


def _table(row: Row, found: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for each number, a column for what was published, each model and its twins, but for empty ones."""
    lines = [
        [
            "",
            "published",
            *(head for m, one in found.items() for head in (one["model"] if m == "builtin" else m, "its twins")),
        ]
    ]
    for name, spec in row["numbers"].items():
        cells = [spec["says"] + (f", {spec['unit']}" if "unit" in spec else ""), str(spec.get("published", ""))]
        for one in found.values():
            cells += _cells(one["numbers"][name], spec.get("show", ".3g"))
        lines.append(cells)
    kept = [0, *(n for n in range(1, len(lines[0])) if any(cells[n] for cells in lines[1:]))]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(_escaped(cells[n]) for n in kept)} |" for cells in lines)


def _cells(number: Mapping[str, Any], show: str) -> list[str]:
    beside = []
    for null, twins in number["nulls"].items():
        p = f", p {twins['p']:.2g}" if isinstance(twins.get("p"), float) else ""
        beside.append(f"{null} {shown(twins['mean'], twins['sd'], show)}{p}")
    rung = number.get("rung")
    told = [f"explained by {rung}"] if isinstance(rung, str) else []
    return [shown(number["value"], number["error"], show), "; ".join([*beside, *told])]


def shown(value: Any, spread: Any, show: str) -> str:
    """A number with its spread; a list with its largest spread, a long one by its least, median and most."""
    if isinstance(value, list):
        spreads = [each for each in spread if each is not None] if isinstance(spread, list) else []
        around = f" (+- {max(spreads):.1g} at most)" if spreads else ""
        if len(value) <= MOST_LISTED:
            return ", ".join("never" if each is None else format(each, show) for each in value) + around
        inner = sorted(each for each in value if each is not None)
        return f"{inner[0]:{show}} to {inner[-1]:{show}}, median {inner[len(inner) // 2]:{show}}{around}"
    if isinstance(value, str):
        return value or "(nothing)"
    if value is None:
        return "never"
    return format(value, show) + (f" +- {spread:.1g}" if spread is not None else "")


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _formulas(table: Row) -> str:
    lines = [
        f"### {table['id']}",
        "",
        f"{table['title']}.",
        "",
        "| claim | holds? | right | test |",
        "|---|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(map(_escaped, row))} |" for row in table["rows"])])


def waiting(rows: Iterable[Row]) -> str:
    """The end of the page: which rows are by hand still, as a whole or in part."""
    whole, part = ([row["id"] for row in rows if key in row] for key in ("by_hand", "earlier"))
    said = f"By hand still, {len(whole)} rows: {', '.join(whole)}." if whole else "No row is by hand as a whole."
    return said + (f" In part, {len(part)}: {', '.join(part)}." if part else "")
