"""Draws rooms.svg, the rooms of the host and which imports which, and writes modules.md, what each module holds.

    python docs/draw_rooms.py          writes docs/rooms.svg and docs/modules.md
    python docs/draw_rooms.py --check  ends with 1 where one of them is older than the code

Rooms stand in the order of the layers in setup.cfg, highest first. An arrow says that a module of one room imports one
of another; arrows that follow from others (a to b to c gives a to c) are left out.
"""

from __future__ import annotations

import ast
import configparser
import html
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOST = ROOT / "framework/gausslens"
DRAWING, INDEX = ROOT / "docs/rooms.svg", ROOT / "docs/modules.md"
WIDTH, BOX, ROW = 760, (168, 44), 78
# What a room is for, in a few words.
WORDS = {
    "__main__": "the program",
    "command": "one module a command",
    "testing": "checks for plugins",
    "notebook": "load, versus",
    "drawings": "figures in Python",
    "command_line": "what was typed",
    "verdicts": "what departs, and why",
    "perform": "a run, top to bottom",
    "spreading": "tasks, claims, workers",
    "report": "the page",
    "runfile": "YAML to a study",
    "measuring": "twins, passes, errors",
    "runs": "open, plan, compare",
    "figures": "figures as data",
    "plugins": "find and load",
    "store": "parts, manifests",
    "parameters": "a door to contract",
    "contract": "what plugins meet",
    "maths": "pure, on arrays",
    "guard": "calls of plugins",
    "version": "one number",
}


def layers() -> list[list[str]]:
    """The rooms in the order of setup.cfg, those of one height together."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    rows = parser["importlinter:contract:direction"]["layers"].strip().splitlines()
    return [[room.strip() for room in row.split(":")] for row in rows]


def imports() -> dict[str, set[str]]:
    """For each room the rooms that its modules import, at run time or for types."""
    found: dict[str, set[str]] = {}
    for path in sorted(HOST.rglob("*.py")):
        package = ["gausslens", *path.relative_to(HOST).parent.parts]
        parts = path.relative_to(HOST).with_suffix("").parts
        if parts == ("__init__",):
            continue  # the public door: it names everything
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                above = package[: len(package) - node.level + 1]
                named = [*above, *(node.module.split(".") if node.module else [])]
                rooms = [named[1]] if len(named) > 1 else [alias.name for alias in node.names]
                found.setdefault(parts[0], set()).update(room for room in rooms if room != parts[0])
    return found


def reduced(edges: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Arrows that do not follow from others."""

    def reached(start: str, seen: set[str]) -> set[str]:
        for after in edges.get(start, ()):
            if after not in seen:
                reached(after, seen | {start})
                seen.add(after)
                seen |= reached(after, seen)
        return seen

    below = {room: reached(room, set()) for room in edges}
    return [(a, b) for a in edges for b in edges[a] if not any(b in below.get(c, ()) for c in edges[a] - {b})]


def drawing() -> str:
    """The SVG."""
    rows = layers()
    places = {}
    for number, row in enumerate(rows):
        for place, room in enumerate(row):
            places[room] = (WIDTH * (place + 1) / (len(row) + 1) - BOX[0] / 2, 12 + number * ROW)
    height = 24 + ROW * len(rows)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="13">',
        "<title>The rooms of the host, and which imports which</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0L8,4L0,8z" fill="#5b6b7b"/></marker></defs>',
    ]
    for above, below in sorted(reduced(imports())):
        if above in places and below in places and above != below:
            (x1, y1), (x2, y2) = places[above], places[below]
            middle = BOX[0] / 2
            drawn.append(
                f'<line x1="{x1 + middle:g}" y1="{y1 + BOX[1]:g}" x2="{x2 + middle:g}" y2="{y2:g}" stroke="#5b6b7b" '
                'stroke-width="1.2" marker-end="url(#tip)"/>'
            )
    for room, (x, y) in places.items():
        centre = x + BOX[0] / 2
        drawn.append(
            f'<rect x="{x:g}" y="{y:g}" width="{BOX[0]}" height="{BOX[1]}" rx="7" fill="#eef3f8" stroke="#0072b2"/>'
        )
        drawn.append(f'<text x="{centre:g}" y="{y + 18:g}" text-anchor="middle" font-weight="bold">{room}</text>')
        words = html.escape(WORDS.get(room, ""))
        drawn.append(f'<text x="{centre:g}" y="{y + 35:g}" text-anchor="middle" fill="#44525f">{words}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def index() -> str:
    """Each module of the host and of our plugins, with the first paragraph of its docstring."""
    written = ["# Modules", "", "What each module holds, by room. Made by `docs/draw_rooms.py` from their docstrings."]
    paths = [path for top in (HOST, ROOT / "plugins") for path in top.rglob("*.py") if path.name != "__init__.py"]
    room = None
    for path in sorted(paths, key=lambda path: (str(path.parent), path.name)):
        if path.parent != room:
            room = path.parent
            written += ["", f"## {room.relative_to(ROOT)}", "", "| module | what is in it |", "|---|---|"]
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        words = " ".join(words.split("\n\n")[0].split()).replace("|", "&#124;").replace("``", "`")
        written.append(f"| `{path.stem}` | {words} |")
    return "\n".join([*written, ""])


def main() -> int:
    """Write both, or check that they are what would be written."""
    made = {DRAWING: drawing(), INDEX: index()}
    if "--check" in sys.argv[1:]:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
