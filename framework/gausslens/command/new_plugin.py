"""Write a plugin of your own to start from: a whole distribution that installs and passes its tests."""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
from argparse import ArgumentParser, Namespace
from importlib.resources import files
from pathlib import Path

from ..contract.errors import InputError
from ..contract.hooks import API_VERSION
from ..plugins.check_descriptors import RESERVED
from ..version import VERSION

# Where each template goes; @PACKAGE@ in a path is the package.
PLACES = {
    "pyproject.toml.in": "pyproject.toml",
    "README.md.in": "README.md",
    "example.yaml.in": "example.yaml",
    "package.py.in": "src/@PACKAGE@/__init__.py",
    "plugin.py.in": "src/@PACKAGE@/plugin.py",
    "parameters.py.in": "src/@PACKAGE@/parameters.py",
    "loudness.py.in": "src/@PACKAGE@/loudness.py",
    "section.py.in": "src/@PACKAGE@/section.py",
    "test_plugin.py.in": "tests/test_@MODULE@.py",
}


def new_plugin(name: str, directory: Path | None = None) -> Path:
    """Write the plugin ``name`` into a new directory, by default gausslens-NAME here, and return where it is."""
    _check_name(name)
    target = directory or Path(f"gausslens-{name}")
    if target.exists() or target.is_symlink():
        raise InputError(f"{target} is there already; choose another place with --to DIR")
    module = name.replace("-", "_")
    words = {
        "@NAME@": name,
        "@MODULE@": module,
        "@PACKAGE@": f"gausslens_{module}",
        "@API@": str(API_VERSION),
        "@VERSION@": VERSION,
    }
    try:
        # Made beside its place and moved there whole: an error leaves nothing half-written.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-plugin-") as workshop:
            made = Path(workshop) / "made"
            for template, place in PLACES.items():
                path = made / _filled(place, words)
                path.parent.mkdir(parents=True, exist_ok=True)
                text = files("gausslens").joinpath("template", template).read_text(encoding="utf-8")
                path.write_text(_filled(text, words), encoding="utf-8")
            shutil.move(made, target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise InputError(f"{name!r} cannot name a plugin: use small letters, digits and '-', as in 'my-sinks'")
    if len(name) > 40:
        raise InputError("a name of at most 40 characters will do")
    if name in RESERVED:
        raise InputError(f"{name!r} names a plugin of gausslens itself ({', '.join(RESERVED)}); choose another")
    if name in {"tiny", "models", "schemas", "examples", "gausslens"} or keyword.iskeyword(name):
        raise InputError(f"{name!r} means something else already; choose another")


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("name", metavar="NAME", help="its name: analyses will be called NAME.something")
    parser.add_argument("--to", metavar="DIR", help="the directory to make (default: gausslens-NAME here)")


def run(arguments: Namespace) -> int:
    """Write it, and say what to do next."""

    directory = new_plugin(arguments.name, Path(arguments.to) if arguments.to else None)
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        print(path)
    print(f"\nnow: cd {directory}\n     pip install --editable .\n     pytest\n     gausslens run example.yaml")
    return 0
