"""The figures of a store as files for a paper: each under a stable name, tables as CSV and LaTeX too, and an index.

The index (figures.json) holds of each file what it shows, from which arrays, and its digest: so that what somebody
else made, or changed since, is not written over without being asked for. captions.txt is for people.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from ..contract.errors import InputError, advice_for, did_you_mean
from ..figures import Figure, Passages, TableRows, View
from ..store.disk import replace_whole
from ..version import VERSION
from .matplotlib_figures import dials_of, still, stilled
from .paper import FORMATS, Places, inches, sheet, style, usual, written
from .written_tables import as_csv, as_latex

INDEX, CAPTIONS = "figures.json", "captions.txt"
LONGEST = 90  # letters of a name
# What is called with the number of a figure that cannot be drawn.
Tell: TypeAlias = Callable[[int, Exception], object]


@dataclass(frozen=True)
class Outline:
    """The names of a figure's dials, and what files it has beside pictures."""

    dials: tuple[str, ...]
    more: tuple[str, ...]


@dataclass(frozen=True)
class Named:
    """A figure under its name, and the section and run that it is of."""

    name: str
    section: str
    figure: Figure
    run: str = ""

    @cached_property
    def outline(self) -> Outline:
        """What is known of its drawing, which is as large as its figure and is not kept; nothing if there is none."""
        try:
            drawing, _ = still(self.figure)
        except Exception:  # it is told where it is drawn
            return Outline((), ())
        more = ("csv", "tex") if isinstance(drawing, TableRows) else ("txt",) if isinstance(drawing, Passages) else ()
        return Outline(tuple(dial.name for dial in dials_of(drawing)), more)


@dataclass(frozen=True, kw_only=True)
class Look:
    """How figures are drawn: formats, width (None: a page for what is wide, else a column), places, with titles."""

    formats: Sequence[str] = ("pdf",)
    width: str | None = None
    at: Places = field(default_factory=dict)
    titles: bool = False


@dataclass(frozen=True)
class Written:
    """A figure that was written: its name, its files, how wide it is in mm, its places and what is to be said of it."""

    name: str
    files: tuple[str, ...]
    kind: str
    wide: float
    places: str
    notes: tuple[str, ...]


def named(given: Sequence[tuple[str, Figure]], run: str = "") -> list[Named]:
    """Names of figures, each with its section: of both in letters that any file system and LaTeX take.

    A figure keeps its name as long as its section and title stay: of two that would have one, the names say from which
    variant and result each is, and then which it is.
    """
    slugs = [_slug(" ".join(part for part in (run, section, figure.title) if part)) for section, figure in given]
    for of_source in (True, False):
        held: dict[str, list[int]] = {}
        for place, slug in enumerate(slugs):
            held.setdefault(slug, []).append(place)
        for places in (each for each in held.values() if len(each) > 1):
            for number, place in enumerate(places, 1):
                source = next(iter(given[place][1].sources), None)
                if of_source and source is not None:
                    slugs[place] = _slug(f"{slugs[place]} {source.variant} {source.label}")
                elif not of_source and number > 1:
                    slugs[place] = f"{slugs[place]}-{number}"
    return [Named(slug, section, figure, run) for slug, (section, figure) in zip(slugs, given, strict=True)]


def _slug(text: str) -> str:
    ascii_ = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^a-z0-9]+", "-", ascii_.lower()).strip("-")
    slug = re.sub(r"\b([a-z]+)(-\1\b)+", r"\1", slug)  # as in loss-loss-loss
    if slug and len(slug) <= LONGEST and ascii_.isascii() and len(ascii_) == len(text):
        return slug
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{slug[:LONGEST].rstrip('-')}-{digest}".lstrip("-")


def chosen(found: Sequence[Named], only: Sequence[str], at: Places) -> list[Named]:
    """Those that a pattern names: by part of the name, section or title, or by the whole of it with * and ?."""

    def fits(each: Named, pattern: str) -> bool:
        texts = [text.lower() for text in (each.name, each.section, each.figure.title)]
        wild = any(sign in pattern for sign in "*?[")
        return any(fnmatchcase(text, pattern.lower()) if wild else pattern.lower() in text for text in texts)

    for pattern in only:
        if not any(fits(each, pattern) for each in found):
            names = [name for each in found for name in (each.section, each.name)]
            raise InputError(f"no figure is called {pattern!r}{did_you_mean(pattern, dict.fromkeys(names))}")
    kept = [each for each in found if not only or any(fits(each, pattern) for pattern in only)]
    known = dict.fromkeys(name for each in kept for name in each.outline.dials) if at else {}
    for name in at:
        if kept and name not in known:
            has = did_you_mean(name, known) if known else ": none of them has a dimension to choose from"
            raise InputError(f"no figure has places of {name!r}{has}")
    return kept


def write_figures(found: Sequence[Named], out: Path, look: Look, replace: bool, tell: Tell) -> list[Written]:
    """Write figures into a folder, with an index; ``tell`` is called with the number of one that cannot be drawn.

    Files that are in the way and were not made here, or were changed since, are an error before anything is written,
    unless ``replace``.
    """
    for form in look.formats:
        if form not in FORMATS:
            raise InputError(f"there is no format {form!r}{did_you_mean(form, FORMATS)}")
    if look.width is not None:
        inches(look.width)
    index = _index(out)
    if not replace:
        _refuse_others(found, out, look, index)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {advice_for(error) or error}") from error
    made = []
    with style():
        for place, each in enumerate(found):
            try:
                done, record, files = _drawn(each, look)
            except Exception as error:
                tell(place, error)
                continue
            for name, content in files.items():
                replace_whole(out / name, content)
            index[done.name] = record
            made.append(done)
    text = json.dumps({"gausslens": VERSION, "figures": index}, indent=1, ensure_ascii=False)
    replace_whole(out / INDEX, f"{text}\n".encode("utf-8", "backslashreplace"))
    replace_whole(out / CAPTIONS, _captions(index).encode("utf-8", "backslashreplace"))
    return made


def _called(each: Named, look: Look) -> str:
    """The name of the files: with the places that were asked for, where the figure has them."""
    places = " ".join(f"{name} {' '.join(labels)}" for name, labels in look.at.items() if name in each.outline.dials)
    return f"{each.name}-{_slug(places)}" if places else each.name


def _drawn(each: Named, look: Look) -> tuple[Written, dict[str, Any], dict[str, bytes]]:
    """A figure as files by name, as it is told, and as it stands in the index."""
    figure, name = each.figure, _called(each, look)
    whole = figure.drawing()
    drawing, caption = stilled(whole, figure.caption)
    wide = inches(look.width or usual(drawing))
    made = sheet(drawing, figure.title, wide, look.at, look.titles)
    files = {f"{name}.{form}": written(made, form) for form in look.formats}
    if isinstance(drawing, TableRows):
        files[f"{name}.csv"] = as_csv(drawing).encode("utf-8", "backslashreplace")
        files[f"{name}.tex"] = as_latex(drawing, figure.title).encode("utf-8", "backslashreplace")
    if isinstance(drawing, Passages):
        texts = "\n\n".join(f"{text.name}\n{text.text}" for text in drawing.texts)
        files[f"{name}.txt"] = f"{texts}\n".encode("utf-8", "backslashreplace")
    notes = list(made.notes)
    if isinstance(whole, View):
        notes.append("What stands in for the plugin's own view, which a page alone shows.")
    done = Written(
        name,
        tuple(files),
        type(figure).__name__,
        float(made.canvas.get_size_inches()[0]) * 25.4,
        made.places,
        tuple(notes),
    )
    record = {
        "section": each.section,
        **({"run": each.run} if each.run else {}),
        "title": figure.title,
        "caption": caption,
        "units": figure.units,
        "places": made.places,
        "notes": notes,
        "width_mm": round(done.wide, 1),
        "sources": [source.line for source in figure.sources],
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    return done, record, files


def _index(out: Path) -> dict[str, Any]:
    """What the folder's index holds of figures that were written before; nothing where it is none of ours."""
    try:
        read = json.loads((out / INDEX).read_text(encoding="utf-8"))
        return dict(read["figures"]) if "gausslens" in read else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _refuse_others(found: Sequence[Named], out: Path, look: Look, index: Mapping[str, Any]) -> None:
    """An error where a file is in the way that was not made here, or was changed since."""
    digests = {name: digest for record in index.values() for name, digest in record.get("files", {}).items()}
    names = [f"{_called(each, look)}.{kind}" for each in found for kind in (*look.formats, *each.outline.more)]
    changed = [name for name in names if (out / name).exists() and digests.get(name) != _digest(out / name)]
    changed += [name for name in (INDEX, CAPTIONS) if not index and (out / name).exists()]
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise InputError(
            f"{out} holds files that would be written over, and that were not made here or were changed since: "
            f"{', '.join(changed[:3])}{more}. Choose another folder, or replace them (--replace, replace=True)"
        )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _captions(index: Mapping[str, Any]) -> str:
    """What every figure shows, for people."""
    parts = []
    for name, record in index.items():
        units = f" Units: {record['units']}." if record["units"] not in ("", "1") else ""
        shown = f" Shown: {record['places']}." if record["places"] else ""
        said = " ".join([f"{record['caption']}{units}{shown}", *record["notes"]])
        parts.append(f"{name}\n  {record['title']}\n  {said}\n  {'; '.join(record['sources'])}\n")
    return "\n".join(parts)
