"""bilinear.head-roles: as the host runs it, and heads whose role is planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from gausslens import Batch, Context, ModelInfo, Prompt
from gausslens.testing import TinyModel, TinyParameters, check_round_trip, check_stream
from gausslens_bilinear.analyses.head_roles import ROLES, HeadRoles, keys_of, positional_share
from gausslens_bilinear.parameters import HeadRolesParameters
from gausslens_bilinear.plugin import ROLES as DESCRIPTOR


@pytest.mark.parametrize("positions", [3, 48])
def test_as_the_host_runs_it(positions: int) -> None:
    result = check_stream(DESCRIPTOR, HeadRolesParameters(positions=positions), atol=1e-7)
    check_round_trip(result)
    assert result["induction"].dims == ("layer", "head")


class _Stranger(TinyModel):
    """A model of whose family the loader knows nothing."""

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, facts={"position": "unknown", "norm": "unknown"})


def test_of_a_family_that_nobody_knows_chance_is_missing_and_the_rest_is_there() -> None:
    known, strange = (check_stream(DESCRIPTOR, model=model, atol=1e-7) for model in (TinyModel(), _Stranger()))
    for name in known:
        if str(name).endswith("_chance"):
            assert np.isnan(strange[name]).all()
        else:
            np.testing.assert_array_equal(strange[name], known[name])


def test_the_keys_of_each_role() -> None:
    tokens = np.array([[5, 7, 5, 9, 7, 0]])
    real = np.array([[True] * 5 + [False]])
    keys = {role: mask[0] for role, mask in keys_of(tokens, real, np.arange(6)).items()}

    def places(role: str) -> set[tuple[int, int]]:
        return {(int(q), int(k)) for q, k in np.argwhere(keys[role])}

    assert places("previous") == {(1, 0), (2, 1), (3, 2), (4, 3)}
    assert places("self") == {(i, i) for i in range(5)}
    assert places("first") == {(i, 0) for i in range(1, 5)}
    assert places("duplicate") == {(2, 0), (4, 1)}
    assert places("induction") == {(2, 1), (4, 2)}


HEADS = ("previous", "duplicate", "induction", "even", "random", "first")


def _patterns(tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Causal patterns [prompt, head, query, key] of heads that each do one thing as far as they can."""
    prompts, n = tokens.shape
    even = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    real = np.ones((prompts, n), dtype=bool)
    keys = keys_of(tokens, real, np.arange(n))
    made = []
    for head in HEADS:
        if head == "random":
            drawn = np.tril(rng.exponential(size=(prompts, n, n)))
            made.append(drawn / drawn.sum(axis=-1, keepdims=True))
            continue
        wanted = np.zeros((prompts, n, n)) if head == "even" else keys[head].astype(float)
        total = wanted.sum(axis=-1, keepdims=True)
        made.append(np.where(total > 0, wanted / np.maximum(total, 1), even))
    return np.stack(made, axis=1)


def _roles(prompts: int = 40, length: int = 12) -> xr.Dataset:
    rng = np.random.default_rng(0)
    once = np.stack([rng.permutation(200)[:length] for _ in range(prompts)])
    tokens = np.concatenate([once, once], axis=1)
    model = TinyModel(TinyParameters(layers=1, heads=len(HEADS), kv_heads=1))
    held = model.tokenise([Prompt(ids=tuple(map(int, row))) for row in tokens])
    there = torch.ones(tokens.shape, dtype=torch.bool)
    pattern = torch.tensor(_patterns(tokens, rng))
    batch = Batch(
        0, np.arange(prompts), torch.tensor(tokens), there, there, {"pattern": pattern}, tuple(range(6)), (0,)
    )
    state = HeadRoles(HeadRolesParameters(positions=length), Context(model.info, 0, held))
    state.update(batch)
    return state.result().isel(layer=0)


def test_planted_heads_are_told_by_their_roles() -> None:
    found = _roles()
    for role in ("previous", "duplicate", "induction", "first"):
        scores = found[role].values
        mine = HEADS.index(role)
        assert scores[mine] == pytest.approx(1), role
        assert np.delete(scores, mine).max() < 0.5, role
        assert found[f"{role}_error"].values[mine] == pytest.approx(0, abs=1e-9)
        # An even head gives what chance is said to give.
        assert scores[HEADS.index("even")] == pytest.approx(found[f"{role}_chance"].values[0], rel=1e-6)
    positional = found["positional"].values
    assert positional[[HEADS.index("previous"), HEADS.index("first")]] == pytest.approx(1)
    assert np.isnan(positional[HEADS.index("even")])
    assert abs(positional[HEADS.index("random")]) < 0.05


def test_what_is_position_alone_is_unbiased(judge: Any, rng: Any) -> None:
    """Attention that is half a fixed map of positions and half noise: its share, whatever the number of prompts."""
    n, draws = 10, 400
    fixed = rng.dirichlet(np.ones(n), n)
    shares = {}
    for prompts in (3, 30):
        found = []
        for _ in range(draws):
            P = 0.5 * fixed + 0.5 * rng.dirichlet(np.ones(n), (prompts, n))
            found.append(positional_share(P.sum(0)[None], (P**2).sum(0)[None], np.full(n, prompts), causal=False)[0])
        shares[prompts] = (np.mean(found), np.std(found) / np.sqrt(draws))
    rows = slice(1, None)
    signal = 0.25 * ((fixed - 1 / n)[rows] ** 2).sum()
    noise = 0.25 * (n - 1) * n * (1 / n) * (1 - 1 / n) / (n + 1)
    right = signal / (signal + noise)
    for prompts, (mean, error) in shares.items():
        # A ratio of means is biased by the order of 1/(prompts n^2).
        assert abs(mean - right) < 4 * error + 0.3 / (prompts * n), (prompts, mean, right)


def test_all_roles_have_words() -> None:
    result = _roles(4, 6)
    for role in ROLES:
        assert ROLES[role] in result[role].attrs["long_name"]
