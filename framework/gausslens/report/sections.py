"""The figures of a store: what the sections of all plugins return for it, for the page and for a notebook alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..contract.reference import resolve
from ..figures import BadFigure, Drawing, Figure, kinds
from ..guard import Guard
from .trajectories import NAME, QUESTION, SUMMARY, trajectories

if TYPE_CHECKING:
    from ..contract.descriptors import Owned, ReportSection
    from ..plugins.host import Host
    from ..store.read_results import Results


@dataclass(frozen=True)
class Undrawn:
    """What of a section could not be drawn: what is said of it, the error, and how many figures stand before it."""

    said: str
    error: BaseException
    place: int

    def __str__(self) -> str:
        return self.said


@dataclass(frozen=True)
class Section:
    """A section: the figures that are in order, and what could not be drawn. ``whose`` is how it is named in full."""

    name: str
    summary: str
    whose: str
    figures: tuple[Figure, ...]
    undrawn: tuple[Undrawn, ...] = ()
    question: str = ""

    def made_from(self, label: str | None = None, variant: str | None = None) -> list[Figure]:
        """Its figures made from a result or from its comparison with a null; None keeps all."""

        def wanted(figure: Figure) -> bool:
            return any(
                (label is None or source.label.split(".against.")[0] == label)
                and (variant is None or source.variant == variant)
                for source in figure.sources
            )

        return [figure for figure in self.figures if (label is None and variant is None) or wanted(figure)]


def sections(results: Results, host: Host) -> list[Section]:
    """Trajectories where models are swept, and the sections of all plugins whose analyses have a result, in order."""
    stored = {step.analysis for variant, label in results for step in results.steps(variant, label)}
    owned = sorted(host.sections.values(), key=lambda o: (o.descriptor.order, o.descriptor.name))
    first = host.first_names()
    named = copy.copy(results)
    named.names = first
    found = [_section(o, named) for o in owned if stored & {first.get(n, n) for n in o.descriptor.analyses}]
    return [*_of_host(results), *found]


def _of_host(results: Results) -> list[Section]:
    """The section of the host's own; none where no variant is swept over models."""
    whose = f"the section {NAME}"
    figures, undrawn = _taken(whose, lambda: trajectories(results) if results.name else ())
    return [Section(NAME, SUMMARY, whose, figures, undrawn, QUESTION)] if figures or undrawn else []


def _section(owned: Owned[ReportSection], results: Results) -> Section:
    section, owner = owned.descriptor, owned.owner
    whose = f"the section {section.name} of the plugin {owner.plugin} ({owner.distribution} {owner.version})"
    guard = Guard.of(owner)
    own = _apart(results) if guard.outside else results
    try:
        figures, undrawn = guard.call(_taken, whose, lambda: resolve(section.section)(own))
    except Exception as error:  # it interrupted, and no one had asked for that
        figures, undrawn = (), (failed(whose, error, 0),)
    return Section(section.name, section.summary, whose, figures, undrawn, section.question)


def _taken(whose: str, given: Callable[[], object]) -> tuple[tuple[Figure, ...], tuple[Undrawn, ...]]:
    """The figures of a section, which may be a generator: one that is malformed or an error in between costs no other.

    Whatever it raises is told and is the end of this section alone; only who interrupts the run is heard.
    """
    figures: list[Figure] = []
    undrawn: list[Undrawn] = []
    number = 0
    try:
        for number, figure in enumerate(_each(given()), 1):
            try:
                figures.append(checked_figure(figure))
            except BaseException as error:
                undrawn.append(failed(f"figure {number} of {whose}", error, len(figures)))
    except BaseException as error:
        beyond = f" beyond figure {number}" if number else ""
        undrawn.append(failed(whose, error, len(figures), beyond))
    return tuple(figures), tuple(undrawn)


def _each(given: object) -> Iterator[object]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise BadFigure(f"a section returns a list of figures, or yields them, not {type(given).__name__}")
    return iter(given)


def failed(what: str, error: BaseException, place: int, beyond: str = "") -> Undrawn:
    """That something could not be drawn, in a sentence; an interrupt is none of it, and is raised again."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    said = f"{what[0].upper()}{what[1:]} could not be drawn{beyond}: {type(error).__name__}: {error}"
    return Undrawn(said, error, place)


def _apart(results: Results) -> Results:
    """The same results, sharing nothing with those of other sections but the files."""
    reader = vars(results)["_reader"]
    return copy.deepcopy(results, {id(reader): reader})


def checked_figure(figure: object) -> Figure:
    """The figure, if it is one that can be drawn."""
    if not isinstance(figure, Figure):
        raise BadFigure(f"a section returns figures ({', '.join(kinds())}), not {type(figure).__name__}")
    if not isinstance(figure.drawing(), Drawing):
        raise BadFigure(f"{type(figure).__name__} {figure.title!r}: its drawing() gives no Drawing")
    return figure
