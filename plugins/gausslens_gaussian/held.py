"""What an earlier pass found, shared by the copies that the host makes for each shard."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Held(Generic[T]):
    """A value that is not changed any more: a deep copy shares it, as covariances of all layers are large."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, object]) -> Held[T]:
        return self
