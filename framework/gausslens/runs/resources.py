"""What a step will need, told before it runs: memory, disk, time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ..contract.analyses import Estimate
from ..contract.model import BYTES
from ..contract.sites import TABLE
from .lending import asked_of, said_of
from .steps import Step

if TYPE_CHECKING:
    from ..contract.model import ModelInfo
    from ..contract.prompts import Tokens


def needs(step: Step, info: ModelInfo, flops: float | None = None) -> Estimate:
    """Memory while it runs, disk for its result, seconds: the analysis' own estimate on top of the host's.

    ``flops`` are operations a second; this machine's where they are left out.

    Under ``max_memory`` an analysis that takes logits in columns holds as many as the engine gives at a time.

    Errors over prompts hold G + log2 G states in place of the one that the estimate counts, and ask for G results more.
    """
    descriptor = step.use.analysis.descriptor
    view = _in_columns(step, info.narrowed(step.use.layers, step.use.heads))
    tokens = step.tokens
    own = _own_estimate(step, view) if descriptor.estimate else Estimate()
    if tokens is None:
        return own
    request = None
    if descriptor.shape == "stream":
        request = asked_of(step.use, step.planned)
    sites = request.sites if request else ()
    layers = len(view.layers) if descriptor.all_layers else 1
    shards = _sizes(tokens) if sites else []
    captured = layers * sum(_site_bytes(site, view, shards) for site in sites)
    memory = own.memory
    if step.groups is not None:
        memory += (states_held(step.groups) - 1) * (own.state or own.memory)
    return Estimate(memory + captured, own.disk, _own_seconds(step, own) + _pass_seconds(step, info, flops))


def _in_columns(step: Step, view: ModelInfo) -> ModelInfo:
    """The model as a step sees it: with so many tokens of the vocabulary as it sees at a time."""
    opened, tokens = step.opened, step.tokens
    if opened is None or opened.max_memory is None or tokens is None or not step.use.analysis.descriptor.column_blocks:
        return view
    tell = getattr(opened.running, "columns", None)
    most = max((count * longest for count, longest in _sizes(tokens)), default=0)
    return view if tell is None else replace(view, vocabulary=min(view.vocabulary, tell(opened.model, most)))


def together(steps: Sequence[Step], flops: float | None = None) -> float:
    """Seconds that steps of one twin take: their own, and each pass once that several share."""
    passes: dict[tuple[object, ...], float] = {}
    found = 0.0
    for step in steps:
        with suppress(Exception):  # the step fails, and says why, when it is computed
            descriptor = step.use.analysis.descriptor
            info = step.info.narrowed(step.use.layers, step.use.heads)
            found += _own_seconds(step, _own_estimate(step, info)) if descriptor.estimate else 0.0
            if step.tokens is not None:
                alone = step.key if descriptor.shape == "forward" else ""
                shared = (step.ingredients.get("tokens"), step.groups, alone)
                passes[shared] = max(passes.get(shared, 0.0), _pass_seconds(step, step.info, flops))
    return found + sum(passes.values())


def _own_seconds(step: Step, own: Estimate) -> float:
    return max(own.seconds, 0.0) + (0 if step.groups is None else step.groups * own.result)


def _pass_seconds(step: Step, info: ModelInfo, flops: float | None) -> float:
    """Those of the passes that a step wants of the model."""
    assert step.tokens is not None
    wanted = asked_of(step.use, step.planned).passes if step.use.analysis.descriptor.shape == "stream" else 1
    device = step.opened.call.device if step.opened is not None else "cpu"
    return wanted * pass_seconds(info, step.tokens, flops or flops_per_second(device))


def _own_estimate(step: Step, view: ModelInfo) -> Estimate:
    """What the analysis says that it will need."""
    estimate: Estimate = said_of(str(step.use.analysis.descriptor.estimate), step.use, view, step.tokens)
    return estimate


def states_held(groups: int) -> int:
    """How many states errors over prompts hold at once: one for each group, and log2 G of many groups."""
    return groups + math.ceil(math.log2(groups))


def pass_seconds(info: ModelInfo, tokens: Tokens, per_second: float | None = None) -> float:
    """One forward pass over all prompts: 2 flops for a parameter and token, 4 n^2 d for attention."""
    lengths = np.array(tokens.lengths, dtype=np.float64)
    n, square = float(lengths.sum()), float(lengths @ lengths)
    flops = 2 * info.n_parameters * n + 4 * info.n_layers * info.n_heads * info.d_head * square
    return flops / (per_second or flops_per_second())


@cache
def flops_per_second(device: str = "cpu") -> float:
    """What a matrix product does there, measured in a moment; of a device that is not there, what the CPU does."""
    import torch

    side = 768 if device == "cpu" else 4096
    try:
        a = torch.ones(side, side, device=device)
        (a @ a)[0, 0].item()
    except (RuntimeError, AssertionError, NotImplementedError):
        return flops_per_second()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        found = a @ a
        if device != "cpu":
            found[0, 0].item()  # a device works on while the CPU goes on
        times.append(time.perf_counter() - start)
    return float(2 * side**3 / min(times))


def largest_of_shards(site: str, info: ModelInfo, tokens: Tokens) -> int:
    """What a site takes for the largest shard of prompts."""
    return _site_bytes(site, info, _sizes(tokens))


def _sizes(tokens: Tokens) -> list[tuple[int, int]]:
    """Of each shard the prompts, and the tokens of the longest."""
    lengths = np.array(tokens.lengths)
    return [(len(shard), int(lengths[shard].max())) for shard in tokens.shards()]


def _site_bytes(site: str, info: ModelInfo, shards: Sequence[tuple[int, int]]) -> int:
    """One layer of a site for the largest of (prompts, tokens of the longest); what an engine added is of d_model."""
    known = TABLE.get(site, TABLE["resid_pre"])
    shapes = (known.shape(info, *shard) for shard in set(shards))
    return max(map(math.prod, shapes), default=0) * BYTES.get(info.dtype, 4)
