"""Results depend on no number of threads: a study in processes of their own, with one thread and with two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import gausslens
from gausslens.guard import Guard, numpy_on_one_thread, torch_for_tokens

# What differed before, by rounding of narrow products, and edits by decomposition.
STUDY: dict[str, Any] = {
    "gausslens": 1,
    "name": "threads",
    "model": {"path": "builtin:tiny"},
    "prompts": {"source": "repeated-random", "prompts": 12, "length": 24},
    "variants": {
        "trained": [],
        "rotate": [{"edit": "reinit.rotate"}],
        "keep": [{"edit": "spectrum.keep", "k": 4}],
    },
    "analyses": [
        {"use": "gaussian.moments", "as": "queries", "with": {"site": "q"}},
        {"use": "gaussian.moments", "as": "stream", "with": {"site": "resid_pre"}},
        {"use": "bilinear.logits"},
        {"use": "bilinear.spectrum", "variants": ["trained", "rotate"]},
        {"use": "attention.kernels", "with": {"kernels": ["performer"], "features": [16, 64], "draws": 2}},
        {"use": "attention.lowrank", "with": {"rank": [1, 4], "draws": 2}},
    ],
    "report": False,
}
RUN = "import gausslens, json, sys; gausslens.run(json.loads(sys.argv[1]), store=sys.argv[2], shown=False)"


def _arrays(store: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for part in store.rglob("parts/**/*.h5"):

        def see(name: str, one: Any, part: Path = part) -> None:
            if isinstance(one, h5py.Dataset) and one.dtype.kind in "fciub":
                found[f"{part.relative_to(store)}/{name}"] = np.asarray(one[()]).tobytes()

        with h5py.File(part) as file:
            file.visititems(see)
    return found


def test_one_thread_and_two_find_the_same_bits(tmp_path: Path) -> None:
    for threads in "12":
        environment = os.environ | {"OMP_NUM_THREADS": threads}
        command = [sys.executable, "-c", RUN, json.dumps(STUDY), str(tmp_path / threads)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
    one, two = _arrays(tmp_path / "1"), _arrays(tmp_path / "2")
    assert one.keys() == two.keys()
    assert len(one) > 100
    assert [name for name in one if one[name] != two[name]] == []


@pytest.fixture
def two_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_call_of_a_plugin_has_one_thread_and_a_pass_over_many_tokens_all() -> None:
    seen = []

    def forward(tokens: int) -> None:
        with torch_for_tokens(tokens):
            seen.append(torch.get_num_threads())
            Guard().call(lambda: seen.append(torch.get_num_threads()))  # an edit, made when the pass needs it
            seen.append(torch.get_num_threads())

    def run() -> None:
        seen.append(torch.get_num_threads())
        forward(500)
        forward(5)
        seen.append(gausslens.threads())

    Guard().call(run)
    assert seen == [1, 2, 1, 2, 1, 1, 1, 2]
    assert torch.get_num_threads() == 2

    with pytest.raises(ValueError, match="of its own"):
        Guard().call(_fails)
    assert torch.get_num_threads() == 2


def _fails() -> None:
    raise ValueError("an error of its own")


def test_numpy_has_one_thread_until_the_last_run_has_ended() -> None:
    import scipy.linalg  # noqa: F401  its library is looked at too
    from threadpoolctl import ThreadpoolController

    def blas() -> set[int]:
        return {int(one["num_threads"]) for one in ThreadpoolController().select(user_api="blas").info()}

    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = blas()
        outer, inner = numpy_on_one_thread(), numpy_on_one_thread()
        outer.__enter__()
        inner.__enter__()
        outer.__exit__(None, None, None)
        assert blas() == {1}
        inner.__exit__(None, None, None)
        assert blas() == before


def test_products_that_depend_on_the_number_of_threads_do_not_within_a_run() -> None:
    """Where numpy's library cuts their sums by threads; where it does not, or on one core, all three are equal."""
    from threadpoolctl import ThreadpoolController

    def products() -> list[bytes]:
        draw = np.random.default_rng(0).standard_normal
        return [(draw((n, d)) @ draw((d, d))).tobytes() for n in (276, 588) for d in (32, 64, 128)]

    with ThreadpoolController().limit(limits=1, user_api="blas"):
        one = products()
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        two = products()
        with numpy_on_one_thread():
            kept = products()
    assert kept == one
    print(f"{sum(a != b for a, b in zip(one, two, strict=True))} of {len(one)} differ without it")


def test_torch_s_threads_wait_quietly_unless_the_user_says_else() -> None:
    code = "import os, gausslens.guard as g; g.wait_quietly(); print(os.environ['OMP_WAIT_POLICY'])"
    plain = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for environment, told in ((plain, "PASSIVE"), (plain | {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
        assert done.stdout.strip() == told
