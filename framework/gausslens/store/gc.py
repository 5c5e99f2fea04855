"""Removing what no plan needs any more: plans that newer ones superseded, and parts that no plan names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .disk import locked, told
from .index import parts
from .layout import LOCK
from .manifest import Manifest, Step, manifests, newest_steps


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
    everything = manifests(root)
    kept = {manifest.path for manifest, _ in newest_steps(everything).values()}
    named = {(s.analysis, s.key) for m in everything if m.path in kept for s in m.steps}
    loose = {path: found for found, path in parts(root) if found not in named}
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
