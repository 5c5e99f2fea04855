"""Progress of long work: a bar on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(title: str, total: int, shown: bool | None = None) -> Iterator[Callable[[str], None]]:
    """A progress bar over ``total`` units on stderr; ``shown`` None means: if stderr is a terminal."""
    if not (sys.stderr.isatty() if shown is None else shown) or total == 0:
        yield lambda _text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[doing]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, doing="")
        yield lambda text: bar.update(task, advance=1, doing=text)
