"""What plugins print: the first lines are shown, the rest is counted, so that a loop does not bury what matters.

It holds for what is written to ``sys.stdout`` and ``sys.stderr``, not for what native code or another process writes.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

# Lines, and characters, of one plugin that a run shows.
LINES, CHARACTERS = 200, 40_000

_lines: Counter[str] = Counter()
_characters: Counter[str] = Counter()
_unshown: Counter[str] = Counter()


def unshown() -> list[str]:
    """A sentence for each plugin of which not all was shown, since this was last asked."""
    told = [f"{whose} printed {n} more lines, which are not shown" for whose, n in sorted(_unshown.items())]
    for counter in (_lines, _characters, _unshown):
        counter.clear()
    return told


class _Counted(io.TextIOBase):
    """A stream that passes on what is written, up to a number of lines."""

    def __init__(self, whose: str, stream: TextIO) -> None:
        self.whose, self.stream = whose, stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def flush(self) -> None:
        if not getattr(self.stream, "closed", False):
            self.stream.flush()

    def close(self) -> None:
        """It is not the plugin's to close."""

    def write(self, text: str) -> int:
        lines = text.count("\n")
        over = _lines[self.whose] + lines > LINES or _characters[self.whose] + len(text) > CHARACTERS
        if over and not _unshown[self.whose]:
            self.stream.write(f"{self.whose} prints more than is shown: the rest is counted\n")
        if over or _unshown[self.whose]:
            _unshown[self.whose] += lines if _unshown[self.whose] else max(lines, 1)
        else:
            _lines[self.whose] += lines
            _characters[self.whose] += len(text)
            self.stream.write(text)
        return len(text)


@contextmanager
def counted_output(whose: str) -> Iterator[None]:
    """What is printed meanwhile counts as this plugin's; the streams are put back, whatever it does with them."""
    out, err = sys.stdout, sys.stderr
    if isinstance(out, _Counted) and out.whose == whose:
        yield
        return
    sys.stdout, sys.stderr = _Counted(whose, out), _Counted(whose, err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
