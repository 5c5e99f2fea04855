"""The base of every parameter model: unknown keys are errors, values are not changed, defaults are documented."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Parameters(BaseModel):
    """Parameters of a loader, source, edit or analysis. Give each field a type, a default and a description."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    def canonical(self) -> dict[str, Any]:
        """The parameters with their defaults, as plain data: what goes into a key."""
        return self.model_dump(mode="json")


class NoParameters(Parameters):
    """There is nothing to choose."""
