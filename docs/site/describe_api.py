"""Pages of every public name, from docstrings: gausslens, its figures, maths and testing, and the plugins' mathematics.

Sources are read, not imported, but for the table of public names: a signature stands as it was written.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOST, PLUGINS = ROOT / "framework/gausslens", ROOT / "plugins"
HERE = "reference/api"
# The names of `gausslens` by what they are for: a page each. A name that stands in none is on the last.
GROUPS: Mapping[str, tuple[str, str, str]] = {
    "running": (
        "Running and reading",
        "A study from Python, its results, and a model to look at.",
        "run open Results Result draw load versus edit threads __version__",
    ),
    "descriptors": (
        "What a plugin offers",
        "Descriptors, which its hooks return; parameters, which a run file gives.",
        "hookimpl Analysis Edit Loader Engine PromptSource ReportSection Parameters NoParameters Files Formerly",
    ),
    "analyses": (
        "Writing an analysis",
        "What an analysis is given, and the variables that it gives.",
        "Context StepRef Estimate Request Batch Sink Bulk variable attributes error_of mean_over_prompts "
        "ragged_variables merge_each",
    ),
    "models": (
        "Models, prompts and interventions",
        "What is known of a model, its tensors, twins, tokens, and what changes it on the way.",
        "",
    ),
}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Name:
    """A public name: what it is called, where it is defined, and its definition; None where it is a plain value."""

    called: str
    module: Path
    definition: Definition | None
    value: str = ""


def pages() -> dict[str, str]:
    """Every page of the reference by its path."""
    made = {f"{HERE}/{slug}.md": _page(title, text, names) for slug, (title, text, names) in _groups().items()}
    for room, title in (("figures", "Figures as data"), ("testing", "Tests of plugins")):
        home = HOST / room / "__init__.py"
        made[f"{HERE}/{room}.md"] = _page(title, _prose(home), _handed_on(home, f"gausslens.{room}"))
    made |= {f"{HERE}/{module}.md": _of_module(module, path) for module, path in mathematics().items()}
    return made | {f"{HERE}/index.md": _index()}


def mathematics() -> dict[str, Path]:
    """The modules of functions on arrays: the host's, then each plugin's."""
    paths = sorted((HOST / "maths").rglob("*.py"))
    for plugin in sorted(PLUGINS.iterdir()):
        paths += sorted((plugin / "maths").glob("*.py"))
    return {_dotted(path): path for path in paths if path.stem != "__init__"}


def names_of(path: Path) -> list[Name]:
    """The functions and classes that a module defines and does not keep to itself, in its order."""
    called = _dotted(path)
    return [
        Name(f"{called}.{node.name}", path, node)
        for node in _tree(path).body
        if isinstance(node, Definition) and not node.name.startswith("_")
    ]


def escaped(text: str) -> str:
    """Text of a docstring as Markdown: what is code stays, all else is shown as it stands."""
    pieces = re.split(r"(``.+?``|`[^`\n]+`)", text)
    return "".join(p if n % 2 else re.sub(r"([\\*_{}\[\]#|])", r"\\\1", _html(p)) for n, p in enumerate(pieces))


def prose(docstring: str) -> str:
    """A docstring as Markdown: paragraphs and lists as they stand, indented blocks as code."""
    made: list[str] = []
    code: list[str] = []
    for block in [*re.split(r"\n[ ]*\n", inspect.cleandoc(docstring)), ""]:
        if block and all(line.startswith("    ") for line in block.splitlines()):
            code.append(block)
            continue
        if code:
            text = textwrap.dedent("\n\n".join(code))
            made.append(f"```{'python' if re.search(r'^(import|from|def) ', text, re.M) else 'text'}\n{text}\n```")
            code = []
        listed = block.startswith("- ")
        made.append(escaped(block) if listed else re.sub(r"\n(?=- )", "\n\n", escaped(block), count=1))
    return "\n\n".join(filter(None, made))


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _groups() -> dict[str, tuple[str, str, list[Name]]]:
    import gausslens

    last = list(GROUPS)[-1]
    placed = {name for _, _, names in GROUPS.values() for name in names.split()}
    rest = tuple(name for name in gausslens.__all__ if name not in placed)
    return {
        slug: (title, text, [_public(name) for name in (rest if slug == last else names.split())])
        for slug, (title, text, names) in GROUPS.items()
    }


def _public(name: str) -> Name:
    """A name of gausslens, at the place where it is defined."""
    import gausslens

    thing = getattr(gausslens, name)
    module = gausslens._HOMES.get(name, "version")
    home = HOST / Path(*module.split("."))
    path = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
    if inspect.isclass(thing) or inspect.isroutine(thing):
        path = Path(inspect.getsourcefile(inspect.unwrap(thing)) or path)
    found = _defined(path, getattr(thing, "__name__", name)) or _defined(path, name)
    return Name(f"gausslens.{name}", path, found, "" if found else _assigned(path, name))


def _handed_on(home: Path, called: str) -> list[Name]:
    """The names that a package hands on from its modules, in their order, and those that it defines itself."""
    found = []
    for node in ast.walk(_tree(home)):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            path = home.parent / Path(*node.module.split(".")).with_suffix(".py")
            if path.exists():
                found += [
                    Name(f"{called}.{alias.asname}", path, _defined(path, alias.name), _assigned(path, alias.name))
                    for alias in node.names
                    if alias.asname
                ]
    own = [Name(f"{called}.{each.called.rpartition('.')[2]}", home, each.definition) for each in names_of(home)]
    return [*found, *own]


def _page(title: str, text: str, names: Iterable[Name]) -> str:
    return "\n\n".join([f"# {title}", text, *(part for name in names for part in _shown(name))]) + "\n"


def _of_module(called: str, path: Path) -> str:
    names = names_of(path)
    words = f"```python\nfrom {called} import {names[0].called.rpartition('.')[2]}\n```" if names else ""
    return _page(f"`{called}`", f"{_prose(path)}\n\n{words}".strip(), names)


def _shown(name: Name) -> Iterator[str]:
    """The heading of a name, its signature, its docstring, and of a class its fields and methods."""
    short = name.called.rpartition(".")[2]
    if short.startswith("__"):  # Markdown would take the underlines of its place for emphasis
        yield f'<a id="{name.called}"></a>\n\n## `{short}`'
    else:
        yield f"## `{short}` {{ #{name.called} }}"
    if name.definition is None:
        yield f"```python\n{name.value or short}\n```"
        yield from [_comment(name.module, short)] if _comment(name.module, short) else []
        return
    yield f"```python\n{_signature(name.definition, short)}\n```"
    yield prose(ast.get_docstring(name.definition) or "")
    if isinstance(name.definition, ast.ClassDef):
        for each in name.definition.body:
            told = ast.get_docstring(each) if isinstance(each, ast.FunctionDef) else None
            if isinstance(each, ast.FunctionDef) and told and not each.name.startswith("_"):
                yield f"### `{short}.{each.name}` {{ #{name.called}.{each.name} }}"
                yield f"```python\n{_signature(each, each.name)}\n```"
                yield prose(told)


def _signature(node: Definition, called: str) -> str:
    """As it stands in the source, without the body; of a class with its fields and how it is made."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        fields = [ast.unparse(n) for n in node.body if isinstance(n, ast.AnnAssign) and not _private(n)]
        made = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        head = f"class {called}({bases}):" if bases else f"class {called}:"
        lines = [*fields, *([_signature(made, "__init__")] if made else [])]
        return "\n".join([head, *(f"    {line}" for text in lines or ["..."] for line in text.splitlines())])
    decorators = [f"@{d.id}\n" for d in node.decorator_list if isinstance(d, ast.Name) and d.id == "property"]
    given = [_written(a, d) for a, d in _positional(node.args)]
    if node.args.vararg or node.args.kwonlyargs:
        given.append(f"*{ast.unparse(node.args.vararg) if node.args.vararg else ''}")
    given += [_written(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    given += [f"**{ast.unparse(node.args.kwarg)}"] if node.args.kwarg else []
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    one = f"{''.join(decorators)}def {called}({', '.join(given)}){returns}"
    if len(one) <= 90:
        return one
    return f"{''.join(decorators)}def {called}(\n" + "".join(f"    {each},\n" for each in given) + f"){returns}"


def _positional(given: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    every = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(every) - len(given.defaults)) + list(given.defaults)
    yield from zip(every, defaults, strict=True)


def _written(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}" if argument.annotation else f"{text}={ast.unparse(default)}"


def _private(node: ast.AnnAssign) -> bool:
    return isinstance(node.target, ast.Name) and node.target.id.startswith("_")


def _index() -> str:
    lines = ["# API", "", "Every public name, from its docstring. Functions on arrays need no run file and no store."]
    lines += ["", "| page | what is in it |", "|---|---|"]
    lines += [f"| [{title}]({slug}.md) | {text} |" for slug, (title, text, _) in _groups().items()]
    lines += ["| [Figures as data](figures.md) | Kinds of figures, as report sections return them. |"]
    lines += ["| [Tests of plugins](testing.md) | Checks of analyses, edits, sections and the store. |"]
    room = ""
    for module, path in mathematics().items():
        if module.split(".")[0] != room:
            room = module.split(".")[0]
            lines += ["", f"## Mathematics of {room}", "", "| module | what is in it |", "|---|---|"]
        first = " ".join((ast.get_docstring(_tree(path)) or "").split("\n\n")[0].split())
        lines.append(f"| [`{module.split('.', 1)[1]}`]({module}.md) | {escaped(first)} |")
    return "\n".join([*lines, ""])


def _prose(path: Path) -> str:
    return prose(ast.get_docstring(_tree(path)) or "")


def _defined(path: Path, name: str) -> Definition | None:
    return next((n for n in _tree(path).body if isinstance(n, Definition) and n.name == name), None)


def _assigned(path: Path, name: str) -> str:
    """The assignment of a plain value, where it is short."""
    for node in _tree(path).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            text = ast.unparse(node)
            return text if len(text) < 500 else text.partition(" = ")[0]
    return ""


def _comment(path: Path, name: str) -> str:
    """The comment above an assignment, which is what a plain value has for a docstring."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at = next((n for n, line in enumerate(lines) if re.match(rf"{name}\b.*=", line)), 0)
    above: list[str] = []
    while at and lines[at - 1].startswith("#"):
        at -= 1
        above.insert(0, lines[at].lstrip("# "))
    return escaped(" ".join(above))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _dotted(path: Path) -> str:
    top = PLUGINS if path.is_relative_to(PLUGINS) else HOST.parent
    return ".".join(path.relative_to(top).with_suffix("").parts)
