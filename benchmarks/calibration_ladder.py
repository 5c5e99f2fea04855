"""The planted ladder: a twin of each null in turn beside draws of all of them, of which its own should explain it.

A twin of a null shares with the model what that null keeps and no more: of its numbers that depart from `before` the
word should be its own null's. Counted are called cells, by kind: the null times the plugin that made the number (4
times 5). A word may be that of an earlier null: right too where the means of all twins say that both nulls give the
same number, within a tenth of the departure; counted as `shared`. What is neither right, shared nor undecided is wrong.
`calibration.py` calls this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.maths.ladder import NEAR, UNDECIDED, Rung, explained, ladder_order

if TYPE_CHECKING:
    from calibration import Variable

FAMILIES = {
    **dict.fromkeys(("stream", "queries", "values", "collapse", "joint", "propagate"), "gaussian"),
    **dict.fromkeys(("spectra", "alignment", "logits", "head-roles", "angles"), "bilinear"),
    **dict.fromkeys(("attention", "loss"), "model"),
    **dict.fromkeys(("band", "masks", "lowrank", "kernels", "pooling", "roles"), "attention"),
    "effect": "spectrum",
}
LADDER_TARGET = 0.95


def climbed(twins: Mapping[str, Sequence[Variable]], draws: int, held: int, seed: int = 0) -> dict[str, Any]:
    """Counts of words, {"null family": {word: cells}}, and by variable those that are wrong."""
    rng = np.random.default_rng(seed)
    names = [list(twins)[i] for i in ladder_order(list(twins))]
    common = set.intersection(*({(v.label, v.name) for v in twins[name]} for name in names))
    by_name = {name: [v for v in twins[name] if (v.label, v.name) in common] for name in names}
    kinds: dict[str, Counter[str]] = {}
    wrong: dict[str, Counter[str]] = {}
    for rung in names:
        n = len(by_name[rung][0].values)
        for twin in rng.permutation(n)[:held]:
            chosen = {
                name: rng.choice(
                    [i for i in range(len(by_name[name][0].values)) if name != rung or i != twin], draws, replace=False
                )
                for name in names
            }
            _one_twin(by_name, rung, int(twin), chosen, kinds, wrong)
    return {"kinds": kinds, "wrong": wrong}


def _one_twin(
    by_name: Mapping[str, Sequence[Variable]],
    rung: str,
    twin: int,
    chosen: Mapping[str, np.ndarray],
    kinds: dict[str, Counter[str]],
    wrong: dict[str, Counter[str]],
) -> None:
    """Count the words of one twin's called cells."""
    from calibration import LEVEL, of_variable, selected, tested

    names = list(by_name)
    first = [
        one.beside(mine.values[twin], chosen[names[0]])
        for one, mine in zip(by_name[names[0]], by_name[rung], strict=True)
    ]
    keep = selected(np.array([of_variable(found) for found in first]))
    for place, (found, mine) in enumerate(zip(first, by_name[rung], strict=True)):
        counts = kinds.setdefault(f"{rung} {FAMILIES[mine.label]}", Counter())
        counts["tested"] += int(tested(found).sum())
        departs = (found.q < LEVEL) & tested(found) & keep[place]
        if not departs.any():
            continue
        x = mine.values[twin]
        rungs = []
        for name in names:
            beside = found if name == names[0] else by_name[name][place].beside(x, chosen[name])
            rungs.append(Rung(name, len(chosen[name]), beside.mean, beside.low, beside.high, called=beside.q < LEVEL))
        words = explained(x, departs, rungs).rung
        means = {name: by_name[name][place].values.mean(axis=0) for name in names}
        for cell in map(tuple, np.argwhere(departs)):
            word = _judged(str(words[cell]), rung, names, {n: mean[cell] for n, mean in means.items()}, x[cell])
            counts[word] += 1
            if word.startswith("wrong"):
                wrong.setdefault(f"{rung} {mine.label}.{mine.name}", Counter())[word] += 1


def _judged(word: str, rung: str, names: Sequence[str], means: Mapping[str, float], x: float) -> str:
    if word in (rung, UNDECIDED):
        return "right" if word == rung else word
    if word in names and names.index(word) < names.index(rung):
        near = NEAR * abs(x - means[names[0]])
        return "shared" if abs(means[word] - means[rung]) <= near else f"wrong: {word}"
    return f"wrong: {word}"


def told_ladder(said: Mapping[str, Any]) -> None:
    """Print the counts of each kind, each rung and of all, and the variables that are wrong most often."""
    sums: dict[str, Counter[str]] = {}
    for kind, counts in said["kinds"].items():
        sums.setdefault(kind.split()[0], Counter()).update(counts)
    every: Counter[str] = Counter()
    for rung, counts in sums.items():
        if rung != "before":
            every.update(counts)
    for kind, counts in [*said["kinds"].items(), *((f"{rung}, all", c) for rung, c in sums.items()), ("all", every)]:
        wrong = sum(n for word, n in counts.items() if word.startswith("wrong"))
        right, undecided, shared = (counts[word] for word in ("right", UNDECIDED, "shared"))
        called, decided = right + shared + undecided + wrong, right + shared + wrong
        share = (right + shared) / decided if decided else float("nan")
        missed = "   MISSED" if share < LADDER_TARGET and not kind.startswith("before") else ""
        words = f"right {right}, shared {shared}, undecided {undecided}, wrong {wrong}"
        print(f"  {kind:20} {called:7} called of {counts['tested']:8}: {words}; {share:.3f} of the decided{missed}")
    worst = sorted(said["wrong"].items(), key=lambda item: -sum(item[1].values()))
    for name, counts in worst[:15]:
        print(f"    {name:50} {dict(counts)}")
