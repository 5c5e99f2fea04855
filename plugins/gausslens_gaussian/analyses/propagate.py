"""gaussian.propagate: fitted Gaussians pushed through W_V and through attention, beside what is measured there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, Estimate, GausslensError, ModelInfo, Runner, Tokens, attributes, variable
from gausslens.maths.moments import Floats, RunningMoments
from gausslens.maths.spectra import tolerance

from ..maths.geometry import random_projection
from ..maths.information import mutual_information
from ..maths.information_from_samples import entropy_bias, information_bias, needed
from ..maths.mixing import mixed, mixed_by_many
from .value_path import ValuePath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..parameters import PropagateParameters

SITES = ("resid_pre", "v", "pattern", "z")
# Tokens that run at once.
_AT_ONCE = 2048
# Bytes of joint covariances that are held at once: with more layers than fit, the model runs again for the others.
_HELD = 1 << 30
# How a mixture is predicted.
KINDS = ("mean", "own")


class Propagate:
    """Runs the first positions of all prompts; each layer's moments are of prompts (attention) or of tokens (W_V)."""

    def __init__(self, parameters: PropagateParameters, context: Context) -> None:
        self.parameters, self.context = parameters, context

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Predicted and measured, for each layer and head in view."""
        runner = runner.whole
        info = self.context.model
        window, dims = self.parameters.window, min(self.parameters.dims, info.d_value or info.d_head)
        chosen = [i for i, n in enumerate(prompts.lengths) if n >= window]
        where = f"gaussian.propagate on {info.name}"
        if len(chosen) < needed(dims, dims):
            raise GausslensError(
                f"{where}: {len(chosen)} of {len(prompts)} prompts have {window} tokens or more, and it needs "
                f"{needed(dims, dims)} for the mutual information of {dims} and {dims} dimensions: give more prompts, "
                "or take a smaller `window` or fewer `dims`"
            )
        ids = np.stack([prompts.ids[i][:window] for i in chosen])
        text = np.stack([prompts.text[i][:window] for i in chosen])
        text[:, 0] = False
        projection = random_projection(info.d_value or info.d_head, dims, self.context.generator("projection"))
        layers = [n for n in info.layers if not any(s in info.lacking.get(n, {}) for s in SITES)]
        for layer in layers[:1]:
            # What its loader does not tell is refused before the model runs.
            ValuePath.of(runner.weights(layer))
        vary = _varying(ids)
        if len(vary) < 2:
            raise GausslensError(
                f"{where}: the first {window} tokens of all prompts are the same but for {len(vary)}: nothing varies "
                "that could be predicted; give other prompts, or a larger `window`"
            )
        at_once = max(1, _HELD // _held(info, window))
        parts: dict[int, dict[str, Any]] = {}
        for first in range(0, len(layers), at_once):
            gathered = {layer: _Gathered(info, projection) for layer in layers[first : first + at_once]}
            self._gather(runner, ids, text, gathered, prompts, chosen)
            parts |= {layer: one.compared(ValuePath.of(runner.weights(layer)), vary) for layer, one in gathered.items()}
        return _dataset(parts, info, vary, len(ids), dims, window)

    def _gather(
        self,
        runner: Runner,
        ids: Any,
        text: Any,
        gathered: dict[int, _Gathered],
        prompts: Tokens,
        chosen: Sequence[int],
    ) -> None:
        step = max(1, _AT_ONCE // self.parameters.window)
        for start in range(0, len(ids), step):
            beside = prompts.beside(chosen[start : start + step])
            found = runner.forward(ids[start : start + step], sites=SITES, **beside)
            for layer, one in gathered.items():
                one.add({s: _numpy(found[layer, s]) for s in SITES}, text[start : start + step])


class _Gathered:
    """The moments of one layer, in all dimensions of a head; ``projection`` takes them to those that entropies need."""

    def __init__(self, info: ModelInfo, projection: Floats) -> None:
        self.info, self.projection = info, projection
        self.tokens = RunningMoments()  # residual stream, tokens
        self.token_values = [RunningMoments() for _ in info.kv_heads]  # values, tokens
        self.values = RunningMoments()  # [kv_head, prompt, position * d_head]
        self.mixed = RunningMoments()  # [head, prompt, position * d_head]
        self.pattern = RunningMoments()  # [head, prompt, query * key]

    def add(self, arrays: dict[str, Floats], text: Any) -> None:
        """Take in some prompts."""
        v = arrays["v"][:, :, list(self.info.kv_heads)]
        z = arrays["z"][:, :, list(self.info.heads)]
        pattern = arrays["pattern"][:, list(self.info.heads)]
        self.tokens.add(arrays["resid_pre"][text])
        for i, state in enumerate(self.token_values):
            state.add(v[:, :, i][text])
        prompts, window = v.shape[:2]
        for state, wide in ((self.values, v), (self.mixed, z)):
            state.add(wide.transpose(2, 0, 1, 3).reshape(wide.shape[2], prompts, -1))
        self.pattern.add(pattern.swapaxes(0, 1).reshape(len(self.info.heads), prompts, window * window))

    def compared(self, path: ValuePath, vary: list[int]) -> dict[str, Any]:
        """What was predicted and measured; heads stacked."""
        made = self._values(path)
        window, width = round(self.pattern.mean.shape[-1] ** 0.5), self.projection.shape[1]
        values, mixtures = (
            state.covariance.reshape(-1, window, width, window, width) for state in (self.values, self.mixed)
        )
        patterns = self.pattern.covariance.reshape(-1, *(window,) * 4)
        heads = []
        for i, head in enumerate(self.info.heads):
            kv_head = self.info.kv_heads.index(self.info.kv_of_head[head])
            heads.append(self._head(i, kv_head, vary, (mixtures[i], values[kv_head], patterns[i])))
        return made | {name: np.stack([h[name] for h in heads]) for name in heads[0]}

    def _values(self, path: ValuePath) -> dict[str, Any]:
        """W_V: the Gaussian of the residual stream through norm and matrix, against the values' own moments."""
        kv_heads = list(self.info.kv_heads)
        _, predicted = path.pushed(self.tokens.mean, self.tokens.covariance)
        measured = np.stack([state.covariance for state in self.token_values])
        predicted = predicted[kv_heads]
        entropies = [_entropies(S, self.tokens.count) for S in (measured, predicted)]
        return {
            "value_covariance_error": _relative(predicted, measured),
            "value_entropy": entropies[0],
            "value_entropy_predicted": entropies[1],
            "value_entropy_error": _apart(entropies[1], entropies[0]) / measured.shape[-1],
        }

    def _head(self, head: int, kv_head: int, vary: list[int], moments: tuple[Floats, Floats, Floats]) -> dict[str, Any]:
        """Errors of mean and covariance over all dimensions; entropies and information after the projection."""
        measured, cov, A_cov = moments
        window, width = cov.shape[:2]
        dims, count = len(self.projection), self.values.count
        mean, means = (m.reshape(window, width) for m in (self.values.mean[kv_head], self.mixed.mean[head]))
        A = self.pattern.mean[head].reshape(window, window)
        blocks = {"measured": measured, "mean": mixed(mean, cov, A)[1], "own": mixed_by_many(mean, cov, A, A_cov)[1]}
        made: dict[str, Any] = {"mean_error": _norm_ratio(A @ mean - means, means)}
        for name, S in blocks.items():
            reduced = np.einsum("ka,iajb,lb->ikjl", self.projection, S, self.projection, optimize=True)
            kept = reduced[vary][:, :, vary]
            made[f"covariance_{name}"] = np.stack([kept[i, :, i] for i in range(len(vary))])
            made[f"entropy_{name}"] = _entropies(made[f"covariance_{name}"], count)
            made[f"mutual_information_{name}"] = _informations(kept, count)
        entropy, information = made["entropy_measured"], made["mutual_information_measured"]
        for kind in KINDS:
            made[f"covariance_error_{kind}"] = _norm_ratio(blocks[kind] - measured, measured)
            made[f"entropy_error_{kind}"] = np.abs(_apart(made[f"entropy_{kind}"], entropy)).mean() / dims
            made[f"mutual_information_error_{kind}"] = _share(made[f"mutual_information_{kind}"], information)
        return made


def _varying(ids: Any) -> list[int]:
    """Positions at which prompts differ from each other, at or before: elsewhere nothing varies."""
    differ = np.maximum.accumulate((ids != ids[0]).any(axis=0))
    found: list[int] = np.flatnonzero(differ).tolist()
    return found


def _numpy(tensor: Any) -> Floats:
    found: Floats = tensor.detach().cpu().double().numpy()
    return found


def _entropies(covariances: Floats, count: int) -> Floats:
    """Entropy of each covariance [..., d, d], corrected for the sample size; minus infinity where one is singular."""
    values = np.linalg.eigvalsh(covariances)
    d = values.shape[-1]
    singular = values[..., 0] <= tolerance(values)
    logs = 0.5 * np.log(2 * np.pi * np.e * np.where(singular[..., None], 1.0, values)).sum(axis=-1)
    return np.where(singular, -np.inf, logs - entropy_bias(count, d))


def _informations(joint: Floats, count: int) -> Floats:
    """Mutual information of each position with the next, corrected; infinite where one determines the other."""
    steps, d = len(joint) - 1, joint.shape[1]
    pairs = (joint[i : i + 2][:, :, i : i + 2].reshape(2 * d, 2 * d) for i in range(steps))
    return np.array([mutual_information(S, d) for S in pairs]) - information_bias(count, d, d)


def _relative(predicted: Floats, measured: Floats) -> Floats:
    """|predicted - measured| / |measured| in the Frobenius norm, for each of the first axis; 0 where both are zero."""
    return np.array([_norm_ratio(p - m, m) for p, m in zip(predicted, measured, strict=True)])


def _norm_ratio(error: Floats, of: Floats) -> float:
    size, apart = float(np.linalg.norm(of)), float(np.linalg.norm(error))
    return apart / size if size > 0 else (np.inf if apart > 0 else 0.0)


def _apart(predicted: Floats, measured: Floats) -> Floats:
    """predicted - measured, where both infinite and equal: 0."""
    same = predicted == measured
    found: Floats = np.where(same, 0.0, predicted) - np.where(same, 0.0, measured)
    return found


def _share(predicted: Floats, measured: Floats) -> float:
    """Sum of absolute errors over the sum of what is measured."""
    total = float(np.abs(measured[np.isfinite(measured)]).sum())
    error = float(np.abs(_apart(predicted, measured)).sum())
    return error / total if total > 0 else (np.inf if error > 0 else 0.0)


_HOW = {
    "measured": "measured",
    "mean": "predicted by the mean pattern",
    "own": "predicted by each prompt's own pattern",
}


def _dims_and_attributes() -> dict[str, tuple[tuple[str, ...], dict[str, Any]]]:
    """Dimensions after the layer, and attributes; what is kept of each position is compared with no null."""
    value, head, place, step = ("kv_head",), ("head",), ("head", "position"), ("head", "step")
    blocks = (*place, "component", "component_other")
    made: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "value_covariance_error": (value, attributes("relative error of the predicted covariance of the values")),
        "value_entropy": (value, attributes("entropy of the values", "nat")),
        "value_entropy_predicted": (
            value,
            attributes("entropy of the values, predicted through norm and W_V", "nat"),
        ),
        "value_entropy_error": (
            value,
            attributes("predicted less measured entropy of the values, per dimension", "nat"),
        ),
        "mean_error": (head, attributes("relative error of the predicted mean after attention, all dimensions")),
    }
    for kind, how in _HOW.items():
        text = f"covariance after attention, {how}"
        made[f"covariance_{kind}"] = (blocks, attributes(text, "squared activation", against=False))
        text = f"entropy after attention, {how}"
        made[f"entropy_{kind}"] = (place, attributes(text, "nat", against=False))
        text = f"mutual information of a position and the next after attention, {how}"
        made[f"mutual_information_{kind}"] = (step, attributes(text, "nat", against=False))
    for kind in KINDS:
        how = _HOW[kind]
        made[f"covariance_error_{kind}"] = (head, attributes(f"relative error of the covariance {how}, all dimensions"))
        made[f"entropy_error_{kind}"] = (head, attributes(f"mean error of the entropy {how}, per dimension", "nat"))
        text = f"relative error of the mutual information {how}"
        made[f"mutual_information_error_{kind}"] = (head, attributes(text))
    return made


def _dataset(
    parts: dict[int, dict[str, Any]], info: ModelInfo, vary: list[int], count: int, dims: int, window: int
) -> xr.Dataset:
    layers = sorted(parts)
    variables: dict[str, Any] = {"count": variable((), np.int64(count), "prompts", "prompts", against=False)}
    for name, (dimensions, attrs) in _dims_and_attributes().items():
        variables[name] = (("layer", *dimensions), np.stack([parts[layer][name] for layer in layers]), attrs)
    coords: dict[str, Any] = {"layer": layers, "head": list(info.heads), "kv_head": list(info.kv_heads)}
    coords |= {"position": vary, "step": vary[1:], "component": np.arange(dims), "component_other": np.arange(dims)}
    return xr.Dataset(variables, coords=coords, attrs={"window": window, "reduced_to": dims})


def _held(info: ModelInfo, window: int) -> int:
    """Bytes of one layer's joint covariances, and of a batch's while they are added."""
    return 16 * (len(info.heads) + len(info.kv_heads)) * (window * info.d_head) ** 2


def estimate(parameters: PropagateParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: the moments of the layers held at once, and the sites of all layers for the prompts that run at once."""
    dims, window, layers = min(parameters.dims, info.d_value or info.d_head), parameters.window, len(info.layers)
    heads, kv_heads = len(info.heads), len(info.kv_heads)
    joint = _held(info, window)
    at_once = min(layers, max(1, _HELD // joint))
    others = 16 * (info.d_model**2 + kv_heads * info.d_head**2 + heads * window**4)
    wide = info.d_model + (heads + kv_heads) * info.d_head + heads * window
    # Beside what is held: the covariances of one layer while it is compared.
    memory = at_once * (joint + others) + joint + layers * 4 * _AT_ONCE * wide
    return Estimate(memory=memory, disk=3 * 8 * layers * heads * window * dims**2)
