"""Whether a built site is whole and stands alone: resources, links, anchors, public names, llms.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes by which a browser fetches something on its own; of links those of these kinds.
FETCHED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "input": "src",
    "object": "data",
    "script": "src",
    "source": "src",
    "track": "src",
    "video": "src",
}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
_IN_CSS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


@dataclass
class Page(HTMLParser):
    """What a page names: what it fetches, where it leads, and the places in it that may be led to."""

    fetched: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    _style: bool = False

    def __post_init__(self) -> None:
        """Begin as HTMLParser does."""
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """What one element names."""
        told = {name: value or "" for name, value in attrs}
        self._style = tag == "style"
        self.places |= {told[name] for name in ("id", "name") if name in told}
        self.fetched += _in_css(told.get("style", ""))
        self.fetched += [piece.split()[0] for piece in told.get("srcset", "").split(",") if piece.strip()]
        if tag in FETCHED and FETCHED[tag] in told:
            self.fetched.append(told[FETCHED[tag]])
        if tag == "link" and set(told.get("rel", "").split()) & FETCHED_LINKS:
            self.fetched.append(told["href"])
        if tag in ("a", "area") and "href" in told:
            self.links.append(told["href"])

    def handle_data(self, data: str) -> None:
        """Styles that stand in the page."""
        if self._style:
            self.fetched += _in_css(data)


def read(path: Path) -> Page:
    """A page."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def troubles(site: Path) -> list[str]:
    """Everything that is wrong with a site, a line each."""
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    return [*_from_elsewhere(site, pages), *_broken(site, pages), *_unnamed(pages), *_unlisted(site)]


def _from_elsewhere(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """What a browser would ask the network for."""
    for path, page in pages.items():
        yield from (f"{path.relative_to(site)} fetches {u}" for u in page.fetched if is_elsewhere(u))
    for path in sorted(site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        yield from (f"{path.relative_to(site)} fetches {u}" for u in _in_css(text) if is_elsewhere(u))


def is_elsewhere(url: str) -> bool:
    """Whether an address is of another host."""
    return bool(urlsplit(url).netloc)


def _broken(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Links that lead nowhere; those to other hosts by their form alone."""
    for path, page in pages.items():
        for link in dict.fromkeys([*page.links, *page.fetched]):
            said = f"{path.relative_to(site)} leads to {link}"
            parts = urlsplit(link)
            if parts.scheme in ("data", "javascript", "mailto", "blob"):
                continue
            if parts.scheme or parts.netloc:
                if parts.scheme not in ("http", "https") or "." not in parts.netloc or " " in link:
                    yield f"{said}, which is no address"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{said}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                yield f"{said}: there is no such place in it"


def _unnamed(pages: dict[Path, Page]) -> Iterator[str]:
    """Public names without a place in the reference."""
    places = {place for page in pages.values() for place in page.places}
    yield from (f"no page has {name}" for name in public_names() if name not in places)


def public_names() -> list[str]:
    """Every name that a plugin or a notebook may use."""
    import describe_api

    import gausslens
    import gausslens.figures
    import gausslens.testing

    rooms = (gausslens, gausslens.testing)
    names = [f"{room.__name__}.{name}" for room in rooms for name in room.__all__]
    names += [
        f"gausslens.figures.{name}"
        for name, thing in vars(gausslens.figures).items()
        if not name.startswith("_") and str(getattr(thing, "__module__", "")).startswith("gausslens.figures")
    ]
    return names + [each.called for path in describe_api.mathematics().values() for each in describe_api.names_of(path)]


def _unlisted(site: Path) -> Iterator[str]:
    """Pages that llms.txt does not list, and what it lists that is not there."""
    listed = set(
        re.findall(r"^- \[.*?\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    there = {str(path.relative_to(site)) for path in site.rglob("*.md")}
    yield from (f"llms.txt does not list {name}" for name in sorted(there - listed))
    yield from (f"llms.txt lists {name}, which is not there" for name in sorted(listed - there))


def _in_css(text: str) -> list[str]:
    return [a or b for a, b in _IN_CSS.findall(text) if not (a or b).startswith("data:")]
