"""The tree speaks of the project alone: no machine's paths, no package registries, nothing of how it was made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# Written in pieces, so that this file may be read as well.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(?:wo"
    + r"rk|far"
    + r"m|ro"
    + r"ot|home/\w+)(?:/|\b(?=['\"]))|/tm"
    + r"p/[a-z]",
    "a package registry": r"pypi\.o" + r"rg|pythonhosted\.o" + r"rg|npmjs\.o" + r"rg|download\.pytorch\.o" + r"rg",
    "how it was made": r"(?i)\b(?:this ses"
    + r"sion|the ses"
    + r"sion's|as an a"
    + r"i|large language mod"
    + r"el wrote)\b",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_speaks_of(what: str, root: Path, tracked: list[Path]) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = []
    for path in tracked:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a path of one machine", "open('/wo" + "rk/main/x')"),
        ("a path of one machine", "cp x /tm" + "p/models"),
        ("a package registry", "https://pypi.o" + "rg/simple"),
        ("how it was made", "in this ses" + "sion we"),
    ],
)
def test_the_patterns_find_what_they_should(what: str, line: str) -> None:
    assert re.search(FORBIDDEN[what], line)
