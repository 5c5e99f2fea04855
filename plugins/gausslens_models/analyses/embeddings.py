"""model.embeddings: lengths, directions and softmax entropies of the token embeddings, and who is near to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, GausslensError, Runner, Tokens, variable

from ..maths.embeddings import mean_cosine, nearest, random_entropy, softmax_entropy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..parameters import EmbeddingsParameters

# Rows of the vocabulary worked on at a time.
ROWS = 4096


class Embeddings:
    """Looks at W_E as the edits leave it: the whole vocabulary in numbers, the prompts' tokens one by one."""

    def __init__(self, parameters: EmbeddingsParameters, context: Context) -> None:
        self.parameters = parameters
        self.context = context

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Numbers of the vocabulary, and neighbours of the distinct text tokens of the prompts."""
        vectors = runner.weights(None)["W_E"].detach().float().cpu().numpy()
        chosen = _distinct(prompts)
        if not len(chosen):
            raise GausslensError("model.embeddings: the prompts have no text tokens")
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
        entropy = np.concatenate([softmax_entropy(vectors[i : i + ROWS]) for i in range(0, len(vectors), ROWS)])
        generator = self.context.generator("random vectors")
        random = random_entropy(norms[chosen], vectors.shape[1], self.parameters.draws, generator)
        near, cosine = nearest(vectors, norms, chosen, min(self.parameters.nearest, len(vectors) - 1))
        names = {int(i): runner.decode([int(i)]) for i in {*chosen.tolist(), *near.ravel().tolist()}}
        deficit = np.float64(np.log(vectors.shape[1]) - entropy.mean())
        said = np.array([[names[i] for i in row] for row in near.tolist()], dtype=object)
        variables: dict[str, Any] = {
            "norm_mean": variable((), np.float64(norms.mean()), "mean length over the vocabulary"),
            "norm_sd": variable((), np.float64(norms.std()), "spread of the lengths over the vocabulary"),
            "mean_cosine": variable((), mean_cosine(vectors, norms), "mean cosine of two tokens"),
            "deficit_mean": variable(
                (), deficit, "log d less the entropy of softmax(embedding), mean over the vocabulary", "nat"
            ),
            "norm": variable("token", norms[chosen], "length of the embedding"),
            "softmax_entropy": variable("token", entropy[chosen], "entropy of softmax(embedding)", "nat"),
            "random_entropy": variable("token", random[0], "the same of random vectors of that length: mean", "nat"),
            "random_entropy_sd": variable("token", random[1], "and their standard deviation", "nat"),
            "nearest": variable(("token", "rank"), said, "the tokens of the largest cosine"),
            "nearest_cosine": variable(("token", "rank"), cosine, "their cosine"),
        }
        text = np.array([names[i] for i in chosen.tolist()], dtype=object)
        coords = {"token": chosen, "token_text": (("token",), text), "rank": np.arange(near.shape[1])}
        return xr.Dataset(variables, coords=coords)


def _distinct(prompts: Tokens) -> NDArray[np.int64]:
    """The distinct text tokens, in the order in which they first appear."""
    seen = (int(i) for ids, text in zip(prompts.ids, prompts.text, strict=True) for i in ids[text])
    return np.array(list(dict.fromkeys(seen)), dtype=np.int64)
