"""lens.attribution: the change that patching makes, to first order, of all cells from one forward and one backward.

change = sum over the cell of d m / d x (into) * (x(from) - x(into))
"""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr

from gausslens import Context, InputError, Runner, StepRef, Tokens, variable

from .effects import Variables, coordinates, correlations, dims_of, ends, shape_of, variables
from .pairs import groups_of, measured
from .parameters import AgreementParameters, AttributionParameters
from .patching import Bench


class Attribution:
    """Gradients of the metric at every site, times what patching would change there."""

    def __init__(self, parameters: AttributionParameters, _: Context) -> None:
        self.parameters = parameters

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """The result."""
        asked, info = self.parameters, runner.info
        sites: tuple[str, ...] = tuple(dict.fromkeys(asked.sites))
        groups = groups_of(asked, runner, prompts)
        longest, pairs = max(g.length for g in groups), sum(len(g.numbers) for g in groups)
        dims = {site: dims_of(site, asked.each_position) for site in sites}
        changes = {site: np.full((pairs, *shape_of(info, dims[site], longest)), np.nan) for site in sites}
        clean, corrupted, gaps = (np.full(pairs, np.nan) for _ in range(3))
        for group in groups:
            rows = list(group.numbers)
            bench = Bench.of(runner, group, asked.metric, asked.direction, sites)
            clean[rows], corrupted[rows], gaps[rows] = bench.clean, bench.corrupted, bench.gaps
            for (layer, site), products in gradients(runner, bench, sites).items():
                start = longest - group.length
                cells = products if "position" in dims[site] else products.sum(axis=1)
                if "position" in dims[site]:  # [pair, position, head] to [pair, head, position]
                    cells = np.moveaxis(cells, 1, -1)
                    changes[site][rows, info.layers.index(layer), ..., start:] = cells
                else:
                    changes[site][rows, info.layers.index(layer)] = cells
        found: Variables = ends(clean, corrupted)
        for site in sites:
            found |= variables(site, dims[site], changes[site], gaps, "by its gradient")
        dims_found = {dim for each in found.values() for dim in each[0]}
        kept = {dim: at for dim, at in coordinates(info, longest).items() if dim in dims_found}
        return xr.Dataset(found, coords=kept)


def gradients(runner: Runner, bench: Bench, sites: tuple[str, ...]) -> dict[tuple[int, str], np.ndarray]:
    """{(layer, site): gradient times difference, summed over the width}, [pair, position] or [pair, position, head]."""
    # Heads that are cut out for the view are copies beside the path: gradients are those of the whole tensors.
    found = runner.whole.forward(bench.into, sites=(*sites, "logits"), grad=True)
    with torch.enable_grad():
        value = measured(bench.metric, found["logits"], bench.group, bench.clean_logits).sum()
        where = [(layer, site) for layer in runner.info.layers for site in sites if (layer, site) in found]
        slopes = torch.autograd.grad(value, [found[place] for place in where])
    products = {}
    for place, slope in zip(where, slopes, strict=True):
        there, slope = (in_view(runner, place[1], each.detach()).double() for each in (found[place], slope))
        products[place] = (slope * (bench.source[place].double() - there)).sum(-1).cpu().numpy()
    return products


def in_view(runner: Runner, site: str, tensor: torch.Tensor) -> torch.Tensor:
    """Of a tensor of all heads those in view."""
    axis = next((dim for dim in dims_of(site, False) if dim in ("head", "kv_head")), None)
    if axis is None:
        return tensor
    every, kept = (info.kv_heads if axis == "kv_head" else info.heads for info in (runner.whole.info, runner.info))
    return tensor[:, :, [every.index(head) for head in kept]]


class Agreement:
    """lens.agreement: how alike the changes of a lens.attribution step and a lens.patching step are, site by site."""

    def __init__(self, parameters: AgreementParameters, _: Context) -> None:
        self.names = (parameters.patching, parameters.attribution)

    def inputs(self, steps: list[StepRef]) -> list[StepRef]:
        """Both, of this variant and draw."""
        found = [[step for step in steps if step.label == name] for name in self.names]
        for name, those in zip(self.names, found, strict=True):
            if len(those) != 1:
                raise InputError(f"lens.agreement: there is no step {name!r} before it on this variant")
        return [step for those in found for step in those]

    def compute(self, inputs: dict[StepRef, xr.Dataset]) -> xr.Dataset:
        """Both correlations over the cells of each site."""
        by_label = {step.label: dataset for step, dataset in inputs.items()}
        patched, slopes = (by_label[name] for name in self.names)
        found: Variables = {}
        for name in (str(n) for n in patched.data_vars if str(n).endswith("_change") and n in slopes):
            a, b = patched[name], slopes[name]
            if set(a.dims) != set(b.dims) or dict(a.sizes) != dict(b.sizes):
                raise InputError(f"{name} has other cells in the two steps: give both the same pairs and sites")
            site = name.removesuffix("_change")
            ranks, linear = correlations(a.values.ravel(), b.transpose(*a.dims).values.ravel())
            found[f"{site}_rank"] = variable((), ranks, f"rank correlation of {site} by gradient and patched")
            found[f"{site}_linear"] = variable((), linear, f"correlation of {site} by gradient and patched")
        if not found:
            raise InputError("lens.agreement: the two steps have no site in common")
        return xr.Dataset(found)
