"""lens.patching: what one part of a run, put into another run, does to the answer.

change = m(into, with the part of the other run) - m(into)        effect = change / (m(from) - m(into))
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr

from gausslens import Context, Intervention, ModelInfo, Runner, Tokens, Where, mean_over_prompts, variable

from .effects import Variables, coordinates, dims_of, ends, ratio, shape_of, variables
from .pairs import Group, Metric, groups_of, measured
from .parameters import PatchingParameters

Head = tuple[int, int]  # layer and head, by their numbers
Captured = Mapping[Any, torch.Tensor]


@dataclass(frozen=True)
class Bench:
    """Pairs of one length, run both ways: ``source`` is what is put into the run of ``into``."""

    group: Group
    metric: Metric
    denoise: bool
    source: Captured
    into: np.ndarray
    clean_logits: torch.Tensor
    clean: np.ndarray
    corrupted: np.ndarray

    @classmethod
    def of(cls, runner: Runner, group: Group, metric: Metric, direction: str, sites: Sequence[str]) -> Bench:
        """Both runs; of the one that is put in, these sites."""
        denoise = direction == "denoise"
        from_, into = (group.clean, group.corrupted) if denoise else (group.corrupted, group.clean)
        found = runner.forward(from_, sites=(*dict.fromkeys(sites), "logits"))
        other = runner.forward(into)["logits"]
        first, second = (found["logits"], other) if denoise else (other, found["logits"])
        values = (measured(metric, logits, group, first).cpu().numpy() for logits in (first, second))
        return cls(group, metric, denoise, found, into, first, *values)

    @property
    def gaps(self) -> np.ndarray:
        """[pair]: how far it is from the run that is changed to the other."""
        found: np.ndarray = np.subtract(self.clean, self.corrupted) * (1 if self.denoise else -1)
        return found

    def changed(self, runner: Runner, interventions: Sequence[Intervention]) -> np.ndarray:
        """[pair]: the metric with these changes, less that without."""
        logits = runner.forward(self.into, interventions=interventions)["logits"]
        found: np.ndarray = measured(self.metric, logits, self.group, self.clean_logits).cpu().numpy()
        return np.asarray(found - (self.corrupted if self.denoise else self.clean))


def put(
    captured: Captured,
    info: ModelInfo,
    site: str,
    layer: int,
    heads: Sequence[int] | None = None,
    position: int | None = None,
) -> Intervention:
    """An intervention that puts what was captured of a site in place of what is there, of these heads at a position."""
    whole = captured[layer, site]
    if heads is not None:
        in_view = list(info.kv_heads if site in ("k", "v", "k_rot") else info.heads)
        whole = whole[:, :, [in_view.index(head) for head in heads]]
    if position is not None:
        whole = whole[:, [position]]

    def given(_: torch.Tensor, __: Where) -> torch.Tensor:
        return whole

    return Intervention(site, layer, given, heads, None if position is None else [position])


class Patching:
    """Every cell of every site by itself; then the heads of the largest effect together, beside random ones."""

    def __init__(self, parameters: PatchingParameters, context: Context) -> None:
        self.parameters, self.context = parameters, context

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """The result."""
        asked = self.parameters
        groups = groups_of(asked, runner, prompts)
        sites = tuple(dict.fromkeys(asked.sites))
        benches = [Bench.of(runner, group, asked.metric, asked.direction, sites) for group in groups]
        longest, pairs = max(g.length for g in groups), sum(len(g.numbers) for g in groups)
        clean, corrupted, gaps = (self._by_pair(benches, pairs, name) for name in ("clean", "corrupted", "gaps"))
        found: Variables = ends(clean, corrupted)
        for site in sites:
            dims = dims_of(site, asked.each_position)
            changes = np.full((pairs, *shape_of(runner.info, dims, longest)), np.nan)
            for bench in benches:
                for cell, intervention in self._cells(runner.info, bench, site, dims, longest):
                    where: tuple[Any, ...] = (list(bench.group.numbers), *cell)
                    changes[where] = bench.changed(runner, [intervention])
            found |= variables(site, dims, changes, gaps, "patched")
            if site == "z":
                of_heads = np.nansum(changes, axis=3) if "position" in dims else changes
                found |= self._control(runner, benches, of_heads, gaps)
        dims_found = {dim for each in found.values() for dim in each[0]}
        kept = {dim: at for dim, at in coordinates(runner.info, longest).items() if dim in dims_found}
        return xr.Dataset(found, coords=kept)

    def _by_pair(self, benches: Sequence[Bench], pairs: int, name: str) -> np.ndarray:
        values = np.full(pairs, np.nan)
        for bench in benches:
            values[list(bench.group.numbers)] = getattr(bench, name)
        return values

    def _cells(
        self, info: ModelInfo, bench: Bench, site: str, dims: Sequence[str], longest: int
    ) -> Iterator[tuple[tuple[int, ...], Intervention]]:
        """The cells that this model has: where each is in the array, and what is put there."""
        length = bench.group.length
        heads = info.kv_heads if "kv_head" in dims else info.heads
        places = [enumerate(info.layers)]
        places += [enumerate(heads)] if {"head", "kv_head"} & set(dims) else []
        places += [enumerate(range(length), start=longest - length)] if "position" in dims else []
        for chosen in itertools.product(*places):
            named = dict(zip(dims, (value for _, value in chosen), strict=True))
            layer, head = named["layer"], named.get("head", named.get("kv_head"))
            if (layer, site) in bench.source:
                only = None if head is None else [head]
                yield tuple(at for at, _ in chosen), put(bench.source, info, site, layer, only, named.get("position"))

    def _control(self, runner: Runner, benches: Sequence[Bench], changes: np.ndarray, gaps: np.ndarray) -> Variables:
        """The top heads together, and random sets of as many of the same layers; changes are [pair, layer, head].

        They are chosen on the pairs of even number and patched in the others, so that what chance put among the
        largest effects does not count for them.
        """
        info = runner.info
        chosen_on, measured_on = np.arange(0, len(gaps), 2), np.arange(1, len(gaps), 2)
        if not len(measured_on):
            measured_on = chosen_on
        size = np.abs(np.nan_to_num(changes[chosen_on].mean(axis=0)))
        there = [(layer, head) for layer in info.layers if (layer, "z") in benches[0].source for head in info.heads]
        ordered = sorted(there, key=lambda h: -size[info.layers.index(h[0]), info.heads.index(h[1])])
        top = ordered[: min(self.parameters.top, len(there) // 2)]
        generator = self.context.generator("random heads")
        sets = [top, *_random_sets(top, there, self.parameters.random_sets, generator)]
        together = np.full((1 + self.parameters.random_sets, len(gaps)), np.nan)
        for bench in benches if top else ():
            narrowed = bench.group.chosen(measured_on.tolist())
            if narrowed is None:
                continue
            part = Bench.of(runner, narrowed, bench.metric, self.parameters.direction, ("z",))
            for number, heads in enumerate(sets):
                together[number, list(narrowed.numbers)] = part.changed(runner, _all_of(part.source, info, heads))
        return _control_variables(together[:, measured_on], gaps[measured_on], top, self.parameters.top)


def _random_sets(
    top: Sequence[Head], there: Sequence[Head], most: int, generator: np.random.Generator
) -> list[list[Head]]:
    """So many sets as `_matched` draws them, none twice and none the top heads; all, where these are fewer."""
    possible = sum(1 for _ in itertools.islice(_all_matched(top, there), most + 1))
    if possible <= most:
        return list(_all_matched(top, there))
    found: dict[frozenset[Head], list[Head]] = {}
    while len(found) < most:
        drawn = _matched(top, there, generator)
        if set(drawn) != set(top):
            found.setdefault(frozenset(drawn), drawn)
    return list(found.values())


def _pools(top: Sequence[Head], there: Sequence[Head]) -> Iterator[tuple[int, list[Head]]]:
    """Of each layer how many heads are named, and what is drawn from: others where enough remain, else any."""
    for layer in sorted({layer for layer, _ in top}):
        named = [head for head in top if head[0] == layer]
        all_ = [head for head in there if head[0] == layer]
        others = [head for head in all_ if head not in named]
        yield len(named), others if len(others) >= len(named) else all_


def _all_matched(top: Sequence[Head], there: Sequence[Head]) -> Iterator[list[Head]]:
    """Every set that could be drawn, but the top heads."""
    for chosen in itertools.product(*(itertools.combinations(pool, n) for n, pool in _pools(top, there))):
        heads = [head for of_layer in chosen for head in of_layer]
        if set(heads) != set(top):
            yield heads


def _matched(top: Sequence[Head], there: Sequence[Head], generator: np.random.Generator) -> list[Head]:
    """As many heads of each layer as are named there, at random."""
    found: list[Head] = []
    for count, pool in _pools(top, there):
        found += [pool[n] for n in generator.choice(len(pool), count, replace=False)]
    return found


def _all_of(source: Captured, info: ModelInfo, heads: Sequence[Head]) -> list[Intervention]:
    by_layer = {layer: sorted(h for at, h in heads if at == layer) for layer in sorted({at for at, _ in heads})}
    return [put(source, info, "z", layer, chosen) for layer, chosen in by_layer.items()]


def _control_variables(together: np.ndarray, gaps: np.ndarray, top: Sequence[Head], asked: int) -> Variables:
    """Of changes [set, pair], the first set being the top heads: both, how far apart, and which heads these are.

    Sets that there are none of are NaN. A set counts once in `top_p`: it is 1 / (1 + sets) at least.
    """
    means = together.mean(axis=1)
    effects, _ = ratio(together.T, gaps)
    random = means[1:][~np.isnan(means[1:])]
    spread = random.std(ddof=1) if len(random) > 1 else 0.0
    beyond = (means[0] - random.mean()) / spread if spread > 0 else np.nan
    share = (1 + (np.abs(random) >= abs(means[0])).sum()) / (1 + len(random)) if len(random) else np.nan
    named = np.full((asked, 2), -1)
    named[: len(top)] = np.array(top).reshape(-1, 2)
    return {
        **mean_over_prompts("top_change", (), together[0], "what the top heads change together, on other pairs"),
        "top_effect": variable((), effects[0], "effect of the top heads together", against=False),
        "random_change": variable("set", means[1:], "what random heads of the same layers change", against=False),
        "random_effect": variable("set", effects[1:], "effect of random heads of the same layers", against=False),
        "top_beyond": variable((), beyond, "top heads less random ones, in their deviations", against=False),
        "top_p": variable((), share, "share of sets that change as much as the top heads", against=False),
        "top_layer": variable("rank", named[:, 0], "layers of the top heads", against=False),
        "top_head": variable("rank", named[:, 1], "numbers of the top heads", against=False),
    }
