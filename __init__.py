"""A clone that is called gausslens, seen from the directory above it: the package itself is what is installed.

Without this file Python takes such a directory for a package that is empty, and prefers it to one that was installed
with `pip install --editable`.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def _become_what_is_installed() -> None:
    """The package in place of this file: copied into the environment, or where an editable installation finds it."""
    clone = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != clone.parent]
    finders = [finder for finder in sys.meta_path if finder is not PathFinder and hasattr(finder, "find_spec")]
    found = [PathFinder.find_spec(__name__, others), *(finder.find_spec(__name__, None) for finder in finders)]
    spec = next((each for each in found if each is not None and each.loader is not None and each.origin), None)
    if spec is None or Path(spec.origin).resolve() == Path(__file__).resolve():
        raise ImportError(
            f"{clone} is a clone of gausslens, which is not installed for {sys.executable}: run "
            "`pip install -c constraints.txt .` in the clone, or `make install`, which makes an environment in .venv"
        )
    globals().update(__spec__=spec, __file__=spec.origin, __path__=list(spec.submodule_search_locations))
    spec.loader.exec_module(sys.modules[__name__])


if __name__ == "gausslens":
    _become_what_is_installed()
