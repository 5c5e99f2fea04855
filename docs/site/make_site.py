"""Builds the documentation site: `make site` writes build/site/html, which needs no server and no network.

    python docs/site/make_site.py            the whole of it, in a minute or two; what was computed before is kept
    python docs/site/make_site.py --quick    without pictures and studies, to look at words

The pages are the documents of the tree, where they lie in it, so that their links hold here and there; beside them are
pages made of docstrings, descriptors, the help of the commands and the studies of studies.yaml.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import check_site
import describe_api
import describe_plugins
import draw_pictures
import studies
import yaml

if TYPE_CHECKING:
    from gausslens.plugins import Host

ROOT = studies.ROOT
PAGES, HTML = studies.BUILD / "pages", studies.BUILD / "html"
# The documents of the tree, and the run files that pages lead to; what else a document links to is copied too.
COPIED = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/**/*.md",
    "framework/*.md",
    "schemas/*.md",
    "examples/**/*.md",
    "examples/*.yaml",
)
# The guides in order, with what they are called at the left.
GUIDES = {
    "nulls": "Nulls",
    "prompts": "Prompts and behaviour",
    "models": "Models, tensors and sites",
    "attention": "Attention approximation",
    "gaussian": "Gaussian fitting",
    "bilinear": "Bilinear statistics",
    "spectrum-and-reinit": "Surgery and twins",
    "studies": "Many models in one study",
    "errors": "Errors over prompts",
    "training": "Training from a chosen start",
    "threads": "Threads and devices",
    "many-machines": "Processes and machines",
}
NOTEBOOKS = ROOT / "examples/notebooks"
Nav = list[Any]


def main() -> int:
    """Assemble the pages, have mkdocs build them, and check what came out."""
    quick = "--quick" in sys.argv[1:]
    for room in (PAGES, HTML):
        shutil.rmtree(room, ignore_errors=True)
    from gausslens.runfile.schema import ours

    host = ours()
    assemble(host, quick)
    if not _built():
        return 1
    (HTML / "404.html").unlink()  # the theme's, whose addresses hold at the root of a server alone
    for_models()
    wrong = check_site.troubles(HTML)
    if not quick:
        old = [str(path.relative_to(ROOT)) for path in studies.stale(host)]
        wrong += [f"{path} lists other outputs than the studies give: make schemas writes it" for path in old]
    print("\n".join(wrong[:40]) or f"{HTML / 'index.html'}: {len(list(PAGES.rglob('*.md')))} pages")
    return int(bool(wrong))


def _built() -> bool:
    """Have mkdocs build the pages; a warning of it is an error."""
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # the theme's advertisement of its successor
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    path = studies.BUILD / "mkdocs.yml"
    ours: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("mkdocs.yml").read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(ours | {"nav": navigation()}, sort_keys=False), encoding="utf-8")
    config = load_config(str(path), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    try:
        build(config)
    except Abort as error:
        print(error)
        return False
    return True


def assemble(host: Host, quick: bool) -> None:
    """Every page and picture, below PAGES."""
    for pattern in COPIED:
        for path in sorted(ROOT.glob(pattern)):
            _write(str(path.relative_to(ROOT)), path)
    _write("index.md", ROOT / "README.md")
    front = (PAGES / "index.md").read_text(encoding="utf-8")
    (PAGES / "index.md").write_text(f"---\nhide: [navigation]\n---\n{front}", encoding="utf-8")
    for name in ("site.css", "iframe-worker.js"):
        _write(name, Path(__file__).with_name(name))
    pictures: draw_pictures.Pictures = {}
    whole: dict[str, str] = {}
    if not quick:
        pictures = draw_pictures.figures(host, PAGES) | draw_pictures.edits(host, PAGES)
        whole = draw_pictures.pages(PAGES / "gallery")
    gallery = _gallery(pictures, whole, host)
    made = describe_api.pages() | describe_plugins.pages(host, pictures) | {"gallery.md": gallery}
    made |= dict(notebooks())
    for name, text in made.items():
        (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / name).write_text(text, encoding="utf-8")


def _write(name: str, path: Path) -> None:
    """Copy a file of the tree; a document as mkdocs reads Markdown, with the files that it links to."""
    to = PAGES / name
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".md":
        shutil.copy(path, to)
        return
    text = path.read_text(encoding="utf-8")
    to.write_text(as_mkdocs_reads(text), encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s:]+)\)", text):
        linked = (path.parent / link).resolve()
        if linked.suffix != ".md" and linked.is_file() and linked.is_relative_to(ROOT):
            _write(str(linked.relative_to(ROOT)), linked)


def as_mkdocs_reads(text: str) -> str:
    """The same Markdown with what Python's dialect wants: a blank line before a list, four columns within its items."""
    made: list[str] = []
    width, loose, fenced = (
        0,
        False,
        False,
    )  # the width of an item's mark, whether it has paragraphs, whether this is code
    for line in text.splitlines():
        item = re.match(r"(?:[-*]|\d+\.)[ ]+", line)
        above = made[-1].strip() if made else ""
        if line.startswith("```"):
            fenced = not fenced
        if fenced or line.startswith("```"):
            width = 0
        elif item:
            if above and (loose or not width):
                made.append("")
            width, loose = item.end(), False
        elif line.strip() and not line.startswith(" "):
            width = width if above else 0
        elif width and line.startswith(" " * width):
            loose = loose or not above
            line = "    " + line[width:]
        made.append(line)
    return "\n".join([*made, ""])


def _gallery(pictures: draw_pictures.Pictures, whole: Mapping[str, str], host: Host) -> str:
    of_analyses = {name: drawn for name, drawn in pictures.items() if name in host.analyses}
    text = "# Gallery\n\nWhole pages, as `gausslens report` draws them, each one file that needs no network:\n\n"
    text += "".join(f"- [{name.removesuffix('.html')}](gallery/{name}): {about}\n" for name, about in whole.items())
    text += "\nAnd a figure of each analysis, of the small study on its page.\n"
    if not of_analyses:
        text = "# Gallery\n\nNo pictures were drawn.\n"
    return (
        text + '\n<div class="gallery" markdown>\n\n' + "\n\n".join(draw_pictures.cards(of_analyses)) + "\n\n</div>\n"
    )


def notebooks() -> Iterator[tuple[str, str]]:
    """The notebooks of examples/notebooks as pages there: their texts, their code, and what they printed."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        held = json.loads(path.read_text(encoding="utf-8"))
        text = "\n\n".join(_cells(held["cells"])) + "\n"
        if not re.search(r"^# .+$", text, flags=re.MULTILINE):
            text = f"# {path.stem}\n\n{text}"
        yield f"examples/notebooks/{path.stem}.md", f"{text}\n[As a notebook]({path.name})\n"
        shutil.copy(path, _there("examples/notebooks") / path.name)
    listed = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    yield "examples/notebooks/README.md", as_mkdocs_reads(re.sub(r"\((\S+)\.ipynb\)", r"(\1.md)", listed))


def _there(name: str) -> Path:
    (PAGES / name).mkdir(parents=True, exist_ok=True)
    return PAGES / name


def _cells(cells: list[dict[str, Any]]) -> Iterator[str]:
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield as_mkdocs_reads(source).strip()
        elif cell["cell_type"] == "code" and source.strip():
            yield f"```python\n{source.strip()}\n```"
            printed = "".join("".join(o.get("text", ())) for o in cell.get("outputs", ()))
            yield from [f"```text\n{printed.strip()}\n```"] if printed.strip() else []


def navigation() -> Nav:
    """What stands in the tabs and at the left, in order; a page that is not in it is an error of the build."""
    api = [f"reference/api/{slug}.md" for slug in ("index", *describe_api.GROUPS, "figures", "testing")]
    maths: dict[str, Nav] = {}
    for module in describe_api.mathematics():
        maths.setdefault(module.split(".")[0], []).append({module.split(".maths.")[1]: f"reference/api/{module}.md"})
    kinds = [{title: _folder(f"reference/{folder}")} for folder, title, _ in describe_plugins.KINDS.values()]
    learn = [
        "docs/tutorial.md",
        "docs/three-questions.md",
        "docs/tasks.md",
        "docs/concepts.md",
        {"Notebooks": _folder("examples/notebooks")},
        "gallery.md",
    ]
    about = [
        "CHANGELOG.md",
        "SECURITY.md",
        "docs/REPRODUCTION.md",
        "docs/SOAK.md",
        "CONTRIBUTING.md",
        "docs/modules.md",
    ]
    tabs: Nav = [
        {"Home": "index.md"},
        {"Learn": learn},
        {"Guides": [{title: f"docs/{name}.md"} for name, title in GUIDES.items()]},
        {"Reference": [*kinds, {"Commands": "reference/commands.md"}, "schemas/STORE.md"]},
        {"API": [*api, *({f"Mathematics of {top}": pages} for top, pages in maths.items())]},
        {"Plugins": ["docs/plugins.md", "docs/plugin-authors.md", "framework/HOOKS.md", *_readmes()]},
    ]
    return [*tabs, {"About": [*about, *_others([*tabs, *about])]}]


def _folder(name: str) -> Nav:
    """A folder's pages, its index first."""
    pages = sorted((PAGES / name).glob("*.md"), key=lambda p: (p.name not in ("index.md", "README.md"), p.name))
    return [f"{name}/{path.name}" for path in pages]


def _readmes() -> Nav:
    """What examples that are distributions say of themselves."""
    found = sorted((PAGES / "examples").rglob("*.md"))
    return [str(path.relative_to(PAGES)) for path in found if path.parent.name != "notebooks"]


def _others(named: Nav) -> Nav:
    """Pages that no list above names: a new document is found here until it has its place."""
    held = {path for each in named for path in _paths(each)}
    found = (str(path.relative_to(PAGES)) for path in sorted(PAGES.rglob("*.md")))
    return [path for path in found if path not in held]


def _paths(entry: Any) -> Iterator[str]:
    """The pages of an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _paths(each)


def for_models() -> None:
    """The pages as Markdown beside the site's, their list llms.txt, and all of them in one file, llms-full.txt."""
    lines = [
        "# gausslens",
        "",
        "> What training put into a transformer's attention, and what chance would have put there.",
        "",
    ]
    whole = []
    for path in sorted(PAGES.rglob("*.md"), key=lambda p: (len(p.relative_to(PAGES).parts), str(p))):
        name, text = str(path.relative_to(PAGES)), path.read_text(encoding="utf-8")
        title = re.search(r"^# (.+?)(?: \{.*\})?$", text, flags=re.MULTILINE)
        shutil.copy(path, HTML / name)
        lines.append(f"- [{title[1] if title else name}]({name}){_about(text)}")
        whole += [f"<!-- {name} -->", text]
    (HTML / "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (HTML / "llms-full.txt").write_text("\n".join(whole), encoding="utf-8")


def _about(text: str) -> str:
    """The first sentence of a page's first paragraph."""
    blocks = re.split(r"\n\s*\n", text)
    block = next(
        (b for b in blocks if b.strip() and not b.startswith(("#", "!", "```", "|", "<", "- ", "    ", "---"))), ""
    )
    first = re.split(r"(?<=[^A-Z][.?!])\s", " ".join(block.split()))[0]
    return f": {first}" if first and len(first) < 300 else ""


if __name__ == "__main__":
    sys.exit(main())
