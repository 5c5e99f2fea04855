"""The order in which plugins are registered changes no plan and no result."""

from __future__ import annotations

from importlib import import_module
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import gausslens
from gausslens.plugins import Host, load
from gausslens.spreading.prepare import prepare
from gausslens.testing import wiring

PLUGINS = {name: import_module(f"gausslens_{name}.plugin") for name in ("models", "gaussian", "reinit")} | {
    "tiny": wiring
}
STUDY: dict[str, Any] = {
    "gausslens": 1,
    "name": "order",
    "model": {"path": "builtin:testing", "loader": "tiny"},
    "prompts": {"source": "text", "text": ["one two three", "four", "five six"]},
    "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.gaussian"}], "draws": 3}},
    "analyses": [{"use": "gaussian.moments"}, {"use": "gaussian.moments", "as": "values", "with": {"site": "v"}}],
    "against": "chance",
    "report": False,
}
ORDERS = list(permutations(PLUGINS))


def host(order: tuple[str, ...]) -> Host:
    made = load(only=(), extra={name: PLUGINS[name] for name in order})
    assert not made.broken
    return made


def test_no_plan_depends_on_it() -> None:
    plans = [prepare(STUDY, host=host(order))[3] for order in ORDERS]
    assert len({plan.digest for plan in plans}) == 1
    assert all([s.ref for s in plan.steps] == [s.ref for s in plans[0].steps] for plan in plans)
    assert len({s.key for s in plans[0].steps}) == 10  # two analyses on four twins, and two comparisons


def test_no_result_depends_on_it(tmp_path: Path) -> None:
    stores = [
        gausslens.run(STUDY, store=tmp_path / str(n), host=host(order), shown=False)
        for n, order in enumerate((ORDERS[0], ORDERS[-1]))
    ]
    assert list(stores[0]) == list(stores[1])
    for name in stores[0]:
        found = [store[name].load() for store in stores]
        xr.testing.assert_identical(*found)
        assert found[0].sizes


@pytest.mark.parametrize("order", [ORDERS[0], ORDERS[-1]])
def test_announcements_come_in_order_of_name(order: tuple[str, ...]) -> None:
    names = [p.plugin for p in host(order).plugins]
    assert names == ["gaussian", "models", "reinit", "tiny"]
