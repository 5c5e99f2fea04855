"""Pictures of the site: figures of each analysis' study, what each edit does to a matrix, the page of a whole run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import studies
from matplotlib.figure import Figure as Canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gausslens.plugins import Host

Pictures = dict[str, list[tuple[str, str]]]
MODEL = "builtin:tiny"
MOST = 2  # figures of one analysis
# Examples of which the gallery has the whole page; each takes seconds. No page may be larger than this.
DRAWN_WHOLE = ("previous-token", "drop-qk", "bilinear-heads")
LARGEST_PAGE = 5_000_000


def figures(host: Host, to: Path) -> Pictures:
    """The first figures of the report for each analysis' study, curves and maps before tables: file and caption."""
    import gausslens
    from gausslens.figures import Passages, TableRows

    made: Pictures = {}
    for analysis in host.analyses:
        store = studies.results(analysis, host)[0]
        drawn = gausslens.draw(store, label=analysis, host=host) if _has_section(analysis, host) else ()
        plain = [isinstance(each.figure.drawing(), TableRows | Passages) for each in drawn]
        for number in sorted(range(len(drawn)), key=lambda n: (plain[n], n))[:MOST]:
            figure = drawn[number].figure
            file = f"pictures/{analysis}-{number}.png"
            canvas = Canvas(
                figsize=(8, 2.6) if plain[number] else (7, 4.2), layout=None if plain[number] else "constrained"
            )
            drawn[number].plot(canvas.subplots())
            _save(canvas, to / file)
            made.setdefault(analysis, []).append((file, f"**{_plain(figure.title)}** {_plain(figure.caption)}"))
    return made


def edits(host: Host, to: Path) -> Pictures:
    """The entries and singular values of one matrix, as it is and as each edit leaves it."""
    import gausslens

    model = gausslens.load(MODEL)._opened.model
    made: Pictures = {}
    for name, owned in host.edits.items():
        before, after = _beside(owned, model) or (None, None)
        if before is None or after is None:
            continue
        file = f"pictures/{name}.png"
        _save(_two(before, after), to / file)
        given = studies.told()["edits"].get(name, {})
        words = f", with {', '.join(f'{k} {v}' for k, v in given.items())}" if given else ""
        made[name] = [(file, f"W_Q of the last layer of `{MODEL}`, [d_model, heads], as it is and edited{words}.")]
    return made


def pages(to: Path) -> dict[str, str]:
    """Pages as `gausslens report` draws them, by file, each with what it is of: the README's run, and some examples."""
    import gausslens

    text = (studies.ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"```yaml\n(gausslens: 1.+?)```", text, flags=re.DOTALL)
    assert shown is not None
    first = studies.RUNS / "first.yaml"
    first.write_text(shown[1], encoding="utf-8")
    to.mkdir(parents=True, exist_ok=True)
    made = {}
    for path in (first, *(studies.ROOT / f"examples/{name}.yaml" for name in DRAWN_WHOLE)):
        store = studies.BUILD / "whole" / path.stem
        gausslens.run(path, store=store, sets=["report=true"], shown=False)
        page = to / f"{path.stem}.html"
        shutil.copy(store / "report.html", page)
        if page.stat().st_size > LARGEST_PAGE:
            raise SystemExit(f"{page} has {page.stat().st_size} bytes, more than {LARGEST_PAGE}: choose a smaller run")
        made[page.name] = _about(path)
    return made


def _about(path: Path) -> str:
    """The first sentence of what a run file says of itself."""
    comments = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    said = " ".join(line for line in comments if not line.startswith("yaml-language-server"))
    return re.split(r"(?<=[.?]) ", said, maxsplit=1)[0] if said else "The run file on the front page."


def _has_section(analysis: str, host: Host) -> bool:
    return any(analysis in owned.descriptor.analyses for owned in host.sections.values())


def _beside(owned: Any, model: Any) -> tuple[Any, Any] | None:
    """W_Q of the last layer [d_model, heads], without and with an edit; None where it needs files, or leaves W_Q."""
    from gausslens import Twin
    from gausslens.contract.errors import Mark
    from gausslens.contract.reference import resolve
    from gausslens.contract.twin import EditCall

    given = studies.told()["edits"].get(owned.descriptor.name, {})
    if "path" in given:
        return None
    call = EditCall(owned, resolve(owned.descriptor.parameters)(**given), None, None, Mark("", 0, 0))
    last = model.info.layers[-1]
    twin = Twin(model, [call], draw=0 if owned.descriptor.random else None)
    if "W_Q" not in twin.touches(last):
        return None
    heads = [each.weights(last)["W_Q"] for each in (Twin(model), twin)]
    before, after = (w.permute(1, 0, 2).reshape(w.shape[1], -1).double().numpy() for w in heads)
    return before, after


def _two(before: Any, after: Any) -> Canvas:
    """Both matrices in one scale of colours, and their singular values against rank."""
    import numpy as np

    canvas = Canvas(figsize=(8, 2.9), layout="constrained")
    panels = canvas.subplots(1, 3, width_ratios=(1, 1, 1.3))
    most = float(np.abs(before).max())
    for axes, matrix, title in zip(panels, (before, after), ("as it is", "edited"), strict=False):
        _matrix(axes, matrix, most, title)
    for matrix, title, style in ((before, "as it is", "-"), (after, "edited", "--")):
        values = np.linalg.svd(matrix, compute_uv=False)
        panels[2].plot(np.arange(1, len(values) + 1), values, style, label=title, linewidth=1.6)
    panels[2].set_title("singular values by rank", fontsize=10, loc="left")
    panels[2].legend(frameon=False, fontsize=9)
    return canvas


def _matrix(axes: Axes, matrix: Any, most: float, title: str) -> None:
    axes.imshow(matrix, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xticks([])
    axes.set_yticks([])


def _save(canvas: Canvas, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})


def _plain(text: str) -> str:
    """A title or caption, which has no markup, as a sentence of Markdown."""
    from describe_api import escaped

    said = escaped(text.strip())
    return said if said.endswith((".", "!", "?")) else f"{said}."


def cards(pictures: Pictures) -> Iterator[str]:
    """The gallery: the first picture of each analysis, which leads to its page."""
    for analysis, (first, *_) in pictures.items():
        file, caption = first
        alt = re.sub(r"[\[\]*_`\\]", "", caption)[:120]
        page = f"reference/analyses/{analysis}.md"
        yield f"-   [![{alt}]({file}){{ loading=lazy }}]({page})\n\n    [`{analysis}`]({page})"
