"""Draw the figure of the README: two curves of gaussian-collapse.yaml, as one SVG file.

gausslens run examples/gaussian-collapse.yaml --store store
python examples/draw_collapse.py store docs/gaussian-collapse.svg
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import gausslens
from gausslens.figures import Lines
from gausslens.report.svg.plots import plot_picture
from gausslens_gaussian.figures.by_layer import by_layer

WIDTH, HEIGHT, HEAD = 560, 320, 56
STYLE = """
text{font:11px system-ui,sans-serif;fill:#5d5d58} .title{font-size:15px;font-weight:600;fill:#1d1d1b}
.name{font-size:12px} .grid{stroke:#ececea} .axis{stroke:#5d5d58} .curve{fill:none;stroke-width:2}
.s0{--c:#0072b2} .s1{--c:#d55e00} .curve{stroke:var(--c)} .band,.dot{fill:var(--c)} .band{opacity:.16}
"""
PANELS = {
    "entropy_deficit": "Attention: how far from uniform",
    "cosine": "Residual stream: mean cosine of two tokens",
}


def panel(figure: Lines, place: int) -> str:
    """A figure with its title and the key of its curves, moved to its place."""
    picture = plot_picture(figure.drawing(), figure.title)
    whole = re.findall(r'<svg viewBox="0 0 560 320".*?>(.*)</svg>', str(picture))[0]
    key = "".join(
        f'<g class="s{i}"><line class="curve" x1="{64 + 130 * i}" x2="{90 + 130 * i}" y1="40" y2="40"/>'
        f'<text x="{96 + 130 * i}" y="44">{line.name}</text></g>'
        for i, line in enumerate(figure.series)
    )
    title = f'<text class="title" x="64" y="22">{figure.title}</text>'
    return f'<g transform="translate({WIDTH * place} 0)">{title}{key}<g transform="translate(0 {HEAD})">{whole}</g></g>'


def main(store: str, out: str) -> None:
    """Read the store, write the file."""
    found = gausslens.open(store).by_label("gaussian.collapse")["collapse"]
    panels = []
    for place, (name, title) in enumerate(PANELS.items()):
        figure = by_layer(title, title, {result.variant: (result, name) for result in found}, least=0.0)
        assert isinstance(figure, Lines)
        panels.append(panel(figure, place))
    size = f'viewBox="0 0 {2 * WIDTH} {HEIGHT + HEAD}" width="{2 * WIDTH}" height="{HEIGHT + HEAD}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{"; ".join(PANELS.values())}">'
    paper = '<rect width="100%" height="100%" fill="#fff"/>'
    Path(out).write_text(f"{svg}<style>{STYLE}</style>{paper}{''.join(panels)}</svg>\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
