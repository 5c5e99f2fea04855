"""The base of every parameter model: unknown keys are errors, values are not changed, defaults are documented."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter


class Parameters(BaseModel):
    """Parameters of a loader, source, edit or analysis. Give each field a type, a default and a description."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    def canonical(self) -> dict[str, Any]:
        """The parameters with their defaults, as plain data: what goes into a key."""
        plain: dict[str, Any] = TypeAdapter(Any).dump_python(_ordered(self.model_dump()), mode="json")
        return plain


def _ordered(value: Any) -> Any:
    """Sets as sorted lists, wherever they are: their own order differs from process to process."""
    if isinstance(value, set | frozenset):
        return sorted((_ordered(v) for v in value), key=repr)
    if isinstance(value, dict):
        return {key: _ordered(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_ordered(v) for v in value]
    return value


class NoParameters(Parameters):
    """There is nothing to choose."""
