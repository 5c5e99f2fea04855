"""Scripts of the tree that are no modules of a package, as modules for the tests of them."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def script_at(path: str) -> ModuleType:
    """The script at a path from the root of the tree, run as a module of its name; one that was run before as it is."""
    name = Path(path).stem
    if name not in sys.modules:
        spec = spec_from_file_location(name, ROOT / path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module_from_spec(spec)  # dataclasses of it look for their module there
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
