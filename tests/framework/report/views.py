"""Sections with views of a plugin's own, for the tests: what is given to them, what fails, what they may not do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from gausslens.figures import Custom, Figure, Line, Lines

from .sections import ABOUT, HOSTILE, every_kind

# Writes what it was given into its element.
WRITES = """
export default function draw(element, data, theme) {
  const array = ({ values, dims, coords, shape }) =>
    `${values.constructor.name} ${[...values]}; ${dims}; ${JSON.stringify(coords)}; ${shape}`;
  const text = (value) => (value && value.shape ? array(value) : JSON.stringify(value));
  for (const [name, value] of Object.entries(data)) {
    element.appendChild(document.createElement("p")).textContent = `${name}: ${text(value)}`;
  }
  element.append(Object.assign(document.createElement("button"), { textContent: "press" }));
  element.style.color = theme.series[0];
  element.dataset.theme = JSON.stringify(theme);
}
"""


def view(title: str, module: str = WRITES, data: Any = None, **more: Any) -> Custom:
    """A view, and a curve that stands in for it."""
    ramp = np.arange(1.0, 6.0)
    about = ABOUT | {"caption": "What stands in for it."}
    fallback = Lines(title="still", **about, x=ramp, x_name="layer", series=(Line("one", ramp),))
    return Custom(title=title, **ABOUT, data={} if data is None else data, module=module, fallback=fallback, **more)


def views(results: Any) -> list[Figure]:
    """One that is given every type of data, and some that fail."""
    plain = {"text": HOSTILE, "table": [1, 2.5, None, float("nan"), {"a": True}], "__proto__": "kept"}
    arrays = {"mass": np.arange(3, dtype=np.int64), "flags": np.array([True, False]), "half": np.float16([0.5, 2])}
    data = {"scores": results["trained", "scores"]["score"], **plain, **arrays, "words": np.array(["a", HOSTILE])}
    return [
        view("given", data=data, height=240),
        view("throws", "function draw() { throw new TypeError('<b>no</b>'); }"),
        view("misspelt", "export function draw( {"),
        view("rejects", "export async function draw() { await null; throw { toString() { throw 1; } }; }"),
        view("late", "export function draw() { setTimeout(() => { throw new Error('later'); }); }"),
        view("nameless", "// it has no draw"),
        view("imports", 'import { scale } from "./scale.js"; function draw() {}'),
    ]


def hostile_view(results: Any) -> list[Figure]:
    """Text that would end elements, attributes and scripts, in the module too."""
    ends = f"</script></template></iframe>\u2028\u2029]]><!--<script>{HOSTILE[:-1]}".replace("\x00", "").replace(
        "`", ""
    )
    module = f"const text = `{ends}`;\n//{ends.translate({0x2028: None, 0x2029: None})}\n"
    writes = "function draw(element, data) { element.textContent = data.said === text ? 'the same' : 'another'; }"
    return [view(HOSTILE, module + writes, {"said": ends, HOSTILE: HOSTILE})]


def quiet_view(results: Any) -> list[Figure]:
    """One in which nothing takes the focus."""
    return [*every_kind(results), view("quiet", "function draw(element) { element.textContent = 'nothing to press'; }")]


def trying(results: Any) -> list[Figure]:
    """One that tries what it may not, and two that leave for another page once they are drawn."""
    address = os.environ["ADDRESS_OF_TEST"]
    goes = "function draw() {{ setTimeout(() => {how}, 500); }}"
    clicks = f"Object.assign(document.createElement('a'), {{href: '{address}/click'}}).click()"
    return [
        view("tries", Path(__file__).with_name("tries.js").read_text(encoding="utf-8").replace("ADDRESS", address)),
        view("goes", goes.format(how=f"{{ location.href = '{address}/goes'; }}")),
        view("clicks", goes.format(how=clicks)),
    ]


def far_view(results: Any) -> list[Figure]:
    """One below everything else."""
    return [*every_kind(results), *every_kind(results), view("far")]


def heavy_views(results: Any) -> list[Figure]:
    """Views with more data than a page holds: one by itself, and many together."""
    numbers = np.random.default_rng(0).random(400_000)
    return [view("large", data={"x": numbers}), *(view(f"part {n}", data={"x": numbers[:200_000]}) for n in range(12))]
