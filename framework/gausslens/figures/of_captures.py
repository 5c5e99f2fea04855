"""Figures of what a model computes in a cell: attention beside its tokens, and what an intervention does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_softmax

from .drawing import Dial
from .figure import Figure
from .heatmap import Heatmap
from .lines import Line, Lines
from .token_map import TokenMap

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

    from ..contract.prompts import Tokens


def maps_of_tokens(found: xr.Dataset) -> list[Figure]:
    """Every variable [layer, head, prompt, query, key] of a capture, prompt by prompt, under sliders.

    What lies beyond the end of a prompt is left out. The sliders begin at the head whose rows are the least even.
    """
    figures: list[Figure] = []
    for name, values in found.data_vars.items():
        if not {"prompt", "query", "key"} <= set(values.dims):
            continue
        turned = [dim for dim in ("layer", "head") if dim in values.dims]
        for prompt in range(values.sizes["prompt"]):
            one = values.isel(prompt=prompt).transpose(*turned, "query", "key")
            queries, keys = (_pieces(found, f"{side}_piece", prompt) for side in ("query", "key"))
            array = one.values[..., : len(queries), : len(keys)]
            uneven = np.nan_to_num(array**2).sum((-1, -2))
            starts = np.unravel_index(int(np.argmax(uneven)), uneven.shape) if turned else ()
            labels = [found[dim].values if dim in found.coords else range(one.sizes[dim]) for dim in turned]
            figures.append(
                TokenMap(
                    title=f"{name}, {found['prompt_name'].values[prompt] if 'prompt_name' in found else prompt}",
                    caption=f"{name} of {found.attrs.get('model', 'the model')}: a row is what one token looks at.",
                    sources=(),
                    units=str(values.attrs.get("units", "1")),
                    values=array,
                    queries=queries,
                    keys=keys,
                    dials=tuple(
                        Dial(dim, each, int(start)) for dim, each, start in zip(turned, labels, starts, strict=True)
                    ),
                )
            )
    return figures


def _pieces(found: xr.Dataset, name: str, prompt: int) -> list[str]:
    """The tokens of a prompt, without what pads it."""
    texts = [str(text) for text in found[name].values[prompt]]
    while texts and not texts[-1]:
        texts.pop()
    return texts


def effects_on_tokens(
    tokens: Tokens,
    before: NDArray[np.floating],
    after: NDArray[np.floating],
    decode: Callable[[Sequence[int]], str],
    most: int = 10,
) -> list[Figure]:
    """What an intervention does to each prompt, from logits [prompt, position, token] without and with it."""
    figures = []
    for prompt, ids in enumerate(tokens.ids):
        plain, changed = (each[prompt, : len(ids)].astype(np.float64) for each in (before, after))
        name, last = tokens.names[prompt], tokens.pieces[prompt][-1]
        figures += _effect(name, np.asarray(ids), plain, changed, decode, last, most)
    return figures


def _effect(
    name: str,
    ids: NDArray[np.int64],
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    decode: Callable[[Sequence[int]], str],
    last: str,
    most: int,
) -> list[Figure]:
    """Of a prompt, from its logits [position, token].

    The loss of each next token, -log softmax(logits)[next token], in nats; and the probabilities behind the last token,
    of those that change most.
    """
    logs = [log_softmax(each, axis=-1) for each in (before, after)]
    figures: list[Figure] = []
    if len(ids) > 1:
        losses = [-log[np.arange(len(ids) - 1), ids[1:]] for log in logs]
        means = [float(loss.mean()) for loss in losses]
        figures.append(
            Lines(
                title=f"Loss by token, {name}",
                caption=f"How badly each next token is predicted, before and after the intervention: {means[0]:.4g} "
                f"and {means[1]:.4g} nats on average.",
                sources=(),
                units="nat",
                x=np.arange(1, len(ids)),
                x_name="position of the token",
                series=(Line("before", losses[0]), Line("after", losses[1])),
            )
        )
    chances = np.exp(np.stack([log[-1] for log in logs], axis=1))
    change = np.abs(chances[:, 1] - chances[:, 0])
    shown = sorted(np.argsort(-change, kind="stable")[:most].tolist(), key=lambda token: -chances[token, 0])
    figures.append(
        Heatmap(
            title=f"Next token, {name}",
            caption=f"The probability of what comes behind {last!r}, before and after the intervention: the "
            f"{len(shown)} tokens that change most, the likeliest before first. In all {change.sum() / 2:.3g} of the "
            "probability moves.",
            sources=(),
            units="probability",
            values=chances[shown],
            rows=[decode([token]) for token in shown],
            columns=("before", "after"),
            row_name="next token",
            column_name="",
        )
    )
    return figures
