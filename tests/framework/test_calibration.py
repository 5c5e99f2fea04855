"""That p of 5 % is 5 %, on real twins: the fast form of `make soak`, with the resampling of benchmarks/calibration.py.

Twins of one null are made once, and every departure that is found of one beside others is false.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from gausslens.maths import nulls

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TWINS, DRAWS, REPEATS = 24, 8, 60
LABELS = ("collapse", "spectra", "angles", "loss")


@pytest.fixture(scope="module")
def calibration():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import calibration
    finally:
        sys.path.remove(str(BENCHMARKS))
    return calibration


@pytest.fixture(scope="module")
def twins(calibration, tmp_path_factory):
    """Variables of 24 twins of the built-in model before training."""
    store = tmp_path_factory.mktemp("calibration") / "store"
    calibration.gather(calibration.study("builtin:tiny", TWINS, LABELS, ["before"]), store)
    return calibration.load(store, calibration.run_name("builtin:tiny"), "before", TWINS)


def rates(calibration, twins):
    return calibration.summary(twins, calibration.resampled(twins, DRAWS, REPEATS, every=6))


def test_no_more_than_five_per_cent_is_called(calibration, twins):
    """The mean over variables, and any selected, within 3 standard errors; no variable above 5 % after Holm."""
    found = rates(calibration, twins)
    assert found["variables"] > 20
    mean, error = found["mean"]
    assert mean <= 0.05 + 3 * error
    assert mean > 0  # some twin is called somewhere: else the law is too wide to say anything
    some, error = found["any selected"]
    assert some <= 0.05 + 3 * max(error, np.sqrt(0.05 * 0.95 / REPEATS))
    assert found["above after Holm"] == []
    # One cell of each variable 8 null deviations off, in 10 repeats: some 300 tries.
    assert found["power"] >= 0.75 - 3 * np.sqrt(0.75 * 0.25 / 300)
    assert found["false share"] <= 0.06 + 3 * np.sqrt(0.06 * 0.94 / 300)


def plain(x, draws, pooled=(), unlike=()):
    """Student's t with each cell's own sd, and Benjamini-Hochberg."""
    found = nulls.compare(x, draws, pooled, unlike)
    m = len(draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stats.t.sf(np.abs((x - found.mean) / (found.sd * np.sqrt(1 + 1 / m))), m - 1)
    p = np.where(np.isnan(found.p), np.nan, p)
    return replace(found, p=p, q=nulls.benjamini_hochberg(p), p_variable=nulls.simes(p))


def test_the_same_with_a_plain_t_is_more(calibration, twins, monkeypatch):
    """So the test above can fail."""
    monkeypatch.setattr(calibration, "compare", plain)
    found = rates(calibration, twins)
    mean, error = found["mean"]
    print(found["mean"], found["any selected"], found["above after Holm"])
    assert mean > 0.05 + 3 * error or found["above after Holm"]
