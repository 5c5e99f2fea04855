"""Pages of analyses, edits, sources and loaders from their descriptors, and of the commands from their help."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import describe_api
import studies

if TYPE_CHECKING:
    from gausslens.contract.descriptors import Owned
    from gausslens.plugins import Host

ROOT = Path(__file__).parents[2]
HERE = "reference"
# Folder of a kind's pages, what the list is called, and what is said above it.
KINDS = {
    "analysis": ("analyses", "Analyses", "What can be computed, in four [shapes](../../docs/concepts.md#shapes)."),
    "edit": (
        "edits",
        "Edits",
        "What can be done to weights: [nulls](../../docs/nulls.md), surgery, schemes of initialisation.",
    ),
    "source": ("sources", "Sources of prompts", "Where [prompts](../../docs/prompts.md) come from."),
    "loader": ("loaders", "Loaders", "How [models](../../docs/models.md) are opened."),
}
# The document that says more of what a plugin offers.
GUIDES = {
    "attention": "attention.md",
    "bilinear": "bilinear.md",
    "gaussian": "gaussian.md",
    "matrices": "attention.md",
    "models": "models.md",
    "reinit": "spectrum-and-reinit.md",
    "spectrum": "spectrum-and-reinit.md",
}
_FLAGS = {
    "random": "draws numbers, by the seed of the run",
    "all_layers": "sees all layers at once",
    "by_layer": "looks at each layer by itself",
    "bulk": "writes large arrays",
    "texts": "holds text of tokens",
    "crossed": "knows attention between two stacks",
    "any_size": "compares models of other sizes",
}


def pages(host: Host, pictures: Mapping[str, list[tuple[str, str]]]) -> dict[str, str]:
    """Every page by its path. ``pictures`` are the figures of an analysis or edit: file and caption."""
    made = {f"{HERE}/commands.md": _commands()}
    for kind, (folder, title, text) in KINDS.items():
        known = dict(sorted(host.of(kind).items()))
        rows = [
            f"| [`{name}`]({name}.md) | {_cell(o.descriptor.summary)} | {o.owner.plugin} |" for name, o in known.items()
        ]
        head = [f"# {title}", "", text, "", "| name | what it is | plugin |", "|---|---|---|"]
        made[f"{HERE}/{folder}/index.md"] = "\n".join([*head, *rows, ""])
        for name, owned in known.items():
            made[f"{HERE}/{folder}/{name}.md"] = _page(kind, owned, host, pictures.get(name, []))
    return made


def _page(kind: str, owned: Owned[Any], host: Host, pictures: list[tuple[str, str]]) -> str:
    descriptor = owned.descriptor
    about = f"{kind[0].upper()}{kind[1:]} of the plugin `{owned.owner.plugin}`, version {descriptor.version}"
    parts = [f"# {descriptor.name}", _sentence(descriptor.summary), ". ".join([about, *_facts(kind, descriptor)]) + "."]
    parts += ["## In a run file", f"```yaml\n{_run_file(kind, descriptor.name)}```", *_examples(kind, descriptor.name)]
    if kind == "analysis" and "note" in (told := studies.told()["analyses"].get(descriptor.name, {})):
        parts.append(told["note"])
    if pictures:
        parts += ["## What it shows" if kind == "analysis" else "## What it does to a matrix"]
        parts += [f"![{_alt(caption)}](../../{file}){{ loading=lazy }}\n\n{caption}" for file, caption in pictures]
    parts += ["## Parameters", *_parameters(descriptor)]
    if kind == "analysis":
        parts += ["## Outputs", *_outputs(descriptor)]
    parts += ["## Formula and source", *_behind(kind, descriptor)]
    guide = (
        f"[{GUIDES[owned.owner.plugin]}](../../docs/{GUIDES[owned.owner.plugin]})"
        if owned.owner.plugin in GUIDES
        else ""
    )
    parts += [f"More of it, with formulas and references: {guide}."] if guide else []
    drawn = (
        [s for s, o in host.sections.items() if descriptor.name in o.descriptor.analyses] if kind == "analysis" else []
    )
    parts += [f"On the page of a store: {', '.join(f'“{_question(host, s)}”' for s in drawn)}."] if drawn else []
    return "\n\n".join(parts) + "\n"


def _question(host: Host, section: str) -> str:
    descriptor = host.sections[section].descriptor
    return str(descriptor.question or descriptor.summary)


def _facts(kind: str, descriptor: Any) -> Iterator[str]:
    """What the descriptor declares, in words."""
    if kind == "analysis":
        yield f"Shape [`{descriptor.shape}`](../../docs/concepts.md#shapes)"
        said = [words for flag, words in _FLAGS.items() if getattr(descriptor, flag)]
        yield from [f"It {', '.join(said)}"] if said else []
        if descriptor.exchangeable:
            yield f"The null may be pooled over {', '.join(f'`{dim}`' for dim in descriptor.exchangeable)}"
        if descriptor.differences != "never":
            yield f"The difference of two models' weights: {descriptor.differences}"
    if kind == "edit":
        yield "It draws at random: give the variant `draws`" if descriptor.random else "It draws nothing"
    if descriptor.formerly:
        yield f"Formerly {', '.join(f'`{name}`' for name in descriptor.formerly)}"


def _run_file(kind: str, name: str) -> str:
    told = studies.told()
    if kind == "analysis":
        return studies.written(studies.study(name)) if name in told["analyses"] else f"analyses: [{{use: {name}}}]\n"
    if kind == "edit":
        given = {"edit": name} | told["edits"].get(name, {})
        return f"variants:\n  trained: []\n  edited: {{edits: [{studies.flow(given)}]}}\n"
    if kind == "source":
        return f"prompts: {studies.flow({'source': name} | told['sources'].get(name, {}))}\n"
    if name in told["loaders"]:
        return f"model: {studies.flow(told['loaders'][name])}\n"
    return "# from Python: gausslens.run(study, model=module, mapping={...})\n"


def _examples(kind: str, name: str) -> Iterator[str]:
    """The run files of examples/ that use it."""
    key = {"analysis": "use", "edit": "edit", "source": "source", "loader": "loader"}[kind]
    found = [
        path.stem
        for path in sorted((ROOT / "examples").glob("*.yaml"))
        if re.search(rf"\b{key}: {re.escape(name)}[,}}\s]", path.read_text(encoding="utf-8"))
    ]
    if found:
        links = ", ".join(f"[{stem}](../../examples/{stem}.yaml)" for stem in found)
        yield f"Whole studies that use it: {links} (`gausslens example {found[0]}` copies the first)."


def _parameters(descriptor: Any) -> Iterator[str]:
    from gausslens.contract.reference import resolve
    from gausslens.runfile.wording import parameters

    found = parameters(resolve(descriptor.parameters))
    if not found:
        yield "None."
        return
    rows = ["| name | type | default | what it is |", "|---|---|---|---|"]
    for each in found:
        default = "required" if each.default is None else f"`{_cell(each.default)}`"
        former = f" Formerly {', '.join(f'`{name}`' for name in each.formerly)}." if each.formerly else ""
        rows.append(f"| `{each.name}` | {_cell(each.type)} | {default} | {_cell(_sentence(each.text))}{former} |")
    yield "\n".join(rows)


def _outputs(analysis: Any) -> Iterator[str]:
    from gausslens.plugins.outputs import outputs_of

    listed = outputs_of(analysis)
    if listed is None:
        yield f"Not listed: `gausslens schema {analysis.name} --outputs STORE` lists them from results."
        return
    yield "Each is a variable of an `xarray.Dataset`. Some are there only with some parameters, or for some models."
    rows = ["| variable | dimensions | unit | what it is |", "|---|---|---|---|"]
    for each in listed:
        dims = "<br>or ".join(", ".join(dims) or "none" for dims in each.dims)
        rows.append(f"| `{each.name}` | {dims} | {_cell(each.units)} | {_cell(each.meaning)} |")
    yield "\n".join(rows)


def _behind(kind: str, descriptor: Any) -> Iterator[str]:
    """The docstrings of the code behind it, and the mathematics that its module imports."""
    field = {"analysis": "analysis", "edit": "edit", "source": "prompts", "loader": "open"}[kind]
    module, name = getattr(descriptor, field).split(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if kind == "analysis":
        yield describe_api.prose(ast.get_docstring(tree) or "")
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            yield describe_api.prose(ast.get_docstring(node) or "")
    package = module.split(".")[0]
    used = []
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and each.module:
            full = each.module if not each.level else f"{package}.{each.module}"
            if ".maths" in full:
                used += [full, *(f"{full}.{alias.name}" for alias in each.names)]
    links = [m for m in dict.fromkeys(used) if m in describe_api.mathematics()]
    if links:
        yield "Its functions on arrays: " + ", ".join(f"[`{m}`](../api/{m}.md)" for m in links) + "."
    yield f"Code: `{module}:{name}`."


def _commands() -> str:
    """The help of each command."""
    from gausslens.__main__ import main
    from gausslens.command import COMMANDS

    parts = ["# Commands", "What `gausslens COMMAND --help` says."]
    for name, text in COMMANDS.items():
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([name, "--help"])
        parts += [f"## gausslens {name}", _sentence(text), f"```text\n{said.getvalue().strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    """A summary as a sentence: begun by a capital, ended by a stop."""
    plain = describe_api.escaped(inspect.cleandoc(text))
    return f"{plain[:1].upper()}{plain[1:]}" + ("" if plain.endswith((".", "?", "!")) else ".")


def _cell(text: str) -> str:
    return text.replace("|", "&#124;").replace("<", "&lt;").replace(">", "&gt;")


def _alt(caption: str) -> str:
    return re.sub(r"[\[\]*_`\n]", " ", caption).split(": ")[0]
