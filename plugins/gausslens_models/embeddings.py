"""model.embeddings: lengths, directions and softmax entropies of the token embeddings, and who is near to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, GausslensError, Runner, Tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .parameters import EmbeddingsParameters

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
        d = vectors.shape[1]
        of_all = ((), np.float64(norms.mean()), _attrs("mean length over the vocabulary", "1"))
        variables: dict[str, Any] = {
            "norm_mean": of_all,
            "norm_sd": ((), np.float64(norms.std()), _attrs("spread of the lengths over the vocabulary", "1")),
            "mean_cosine": ((), mean_cosine(vectors, norms), _attrs("mean cosine of two tokens", "1")),
            "deficit_mean": (
                (),
                np.float64(np.log(d) - entropy.mean()),
                _attrs("log d less the entropy of softmax(embedding), mean over the vocabulary", "nat"),
            ),
            "norm": (("token",), norms[chosen], _attrs("length of the embedding", "1")),
            "softmax_entropy": (("token",), entropy[chosen], _attrs("entropy of softmax(embedding)", "nat")),
            "random_entropy": (("token",), random[0], _attrs("the same of random vectors of that length: mean", "nat")),
            "random_entropy_sd": (("token",), random[1], _attrs("and their standard deviation", "nat")),
            "nearest": (
                ("token", "rank"),
                np.array([[names[i] for i in row] for row in near.tolist()], dtype=object),
                _attrs("the tokens of the largest cosine", "1"),
            ),
            "nearest_cosine": (("token", "rank"), cosine, _attrs("their cosine", "1")),
        }
        text = np.array([names[i] for i in chosen.tolist()], dtype=object)
        coords = {"token": chosen, "token_text": (("token",), text), "rank": np.arange(near.shape[1])}
        return xr.Dataset(variables, coords=coords)


def softmax_entropy(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Entropy in nats of softmax(v) for each row v: H = log Z - sum v e^v / Z, with Z = sum e^v."""
    shifted = vectors.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    z = weights.sum(axis=1)
    found: NDArray[np.float64] = np.log(z) - (weights * shifted).sum(axis=1) / z
    return found


def random_entropy(
    norms: NDArray[np.float64], d: int, draws: int, generator: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and spread of the softmax entropy of vectors of these lengths with uniform directions.

    For logits of variance s2 = norm^2 / d it is log d - s2 / 2, as long as s2 is well below 2 log d.
    """
    directions = generator.standard_normal((draws, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    found = np.array([softmax_entropy(norm * directions) for norm in norms])
    return found.mean(axis=1), found.std(axis=1, ddof=1)


def mean_cosine(vectors: NDArray[Any], norms: NDArray[np.float64]) -> np.float64:
    """Mean cosine over pairs of different rows, in one pass: (|sum of unit vectors|^2 - n) / (n (n - 1))."""
    used = norms > 0
    n = int(used.sum())
    total = (vectors[used] / norms[used, None]).sum(axis=0, dtype=np.float64)
    return np.float64((total @ total - n) / (n * (n - 1)))


def nearest(
    vectors: NDArray[Any], norms: NDArray[np.float64], chosen: NDArray[np.int64], most: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each chosen row the rows of largest cosine, itself left out, largest first; ties by number."""
    unit = vectors / np.where(norms > 0, norms, 1)[:, None].astype(vectors.dtype)
    near = np.empty((len(chosen), most), dtype=np.int64)
    cosine = np.empty((len(chosen), most))
    for place, number in enumerate(chosen):
        found = unit @ unit[number]
        found[number] = -np.inf
        near[place] = np.argsort(-found, kind="stable")[:most]
        cosine[place] = found[near[place]]
    return near, cosine


def _distinct(prompts: Tokens) -> NDArray[np.int64]:
    """The distinct text tokens, in the order in which they first appear."""
    seen = (int(i) for ids, text in zip(prompts.ids, prompts.text, strict=True) for i in ids[text])
    return np.array(list(dict.fromkeys(seen)), dtype=np.int64)


def _attrs(long_name: str, units: str) -> dict[str, str]:
    return {"long_name": long_name, "units": units}
