"""Whether p of 5 % is 5 %: twins of a null held against others of the same null, where every departure is false.

    python benchmarks/calibration.py [MODEL ...] --store DIR [--twins 40] [--repeats 200] [--draws 8 19] [--json FILE]

MODEL is `builtin:tiny`, a directory, or with some of its layers alone DIR:1,4. Twins of every weight null of the ladder
are made by a study in the store, so that a run that was killed goes on where it was; `--analyses` takes some of its
labels, `--no-gather` only what is there. Then, as often as asked, one twin and m draws are chosen anew:

1. Rates: how often any cell of a variable is called, any variable is selected, the family-wise p is at most 0.05.
2. Mixed truth: 30 % of all cells are 8 null deviations off: the share of false among the called.
3. Power: one cell of a variable is 8 null deviations off: whether it is called.
4. The ladder (`calibration_ladder.py`): a twin of each null beside draws of all of them: whether the word is right.

Standard errors are by jackknife over the twins that are held out. Rates are tested one-sided against 5 %, Holm over the
variables. A verdict that misses its target says MISSED; the exit status stays 0, for luck misses one in twenty.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy import stats

import gausslens
from gausslens.maths.nulls import Comparison, benjamini_hochberg, compare, varies_by_rounding_alone

LEVEL = 0.05
RATE_TARGET, SELECTED_TARGET, FALSE_TARGET, POWER_TARGET = 0.06, 0.06, 0.06, 0.75
PLANTED, SHIFT = 0.3, 8.0
# Roundings below which statistics() says that a null keeps a number.
ROUNDINGS = 8
# Mixed truth and power, which say less of one variable, are tried once in so many repeats.
EVERY = 8
MODELS = ("builtin:tiny", "builtin:clue-tiny")

TEXTS = [
    "abcdefgh abcdefgh",
    "one two three one two three",
    "What was said once is said again: what was said once is said again.",
    "The cat sat on the mat, and the dog sat on the cat.",
    "A small bird sings in the tall tree by the river.",
    "Numbers: 2, 3, 5, 7, 11 and 13 are the first primes.",
    "When the rain stopped, the children ran out to play in the wet garden.",
    "He said that he would come, and then he came, and then he left again.",
    "Red, green, blue; red, green, blue; red, green, yellow.",
    "Once upon a time there was a little girl who lived near the sea.",
    "To open the door, turn the key twice and push the handle down.",
    "The answer is short: nobody knows why the old clock stopped.",
]
NULLS: dict[str, list[dict[str, Any]]] = {
    "before": [{"edit": "reinit.config", "embeddings": True}],
    "gains": [{"edit": "reinit.config", "norms": False}],
    "scale": [{"edit": "reinit.gaussian"}],
    "entries": [{"edit": "reinit.permute"}],
    "spectrum": [{"edit": "reinit.rotate"}],
}
ANALYSES: list[dict[str, Any]] = [
    {"use": "gaussian.moments", "as": "stream", "with": {"site": "resid_pre", "covariance": False}},
    {"use": "gaussian.moments", "as": "queries", "with": {"site": "q"}},
    {"use": "gaussian.moments", "as": "values", "with": {"site": "v"}},
    {"use": "gaussian.collapse", "as": "collapse"},
    {"use": "gaussian.joint", "as": "joint", "with": {"window": 6, "dims": 2, "every": 3, "permutations": 19}},
    {"use": "gaussian.propagate", "as": "propagate", "with": {"window": 6, "dims": 2}},
    {"use": "bilinear.spectrum", "as": "spectra", "with": {"matrices": ["W_Q", "W_K", "W_V", "W_O"], "per_head": True}},
    {"use": "bilinear.alignment", "as": "alignment", "with": {"composition": False}},
    {"use": "bilinear.logits", "as": "logits"},
    {"use": "bilinear.head-roles", "as": "head-roles"},
    {"use": "bilinear.angles", "as": "angles"},
    {"use": "model.attention", "as": "attention", "with": {"maps": "none"}},
    {"use": "model.loss", "as": "loss"},
    # Coarser grids and two draws, for these took nine tenths of the time: the variables are the same.
    {"use": "attention.band", "as": "band", "with": {"w": [0, 2, 8], "budget": [0, 16]}},
    {"use": "attention.masks", "as": "masks", "with": {"keys": [4, 16], "draws": 2}},
    {"use": "attention.lowrank", "as": "lowrank", "with": {"rank": [1, 4, 16], "draws": 2}},
    {"use": "attention.kernels", "as": "kernels", "with": {"features": [16, 64], "draws": 2}},
    {"use": "attention.pooling", "as": "pooling", "with": {"functions": ["dot", "multiplicative"]}},
    {"use": "attention.roles", "as": "roles"},
    {"use": "spectrum.effect", "as": "effect", "with": {"tokens": 0}},
]
# What all of these analyses say of themselves.
EXCHANGEABLE = ("head", "kv_head")
WITHOUT_LAYERS = {"model.loss", "spectrum.effect"}


@dataclass(frozen=True)
class Variable:
    """One variable of a result on all twins of a null: values [twin, *cells]; along which axes cells are unlike."""

    label: str
    name: str
    values: np.ndarray
    unlike: tuple[int, ...]

    @property
    def spread(self) -> np.ndarray:
        """The standard deviation of each cell over all twins, 0 where there is none."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(self.values.std(axis=0, ddof=1))

    def beside(self, x: np.ndarray, draws: Sequence[int]) -> Comparison:
        """Values beside these draws."""
        return compare(x, self.values[list(draws)], (), self.unlike)


def run_name(model: str) -> str:
    """A name for the run of a model."""
    path, _, layers = model.rpartition(":") if re.search(r":[\d,]+$", model) else (model, "", "")
    name = re.sub(r"[^A-Za-z0-9]+", "-", path if path.startswith("builtin:") else Path(path).name)
    return "-".join(["calibration", name, *layers.split(",")]).rstrip("-")


def study(
    model: str, twins: int, labels: Sequence[str] = (), nulls: Sequence[str] = tuple(NULLS), prompts: int = len(TEXTS)
) -> dict[str, Any]:
    """The run file: all that is compared with nulls, so many twins of each null, on the first prompts."""
    path, _, layers = model.rpartition(":") if re.search(r":[\d,]+$", model) else (model, "", "")
    uses = [dict(one) for one in ANALYSES if not labels or one["as"] in labels]
    for one in uses:
        if layers and one["use"] not in WITHOUT_LAYERS:
            one["layers"] = [int(layer) for layer in layers.split(",")]
    return {
        "gausslens": 1,
        "name": run_name(model),
        "seed": 0,
        "model": {"path": path},
        "prompts": {"source": "text", "text": TEXTS[:prompts]},
        "variants": {"trained": [], **{name: {"edits": NULLS[name], "draws": twins} for name in nulls}},
        "analyses": uses,
        "against": [],
        "report": False,
    }


def gather(made: Mapping[str, Any], store: str | os.PathLike[str]) -> None:
    """Make the twins that the store does not hold; without errors over prompts, which would take most of the time."""
    try:
        gausslens.run({**made, "errors": False}, store=store)
    except gausslens.InputError:
        gausslens.run(made, store=store)


def load(store: str | os.PathLike[str], run: str, null: str, twins: int, labels: Sequence[str] = ()) -> list[Variable]:
    """Every compared variable, of the twins that all analyses have; those that have fewer than others are left out."""
    from gausslens.runs.compare import compared

    results = gausslens.open(store).run(run)
    steps = {label: results.steps(null, label) for label in results.labels if not labels or label in labels}
    done = {label: {s.draw: s for s in each if results.finished(s)} for label, each in steps.items()}
    most = min(twins, max(map(len, done.values()), default=0))
    short = [f"{label} ({len(each)})" for label, each in done.items() if len(each) < most]
    if short:
        print(f"{run}, {null}: left out, for they have fewer than {most} twins: {', '.join(short)}")
    kept = {label: each for label, each in done.items() if len(each) >= most}
    draws: dict[str, dict[int, Any]] = {}
    for label in kept:
        draws[label] = {dict(point)["draw"]: data for point, data in results.draws(null, label).items()}
    both = sorted(set.intersection(*(set(each) for each in draws.values()))) if draws else []
    found = []
    for label, each in draws.items():
        for name, one in each[both[0]].data_vars.items() if both else ():
            if compared(one) and all(name in each[i] and each[i][name].shape == one.shape for i in both):
                values = np.stack([each[i][name].transpose(*one.dims).values for i in both[:twins]]).astype(float)
                unlike = tuple(i for i, dim in enumerate(one.dims) if dim not in EXCHANGEABLE)
                found.append(Variable(label, str(name), values, unlike))
    return found


@dataclass(frozen=True)
class Counts:
    """What the repeats gave; NaN where a null keeps all of a variable, or nothing was planted.

    ``called``, ``family`` [repeat, variable] under the null; ``p`` of the variable there; ``held`` [repeat] the twin.
    ``hit``, ``hit_selected`` [planted repeat, variable] for one cell; ``false`` [planted repeat] the false share.
    """

    called: np.ndarray
    family: np.ndarray
    p: np.ndarray
    held: np.ndarray
    hit: np.ndarray
    hit_selected: np.ndarray
    false: np.ndarray
    true: np.ndarray


def chosen(twins: int, draws: int, repeats: int, rng: np.random.Generator) -> Iterator[tuple[int, np.ndarray]]:
    """A twin and its draws, all different; every twin is held out as often as any other."""
    if draws >= twins:
        raise SystemExit(f"{draws} draws and one more are wanted, there are {twins} twins")
    for repeat in range(repeats):
        if repeat % twins == 0:
            order = rng.permutation(twins)
        held = int(order[repeat % twins])
        yield held, rng.choice(np.delete(np.arange(twins), held), size=draws, replace=False)


def tested(found: Comparison) -> np.ndarray:
    """Cells that statistics() would test: those that the null does not keep."""
    kept = varies_by_rounding_alone(found.sd, found.mean, ROUNDINGS)
    return np.asarray(~kept & ~np.isnan(found.p))


def of_variable(found: Comparison) -> float:
    """The p of a variable as statistics() takes it."""
    return found.p_variable if tested(found).any() else np.nan


def selected(p: np.ndarray) -> np.ndarray:
    """Which variables are selected."""
    return np.asarray(benjamini_hochberg(p) < LEVEL)


def resampled(variables: Sequence[Variable], draws: int, repeats: int, every: int = EVERY, seed: int = 0) -> Counts:
    """Twin and draws chosen anew, under the null and with planted cells."""
    rng = np.random.default_rng(seed)
    spreads = [one.spread for one in variables]
    called, family, p = (np.full((repeats, len(variables)), np.nan) for _ in range(3))
    held, planted = [], []
    for repeat, (twin, null) in enumerate(chosen(len(variables[0].values), draws, repeats, rng)):
        held.append(twin)
        for place, one in enumerate(variables):
            found = one.beside(one.values[twin], null)
            p[repeat, place] = of_variable(found)
            if tested(found).any():
                called[repeat, place] = bool((found.q[tested(found)] < LEVEL).any())
                family[repeat, place] = np.nan if np.isnan(found.p_family) else found.p_family <= LEVEL
        if every and repeat % every == 0:
            power = one_planted(variables, spreads, twin, null, p[repeat], rng)
            planted.append((*power, *mixed(variables, spreads, twin, null, rng)))
    hit, hit_selected, false, true = (np.array([one[i] for one in planted]) for i in range(4))
    return Counts(called, family, p, np.array(held), hit, hit_selected, false, true)


def one_planted(
    variables: Sequence[Variable],
    spreads: Sequence[np.ndarray],
    twin: int,
    null: np.ndarray,
    p: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """For each variable whether one cell that is planted is called, and whether so within a selected variable."""
    hit, within = (np.full(len(variables), np.nan) for _ in range(2))
    for place, (one, spread) in enumerate(zip(variables, spreads, strict=True)):
        if np.isnan(p[place]) or not (spread > 0).any():
            continue
        x = np.array(one.values[twin])
        cell = tuple(rng.choice(np.argwhere(spread > 0)))
        x[cell] += SHIFT * spread[cell]
        found = one.beside(x, null)
        if not tested(found)[cell]:
            continue
        hit[place] = found.q[cell] < LEVEL
        others = p.copy()
        others[place] = of_variable(found)
        within[place] = hit[place] and selected(others)[place]
    return hit, within


def mixed(
    variables: Sequence[Variable],
    spreads: Sequence[np.ndarray],
    twin: int,
    null: np.ndarray,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """With 30 % of cells planted the share of false among those called, and that of planted ones that are."""
    cells, p = [], []
    for one, spread in zip(variables, spreads, strict=True):
        there = rng.random(spread.shape) < PLANTED
        found = one.beside(one.values[twin] + SHIFT * spread * there, null)
        p.append(of_variable(found))
        cells.append((found.q < LEVEL, there, tested(found)))
    keep = selected(np.array(p))
    hits = np.concatenate([(q & s & t).ravel() for (q, _, t), s in zip(cells, keep, strict=True)])
    truth = np.concatenate([there.ravel() for _, there, _ in cells])
    known = np.concatenate([t.ravel() for _, _, t in cells])
    return float((hits & ~truth).sum() / max(hits.sum(), 1)), float(hits[truth & known].mean())


def jackknifed(found: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over repeats [repeat, ...] and their errors, a twin's repeats left out at a time.

    error^2 = (n - 1) / n sum (mean_(-j) - mean)^2 over n twins.
    """
    twins = np.unique(held)
    mean = found.mean(axis=0)
    without = np.array([found[held != j].mean(axis=0) for j in twins])
    n = len(twins)
    return mean, np.sqrt((n - 1) / n * ((without - without.mean(axis=0)) ** 2).sum(axis=0))


def holm(p: np.ndarray) -> np.ndarray:
    """Adjusted p: the largest so far of (n - i) p_(i) (Holm 1979)."""
    order = np.argsort(p)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))), 1.0)
    return adjusted


def above(rate: np.ndarray, error: np.ndarray, repeats: int, twins: int) -> np.ndarray:
    """One-sided p that a rate is above 5 %; no error is taken for less than that of as many tosses."""
    least = np.sqrt(LEVEL * (1 - LEVEL) / repeats)
    return np.asarray(stats.t.sf((rate - LEVEL) / np.maximum(error, least), twins - 1))


def summary(variables: Sequence[Variable], found: Counts) -> dict[str, Any]:
    """Rates, errors and which targets are missed, as plain data."""
    kept = ~np.isnan(found.called).any(axis=0)
    names = [f"{one.label}.{one.name}" for one, keep in zip(variables, kept, strict=True) if keep]
    rate, error = jackknifed(found.called[:, kept], found.held)
    mean, mean_error = jackknifed(found.called[:, kept].mean(axis=1), found.held)
    chosen_any = np.array([selected(p[kept]).any() for p in found.p], dtype=float)
    some, some_error = jackknifed(chosen_any, found.held)
    repeats, twins = len(found.held), len(np.unique(found.held))
    adjusted = holm(above(rate, error, repeats, twins))
    order = np.argsort(-rate, kind="stable")
    family = found.family[:, kept]
    return {
        "variables": int(kept.sum()),
        "cells": int(sum(one.values[0].size for one, keep in zip(variables, kept, strict=True) if keep)),
        "twins": len(variables[0].values),
        "repeats": repeats,
        "mean": (float(mean), float(mean_error)),
        "over 0.10": int((rate > 0.1).sum()),
        "any selected": (float(some), float(some_error)),
        "selected": float(np.mean([selected(p[kept]).sum() for p in found.p])),
        "family": None if np.isnan(family).all() else float(np.nanmean(family)),
        "above after Holm": [names[i] for i in order if adjusted[i] < LEVEL],
        "false share": float(np.mean(found.false)) if len(found.false) else None,
        "found of planted": float(np.mean(found.true)) if len(found.true) else None,
        "power": float(np.nanmean(found.hit)) if len(found.hit) else None,
        "power, selected": float(np.nanmean(found.hit_selected)) if len(found.hit) else None,
        "planted repeats": len(found.false),
        "rates": {names[i]: (float(rate[i]), float(error[i]), float(adjusted[i])) for i in order},
    }


def told(said: Mapping[str, Any], draws: int, all_: bool) -> None:
    """Print a summary, and whether it meets the targets."""

    def line(what: str, value: float | None, limit: float, low: bool = False, error: float | None = None) -> None:
        if value is not None:
            missed = value < limit if low else value > limit
            shown = f"{value:.3f}" + ("" if error is None else f" +- {error:.3f}")
            print(f"  {what:34} {shown:18} at {'least' if low else 'most'} {limit}{'   MISSED' if missed else ''}")

    (mean, error), (some, some_error) = said["mean"], said["any selected"]
    line("mean rate over variables", mean, RATE_TARGET, error=error)
    line("any variable selected", some, SELECTED_TARGET, error=some_error)
    line("false share, 30 % planted", said["false share"], FALSE_TARGET)
    if draws <= 8:
        line("power, one cell", said["power"], POWER_TARGET, low=True)
    elif said["power"] is not None:
        print(f"  {'power, one cell':34} {said['power']:.3f}")
    if said["power"] is not None:
        print(f"  {'power, called in a selected one':34} {said['power, selected']:.3f}")
        print(f"  {'found of 30 % planted':34} {said['found of planted']:.3f}")
    if said["family"] is not None:
        print(f"  {'family-wise p <= 0.05':34} {said['family']:.3f}")
    above_ = said["above after Holm"]
    print(
        f"  {'variables above 0.05 after Holm':34} {len(above_)}{'   MISSED: ' + ', '.join(above_) if above_ else ''}"
    )
    print(
        f"  {said['over 0.10']} of {said['variables']} variables over 0.10; {said['selected']:.3f} selected on average"
    )
    for name, (rate, its_error, _) in list(said["rates"].items())[: None if all_ else 15]:
        print(f"    {name:44} {rate:.3f} +- {its_error:.3f}")


def calibrate(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """All nulls of a model; what there is of them."""
    from calibration_ladder import climbed, told_ladder

    run = options.run or run_name(model)
    if not options.no_gather:
        gather(study(model, options.twins, options.analyses, options.nulls, options.prompts), options.store)
    said: dict[str, Any] = {}
    twins: dict[str, list[Variable]] = {}
    for null in options.nulls:
        twins[null] = variables = load(options.store, run, null, options.twins, options.analyses)
        for draws in options.draws:
            n = len(variables[0].values) if variables else 0
            if n <= draws:
                print(f"{run}, {null}: {n} twins are too few for {draws} draws")
                continue
            one = summary(variables, resampled(variables, draws, options.repeats))
            print(f"{run}, {null}, {draws} draws of {n} twins, {one['repeats']} repeats, {one['variables']} variables:")
            told(one, draws, options.all)
            sys.stdout.flush()
            said[f"{null} {draws}"] = one
    for draws in options.draws if len(twins) > 1 else ():
        if all(found and len(found[0].values) > draws for found in twins.values()):
            said[f"ladder {draws}"] = ladder = climbed(twins, draws, options.ladder)
            print(f"{run}, the ladder, {draws} draws, {options.ladder} held twins of each null:")
            told_ladder(ladder)
            sys.stdout.flush()
    return said


def main() -> None:
    """Gather, resample, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--store", required=True)
    parser.add_argument("--twins", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=len(TEXTS), help="how many prompts the twins read")
    parser.add_argument("--draws", type=int, nargs="+", default=[8, 19])
    parser.add_argument("--ladder", type=int, default=20, help="twins of each null that are held on the ladder")
    parser.add_argument("--analyses", nargs="+", default=[], choices=[one["as"] for one in ANALYSES], metavar="LABEL")
    parser.add_argument("--nulls", nargs="+", default=list(NULLS), choices=list(NULLS))
    parser.add_argument("--run", help="another name of the run, of whose results the numbers are")
    parser.add_argument("--no-gather", action="store_true")
    parser.add_argument("--all", action="store_true", help="list the rates of all variables")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    said = {}
    for model in options.models:
        said[model] = calibrate(model, options)
        if options.json:
            options.json.write_text(json.dumps(said, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
