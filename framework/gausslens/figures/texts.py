"""Texts side by side."""

from __future__ import annotations

from dataclasses import dataclass

from .drawing import Passages, Text
from .figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class Texts(Figure):
    """Texts side by side, as what each variant generates."""

    texts: tuple[Text, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("texts", tuple(Text(str(t.name), str(t.text)) for t in self.texts))

    def drawing(self) -> Passages:
        """The texts."""
        return Passages(texts=self.texts, wide=len(self.texts) > 2)
