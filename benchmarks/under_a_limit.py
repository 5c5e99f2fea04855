"""Every analysis that runs the model, on it and on a twin of every weight null, under a third of its size.

    python benchmarks/under_a_limit.py [MODEL ...] [--store DIR] [--nulls NAME ...] [--analyses NAME ...] [--part 1/3]

MODEL is `builtin:clue-tiny` or a directory. Each null is a study of its own, once in memory and once with
``max_memory:`` a third of the weights in float32, or the smallest that `plan` says will do, where that is more (an edit
that draws the embedding, a layer and its twin's). Told are the largest difference of any number, as a part of it where
it is above 1, and the most reads of a tensor in any pass through the model: 1, and 2 of one that is embedding and head.
More than 1e-5, or more reads, is MISSED, and so is what failed otherwise than in memory; the exit status is then 1.
Shards are of 64 tokens in both, so that there are several. Of steps that are in the store already no passes are
counted; the proof, which asks one layer several things, is no pass.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from calibration import ANALYSES, NULLS, TEXTS

import gausslens
from gausslens import Tokens
from gausslens.perform import perform

CLOSE = 1e-5
SHARD = 64
SWAP = {"band": [2], "budget": [0], "masks": [], "rank": [1], "kernels": [], "which": ["all"]}
MORE: list[dict[str, Any]] = [
    {"use": "model.capture", "as": "capture", "with": {"sites": ["resid_post", "z"]}},
    {"use": "model.embeddings", "as": "embeddings"},
    {"use": "attention.swap", "as": "swap", "with": SWAP},
    {"use": "bilinear.slerp", "as": "slerp", "with": {"sizes": [4], "pairs": 20}},
]
# What runs no model, and so is under no limit.
WEIGHTS_ALONE = ("bilinear.spectrum", "bilinear.alignment")
ALL = [one for one in ANALYSES if one["use"] not in WEIGHTS_ALONE] + MORE


@contextlib.contextmanager
def small_shards() -> Iterator[None]:
    """Has prompts cut into shards of a few tokens."""
    shards: Any = Tokens.shards
    before, shards.__defaults__ = shards.__defaults__, (SHARD, None)
    try:
        yield
    finally:
        shards.__defaults__ = before


@dataclass
class Reads:
    """The most reads of a tensor in each pass, of those that are no embedding and of any."""

    plain: list[float] = field(default_factory=list)
    any: list[float] = field(default_factory=list)


@contextlib.contextmanager
def counted() -> Iterator[Reads]:
    """Counts reads between the first need of a weight and the last: a pass of all shards, or one ``runner.forward``."""
    from gausslens_models.capture.by_layer import ByLayer

    found, holding = Reads(), ByLayer.holding

    @contextlib.contextmanager
    def noted(self: Any) -> Iterator[None]:
        of_a_step = self.twin is not None and not self._depth  # the proof, which has no twin, is no pass
        checkpoint = self._model.checkpoint
        before = checkpoint.reads.copy()
        with holding(self):
            yield
        if of_a_step:
            reads = checkpoint.reads - before
            rows = {one.stored for one in self.rows.values()}
            found.any.append(float(max(reads.values(), default=0)))
            found.plain.append(float(max((n for name, n in reads.items() if name not in rows), default=0)))

    ByLayer.holding = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        ByLayer.holding = holding  # type: ignore[method-assign]


@dataclass(frozen=True)
class Case:
    """A model, and a null or other edits of it; the labels of analyses (none: all), and prompts of its own."""

    model: str
    name: str
    edits: Sequence[dict[str, Any]] = ()
    labels: Sequence[str] = ()
    prompts: Any = None


def study(case: Case, limit: str | None = None) -> dict[str, Any]:
    """All of it on a model, or on a twin."""
    drawn = {"edits": NULLS[case.name], "draws": 1} if case.name in NULLS else list(case.edits)
    made = {
        "gausslens": 1,
        "name": "under-a-limit",
        "model": {"path": case.model} | ({} if case.model.startswith("builtin:") else {"dtype": "float32"}),
        "prompts": case.prompts or {"source": "text", "text": TEXTS},
        "variants": {case.name: drawn},
        "analyses": [one for one in ALL if not case.labels or one["as"] in case.labels],
        "errors": False,
        "report": False,
    }
    return made | ({"max_memory": limit} if limit else {})


def ran(made: dict[str, Any], store: Path) -> tuple[dict[tuple[str, str], Any], dict[str, str]]:
    """{(label, variable): values} of a run, and {label: why it failed}."""
    done = perform(made, store=store, shown=False)
    failed = {failure.step.ref.label: str(failure.error) for failure in done.outcome.failed}
    (variant,) = made["variants"]
    results, found = gausslens.open(done.path), {}
    for one in made["analyses"]:
        if one["as"] not in failed:
            result = results[variant, one["as"]]
            found |= {(one["as"], name): result[name].values for name in result.data_vars}
    return found, failed


def apart(ours: Mapping[Any, np.ndarray], theirs: Mapping[Any, np.ndarray]) -> dict[str, float]:
    """{label: the largest difference of any number}; infinite where something is there in one alone."""
    found: dict[str, float] = {}
    for label, name in ours.keys() | theirs.keys():
        one, other = ours.get((label, name)), theirs.get((label, name))
        largest = np.inf
        if one is not None and other is not None and one.shape == other.shape:
            largest = _largest(one, other)
        found[label] = max(found.get(label, 0.0), largest)
    return found


def _largest(one: np.ndarray, other: np.ndarray) -> float:
    if one.dtype.kind not in "fc":
        return 0.0 if np.array_equal(one, other) else np.inf
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return np.inf
    there = np.isfinite(one)
    a, b = one[there].astype(np.float64), other[there].astype(np.float64)
    return float(np.max(np.abs(a - b) / np.maximum(1, np.abs(b)), initial=0.0))


def limited(made: dict[str, Any], store: Path) -> tuple[Any, Any, str]:
    """A run under a limit, or under the smallest that will do; and which it was."""
    try:
        return *ran(made, store), made["max_memory"]
    except gausslens.GausslensError as error:
        smallest = re.search(r"smallest that will do is max_memory: (\w+)", str(error))
        if smallest is None:
            raise
        return *ran(made | {"max_memory": smallest[1]}, store), f"{smallest[1]}, the smallest that will do"


def tried(case: Case, store: Path, part: Fraction = Fraction(1, 3)) -> bool:
    """A case in memory and under a limit; prints what differs, and says whether all is met."""
    dtype = None if case.model.startswith("builtin:") else "float32"
    size = gausslens.load(case.model, dtype=dtype).info.weight_bytes
    told = f"{max(1, int(size * part / 1000))}kB"
    with small_shards(), counted() as reads:
        whole, failed_whole = ran(study(case), store / "memory")
        some, failed, limit = limited(study(case, told), store / "limit")
    found = apart(some, whole)
    worst = sorted(found, key=found.__getitem__, reverse=True)
    passes, plain, any_ = len(reads.plain), max(reads.plain, default=0), max(reads.any, default=0)
    met = failed == failed_whole and plain <= 1 and any_ <= 2 and max(found.values(), default=1) <= CLOSE
    print(
        f"{Path(case.model).name}, {case.name}: {size / 1e6:.1f} MB, max_memory {limit}; {len(found)} analyses, "
        f"{len(whole)} variables, {sum(v == 0 for v in found.values())} analyses equal to the bit, else at most "
        f"{found[worst[0]]:.1e} ({worst[0]}); {passes} passes, reads of a tensor at most {plain:.2f}, of embedding and "
        f"head {any_:.2f} ({'met' if met else 'MISSED'})"
    )
    for label in worst:
        if found[label] > CLOSE:
            print(f"    {label} differs by {found[label]:.1e}")
    for label, why in (failed_whole | failed).items():
        alike = ", in memory too" if failed.get(label) == failed_whole.get(label) else ""
        print(f"    {label} failed{alike}: {' '.join(why.split())[:300]}")
    sys.stdout.flush()
    return met


def main() -> None:
    """Each model, each null."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["builtin:clue-tiny"], metavar="MODEL")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--nulls", nargs="+", default=["trained", *NULLS], choices=["trained", *NULLS])
    parser.add_argument("--analyses", nargs="+", default=[], choices=[one["as"] for one in ALL], metavar="NAME")
    parser.add_argument("--part", type=Fraction, default=Fraction(1, 3))
    options = parser.parse_args()
    met = True
    for model in options.models:
        path = re.sub(r":[\d,]+$", "", model)
        for null in options.nulls:
            with contextlib.ExitStack() as stack:
                place = stack.enter_context(tempfile.TemporaryDirectory())
                store = (options.store or Path(place)) / f"{Path(path).name.replace(':', '-')}-{null}"
                met &= tried(Case(path, null, labels=options.analyses), store, options.part)
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
