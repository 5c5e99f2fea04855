"""Removing what no plan needs any more: plans that newer ones superseded, and parts that no plan names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..contract.errors import StoreError
from .disk import locked, told
from .index import parts
from .layout import LOCK, NewerStore
from .manifest import Manifest, Step, manifest_paths, newest_steps, read_manifest
from .seal import sealed


@dataclass(frozen=True)
class Superseded:
    """What ``gc`` would remove: manifests, and parts with their sizes and the steps that they were."""

    manifests: tuple[Manifest, ...]
    parts: dict[Path, int]
    steps: dict[Path, tuple[tuple[str, Step], ...]]

    @property
    def bytes(self) -> int:
        """What removing the parts frees."""
        return sum(self.parts.values())


def superseded(root: Path) -> Superseded:
    """Manifests that are the newest for none of their results, and parts that no other manifest names."""
    everything = _all_manifests(root)
    kept = {manifest.path for manifest, _ in newest_steps(everything).values()}
    named = {(s.analysis, s.key) for m in everything if m.path in kept for s in m.steps}
    loose = {path: found for found, path in parts(root) if found not in named and sealed(path)}
    if loose and not everything:
        raise StoreError(f"{root} has results and no plan: were its runs/ removed? gc would remove all of them")
    by_key: dict[tuple[str, str], list[tuple[str, Step]]] = {}
    for manifest in everything:
        for step in manifest.steps:
            by_key.setdefault((step.analysis, step.key), []).append((manifest.run, step))
    with told("read", root):
        sizes = {path: path.stat().st_size for path in loose}
    return Superseded(
        tuple(m for m in everything if m.path not in kept),
        sizes,
        {path: tuple(by_key.get(found, ())) for path, found in loose.items()},
    )


def _all_manifests(root: Path) -> list[Manifest]:
    """All of them: what a plan that cannot be read names must not be taken for superseded."""
    try:
        return sorted((read_manifest(path) for path in manifest_paths(root)), key=lambda m: m.age)
    except NewerStore:
        raise
    except StoreError as error:
        raise StoreError(
            f"{error}. gc removes nothing while a plan cannot be read, for its results would seem superseded: "
            "remove that file (or bring it back), run again what it planned, then gc"
        ) from None


def remove(root: Path, shown: Superseded) -> int:
    """Remove what was shown and is still superseded; returns how many files went."""
    with locked(root / LOCK):  # no manifest is committed meanwhile
        still = superseded(root)
        manifests_gone = {m.path for m in shown.manifests} & {m.path for m in still.manifests}
        parts_gone = shown.parts.keys() & still.parts.keys()
        with told("remove from", root):
            for path in (*manifests_gone, *parts_gone):
                path.unlink(missing_ok=True)
    return len(manifests_gone) + len(parts_gone)
