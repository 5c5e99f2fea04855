"""Writes two texts to train an autoencoder on and to measure it on: what Python's own help() says of its topics.

python python_text.py DIRECTORY makes train.txt, and heldout.txt of every eighth topic, which are not in train.txt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from pydoc_data.topics import topics


def main(directory: Path) -> None:
    for name, mine in (("train", False), ("heldout", True)):
        texts = [topics[key] for n, key in enumerate(sorted(topics)) if (n % 8 == 7) is mine]
        (directory / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
