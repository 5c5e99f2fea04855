"""What every figure says, and how its parts are checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contract.errors import GausslensError
from .drawing import Dial, Drawing

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BadFigure(GausslensError):
    """A figure whose parts do not fit together."""


@dataclass(frozen=True)
class Source:
    """Where the numbers of a figure are in the store: the step, by variant and label, and the array.

    ``run`` is named where a page shows several runs.
    """

    variant: str
    label: str
    array: str
    run: str = ""

    @property
    def line(self) -> str:
        """The line of Python that gets the array back."""
        of = f"store.run({self.run!r})" if self.run else "store"
        return f"{of}[{self.variant!r}, {self.label!r}][{self.array!r}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Figure(ABC):
    """What all figures say. A kind adds its fields, checks them in ``__post_init__``, and has a ``drawing``."""

    title: str
    caption: str
    sources: tuple[Source, ...]
    units: str = ""

    def __post_init__(self) -> None:
        for what in ("title", "caption", "units"):
            if not isinstance(getattr(self, what), str):
                raise self._bad(f"its {what} is not text")
        if not self.title.strip() or not self.caption.strip():
            raise self._bad("a figure needs a title and a caption")
        self._set("sources", tuple(self.sources))
        if not all(isinstance(s, Source) for s in self.sources):
            raise self._bad("its sources are not of the type Source")

    @abstractmethod
    def drawing(self) -> Drawing:
        """What there is to draw; the page and matplotlib draw it."""

    @property
    def written_units(self) -> str:
        """The units as they are shown; nothing for a pure number."""
        return "" if self.units == "1" else self.units

    def _bad(self, why: str) -> BadFigure:
        return BadFigure(f"{type(self).__name__} {self.title!r}: {why}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _numbers(self, what: str, values: Any, dimensions: int) -> NDArray[np.float64]:
        try:
            array = np.array(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise self._bad(f"{what} is not an array of numbers") from None
        if array.ndim != dimensions:
            raise self._bad(f"{what} has shape {array.shape}; it must have {dimensions} dimension(s)")
        array.setflags(write=False)
        return array

    def _maps(self, values: Any, dials: Iterable[Dial]) -> tuple[NDArray[np.float64], tuple[Dial, ...]]:
        given = tuple(dials)
        array = self._numbers("values", values, 2 + len(given))
        made = []
        for dial, count in zip(given, array.shape, strict=False):
            labels = self._labels(f"labels of the dial {dial.name!r}", dial.labels, count)
            if not 0 <= dial.start < count:
                raise self._bad(f"the dial {dial.name!r} starts at {dial.start} and has {count} places")
            made.append(Dial(str(dial.name), labels, int(dial.start)))
        return array, tuple(made)

    def _labels(self, what: str, labels: Iterable[Any], count: int) -> tuple[str, ...]:
        made = tuple(str(label) for label in labels)
        if len(made) != count:
            raise self._bad(f"{len(made)} {what} for {count} values")
        return made
