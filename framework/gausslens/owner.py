"""Who contributes what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

D = TypeVar("D")


@dataclass(frozen=True)
class Owner:
    """Who contributes a descriptor."""

    plugin: str
    distribution: str
    version: str


@dataclass(frozen=True)
class Owned(Generic[D]):
    """A descriptor and its owner."""

    descriptor: D
    owner: Owner
