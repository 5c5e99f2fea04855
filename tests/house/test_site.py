"""The site: every public name and every descriptor has a page, and what is wrong with a built site is found.

The site itself is built, and checked by the same functions, by `make site`: a step of CI.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gausslens.runfile.schema import ours


@pytest.fixture(scope="module")
def site(root: Path) -> Iterator[SimpleNamespace]:
    """The modules of docs/site."""
    sys.path.insert(0, str(root / "docs/site"))
    try:
        import check_site
        import describe_api
        import describe_plugins
        import make_site
        import studies

        yield SimpleNamespace(
            check=check_site, api=describe_api, plugins=describe_plugins, make=make_site, studies=studies
        )
    finally:
        sys.path.remove(str(root / "docs/site"))


def test_every_public_name_has_a_place_in_the_reference(site: SimpleNamespace) -> None:
    text = "\n".join(site.api.pages().values())
    names = site.check.public_names()
    assert len(names) > 300
    lacking = [name for name in names if f"{{ #{name} }}" not in text and f'<a id="{name}">' not in text]
    assert lacking == []


def test_functions_on_arrays_say_what_they_do(site: SimpleNamespace) -> None:
    """Those of public modules have a docstring, their types, and a word of what comes back where that is no dataset."""
    undocumented, untyped = [], []
    for path in site.api.mathematics().values():
        for name in site.api.names_of(path):
            if not (ast.get_docstring(name.definition) or "").strip():
                undocumented.append(name.called)
            if isinstance(name.definition, ast.FunctionDef) and name.definition.returns is None:
                untyped.append(name.called)
    assert undocumented == []
    assert untyped == []


def test_every_descriptor_has_a_page_with_a_study_and_its_outputs(site: SimpleNamespace) -> None:
    host = ours()
    pages = site.plugins.pages(host, {})
    for kind, (folder, *_) in site.plugins.KINDS.items():
        for name in host.of(kind):
            text = pages[f"reference/{folder}/{name}.md"]
            assert "## Parameters" in text
            assert f"\n# {name}\n" in f"\n{text}"
            if kind == "analysis":
                assert f"use: {name}" in text
                assert "| variable | dimensions | unit |" in text
    assert set(site.studies.told()["analyses"]) == set(host.analyses)
    assert set(site.studies.told()["edits"]) <= set(host.edits)
    assert set(site.studies.told()["sources"]) == set(host.sources)


def test_run_files_of_the_reference_are_valid(site: SimpleNamespace, root: Path, tmp_path: Path) -> None:
    from gausslens.__main__ import main

    (tmp_path / "fine-tuning").symlink_to(root / "examples/fine-tuning")
    for analysis in site.studies.told()["analyses"]:
        path = tmp_path / f"{analysis.replace('.', '-')}.yaml"
        path.write_text(site.studies.written(site.studies.study(analysis)), encoding="utf-8")
        assert main(["check", "--quick", str(path)]) == 0, analysis


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "fetches https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//cdn.example/x.css">', "fetches //cdn.example/x.css"),
        ('<link rel="preconnect" href="https://fonts.example">', "fetches https://fonts.example"),
        ('<p style="background: url(https://cdn.example/x.png)">', "fetches https://cdn.example/x.png"),
        ("<style>@import 'https://cdn.example/x.css';</style>", "fetches https://cdn.example/x.css"),
        ('<img srcset="a.png 1x, https://cdn.example/b.png 2x">', "fetches https://cdn.example/b.png"),
        ('<a href="nowhere.html">', "leads to nowhere.html, which is not there"),
        ('<a href="#nowhere">', "there is no such place in it"),
        ('<a href="http://not an address/">', "which is no address"),
        ('<a href="ftp://old.example/">', "which is no address"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(site: SimpleNamespace, tmp_path: Path, html: str, said: str) -> None:
    (tmp_path / "llms.txt").write_text("# a site\n")
    (tmp_path / "index.html").write_text(f"<html><body>{html}</body></html>")
    told = [each for each in site.check.troubles(tmp_path) if not each.startswith("no page has")]
    assert any(said in each for each in told), told


def test_a_page_that_stands_alone_is_let_pass(site: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "llms.txt").write_text("- [A](a.md): Letters.\n")
    (tmp_path / "a.md").write_text("# A\n")
    (tmp_path / "x.css").write_text("p { background: url(data:image/png;base64,AAAA) }")
    (tmp_path / "a.html").write_text('<link rel="canonical" href="https://a.example"><p id="here">')
    html = '<link rel="stylesheet" href="x.css"><a href="a.html#here"><a href="https://a.example/b"><a href="#">'
    (tmp_path / "index.html").write_text(html)
    assert [each for each in site.check.troubles(tmp_path) if not each.startswith("no page has")] == []


def test_what_llms_txt_does_not_list_is_found(site: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "llms.txt").write_text("- [B](b.md)\n")
    (tmp_path / "a.md").write_text("# A\n")
    told = site.check.troubles(tmp_path)
    assert "llms.txt does not list a.md" in told
    assert "llms.txt lists b.md, which is not there" in told


def test_documents_are_read_as_they_look_in_the_tree(site: SimpleNamespace) -> None:
    text = "Words:\n- one\n  and more\n- two\n\n  ```python\n  x = 1\n  ```\n\n1. first\n\n   | a |\n   |---|\n\nEnd.\n"
    wanted = "Words:\n\n- one\n    and more\n- two\n\n    ```python\n    x = 1\n    ```\n\n"
    wanted += "1. first\n\n    | a |\n    |---|\n\nEnd.\n"
    assert site.make.as_mkdocs_reads(text) == wanted
    assert site.make.as_mkdocs_reads("1. a\n\n   more\n2. b\n3. c\n") == "1. a\n\n    more\n\n2. b\n3. c\n"
    code = "```text\n- as it stands\n  so\n```\n"
    assert site.make.as_mkdocs_reads(code) == code


def test_docstrings_become_markdown_that_shows_them_as_they_are(site: SimpleNamespace) -> None:
    assert site.api.escaped("x_i * y_i [n] <b> ``a_b`` `c_d`") == r"x\_i \* y\_i \[n\] &lt;b&gt; ``a_b`` `c_d`"
    told = site.api.prose("First:\n\n    import x\n\n    def f():\n        return 1\n\nThen\n- one\n- two\n")
    assert "```python\nimport x\n\ndef f():\n    return 1\n```" in told
    assert "Then\n\n- one\n- two" in told


def test_a_notebook_has_a_page(site: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = (
        '{"cell_type": "markdown", "source": ["# A look\\n", "Words."]}, '
        '{"cell_type": "code", "source": ["print(1)"], "outputs": [{"output_type": "stream", "text": ["1\\n"]}]}'
    )
    (tmp_path / "look.ipynb").write_text(f'{{"cells": [{cells}]}}')
    (tmp_path / "README.md").write_text("# Notebooks\n\n- [A look](look.ipynb)\n")
    monkeypatch.setattr(site.make, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(site.make, "PAGES", tmp_path / "pages")
    pages = dict(site.make.notebooks())
    wanted = "# A look\nWords.\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n[As a notebook](look.ipynb)\n"
    assert pages["examples/notebooks/look.md"] == wanted
    assert "[A look](look.md)" in pages["examples/notebooks/README.md"]


def test_the_readme_of_the_notebooks_names_each(root: Path) -> None:
    named = re.findall(r"^- \[(\S+)\]", (root / "examples/notebooks/README.md").read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in (root / "examples/notebooks").glob("*.ipynb"))
