"""What the announcement hooks are told of a run and of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunNews:
    """A run: its name, where its results go, and the digest of its plan."""

    name: str
    store: str
    plan: str
    steps: int


@dataclass(frozen=True)
class StepNews:
    """A step of a run: one analysis on one draw of one variant."""

    variant: str
    label: str
    analysis: str
    key: str
    draw: int | None = None
    sweep: Mapping[str, Any] = field(default_factory=dict)
