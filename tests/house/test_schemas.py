"""The schemas in the tree are those that the code writes."""

from __future__ import annotations

from pathlib import Path

from gausslens.__main__ import main


def test_the_schemas_are_fresh(root: Path, tmp_path: Path) -> None:
    assert main(["schema", "--write", str(tmp_path)]) == 0
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.json")}
    assert written
    stale = [name for name, text in written.items() if (root / "schemas" / name).read_text(encoding="utf-8") != text]
    assert stale == [], "make schemas writes them again"
