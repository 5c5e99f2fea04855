"""The figures of a store: what the sections of all plugins return for it, for the page and for a notebook alike."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..contract.reference import resolve
from ..figures import BadFigure, Drawing, Figure, kinds
from ..guard import Guard
from .trajectories import NAME, SUMMARY, trajectories

if TYPE_CHECKING:
    from ..contract.descriptors import Owned, ReportSection
    from ..plugins.host import Host
    from ..store.read_results import Results


@dataclass(frozen=True)
class Section:
    """A section with its figures; or why it has none."""

    name: str
    summary: str
    figures: tuple[Figure, ...]
    failed: str = ""

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
    found = [_section(o, results) for o in owned if stored & set(o.descriptor.analyses)]
    return [*_of_host(results), *found]


def _of_host(results: Results) -> list[Section]:
    """The section of the host's own; none where no variant is swept over models."""
    try:
        figures = tuple(trajectories(results)) if results.name else ()
    except Exception as error:
        said = f"The trajectories could not be drawn: {type(error).__name__}: {error}"
        return [Section(NAME, SUMMARY, (), said)]
    return [Section(NAME, SUMMARY, figures)] if figures else []


def _section(owned: Owned[ReportSection], results: Results) -> Section:
    """One section; if it fails, the note says whose it is, and the others go on."""
    section, owner = owned.descriptor, owned.owner
    try:
        guard = Guard.of(owner)
        own = _apart(results) if guard.outside else results
        figures = guard.call(lambda: tuple(checked_figure(figure) for figure in resolve(section.section)(own)))
    except Exception as error:
        whose = f"{owner.plugin} ({owner.distribution} {owner.version})"
        said = f"The section {section.name} of the plugin {whose} could not be drawn: {type(error).__name__}: {error}"
        return Section(section.name, section.summary, (), said)
    return Section(section.name, section.summary, figures)


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
