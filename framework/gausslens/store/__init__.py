"""The store: immutable parts, run manifests, a derived index."""

from .store import Store as Store

__all__ = ["Store"]
