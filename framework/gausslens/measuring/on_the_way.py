"""Long passes commit on the way: states of stream analyses as plain arrays, in files that a later run goes on from.

An analysis that offers ``state()`` and ``restore()`` is written down at the end of a shard, every
GAUSSLENS_COMMIT_SECONDS, into ``progress/<key>`` of the store (schemas/STORE.md). A file is whole or not there, and
what does not agree with the run that reads it is not used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contract.digests_and_seeds import digest
from ..contract.errors import GausslensError
from ..runs.provenance import distributions
from ..store.disk import Temporary, is_file, make_directory, seconds_told, write_at
from ..store.layout import progress_path

if TYPE_CHECKING:
    from ..store.disk import Writer
    from .passes import Job

Arrays = Mapping[str, np.ndarray]
Merged = Mapping[str, Mapping[int, Any]]
SECONDS = "GAUSSLENS_COMMIT_SECONDS"
_FIRST = b"gausslens-progress-1\n"
_SUM = 32
_BLOCK = 1 << 22


class NotUsed(Exception):
    """A file that this run cannot go on from."""


def commit_seconds() -> float:
    """How long a pass runs before it commits: GAUSSLENS_COMMIT_SECONDS, 300 where it is not set, ``inf`` for never."""
    advice = "give seconds, 0 to commit after each shard, or inf for never"
    return seconds_told(SECONDS, 300, lambda seconds: seconds >= 0, advice)


def plain_arrays(state: Any) -> dict[str, np.ndarray]:
    """What ``state()`` gave, where it is names with plain arrays; else an error that says what is not."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state() gives a {type(state).__name__}, not names with arrays")
    for name, array in state.items():
        if not isinstance(name, str):
            raise TypeError(f"state() has a name {name!r}, which is not text")
        if type(array) is not np.ndarray or array.dtype.hasobject or array.dtype.kind not in "biufcSU":
            kind = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
            raise TypeError(f"state()[{name!r}] is {kind}: give numpy arrays of numbers or text, without objects")
    return {"".join((name,)): array for name, array in state.items()}


@dataclass
class Reached:
    """How far a job was: the pass, how many of its shards were seen, and its states then.

    ``began`` is the state that the pass began with, where earlier ones left something; ``groups`` are the states of
    the groups of prompts so far; ``random`` what the global generators of its plugin were.
    """

    index: int
    shards: int
    began: Arrays | None
    groups: Mapping[int, Arrays]
    random: Any = None


@dataclass
class OnTheWay:
    """Commits the jobs of one pass and finds what a killed run left. ``intact``: no one has changed the weights."""

    writer: Writer
    seconds: float
    intact: Callable[[], bool] = lambda: True
    notes: list[str] = field(default_factory=list)
    last: float = field(default_factory=time.monotonic)

    def told(self) -> list[str]:
        """What happened since this was last asked."""
        told, self.notes = self.notes, []
        return told

    def begin(self, job: Job, agreed: Callable[[int], str]) -> None:
        """Bring a job to where a killed run left it, if it left something; ``agreed`` tells what must be the same."""
        path = progress_path(self.writer.root, job.name)
        if not job.can_commit or not is_file(path) or path.parent.is_symlink():
            return
        try:
            found = read_reached(path, digest([job.name, agreed(job.request.passes)]))
            job.go_on(found)
        except Exception as error:
            why = str(error) if isinstance(error, NotUsed) else f"{type(error).__name__}: {error}"
            self.notes.append(f"{job.place} begins anew; what was committed on the way is not used: {why}")
            return
        where = f"pass {found.index + 1}, shard {found.shards}"
        self.notes.append(f"{job.place} goes on after {where}, where a run before committed it")

    def commit(
        self, jobs: Sequence[Job], index: int, shards: int, merged: Merged, agreed: Callable[[int], str]
    ) -> None:
        """Write down where these jobs are, if it is time; a job or a disk that cannot is told, and the pass goes on."""
        jobs = [job for job in jobs if job.can_commit and job.error is None and merged[job.name]]
        if not jobs or time.monotonic() - self.last < self.seconds:
            return
        self.last = time.monotonic()
        if not self.intact():  # what was seen since is worth nothing: the jobs fail, or run again
            return
        for job in jobs:
            try:
                reached = job.reached(index, shards, merged[job.name])
                write_reached(self.writer, job.name, reached, digest([job.name, agreed(job.request.passes)]))
            except Exception as error:
                job.can_commit = False
                said = str(error) if isinstance(error, GausslensError) else f"{type(error).__name__}: {error}"
                self.notes.append(f"{job.place} does not commit on the way: {said}")
        self.last = time.monotonic()

    def drop(self, job: Job) -> None:
        """Take away what was committed of a job."""
        with suppress(OSError):
            progress_path(self.writer.root, job.name).unlink()


def agreement(shards: Sequence[tuple[int, np.ndarray]], passes: int, groups: int | None, order: int | None) -> str:
    """A digest of what two runs must have in common beside a step's key: the shards' cut, and the programs."""
    cut = hashlib.sha256()
    for group, shard in shards:
        cut.update(np.array([group, len(shard), *shard], dtype="<i8").tobytes())
    return digest([cut.hexdigest(), passes, groups, order, dict(distributions())])


def write_reached(writer: Writer, key: str, reached: Reached, agreed: str) -> None:
    """Write where a step is in the place of the file before, durable."""
    held: list[np.ndarray] = []
    places: dict[int, int] = {}

    def placed(arrays: Arrays) -> dict[str, int]:
        """The numbers of the arrays in the file; one that several states share is written once."""
        for array in arrays.values():
            if id(array) not in places:
                places[id(array)] = len(held)
                held.append(array)
        return {name: places[id(array)] for name, array in arrays.items()}

    header = {
        "index": reached.index,
        "shards": reached.shards,
        "began": None if reached.began is None else placed(reached.began),
        "groups": {str(group): placed(arrays) for group, arrays in reached.groups.items()},
        "random": reached.random,
    }
    write_arrays(writer, progress_path(writer.root, key), header, held, agreed)


def write_arrays(
    writer: Writer, path: Path, header: Mapping[str, Any], held: Sequence[np.ndarray], agreed: str
) -> None:
    """Write a file whole, in the place of one before: a line of what it holds, arrays, the SHA-256 of all."""
    told = {
        "agreed": agreed,
        **header,
        "arrays": [[array.dtype.str, list(array.shape), _order(array)] for array in held],
    }
    temporary = Temporary(writer, ".try")
    try:
        make_directory(path.parent, writer.root, writer.made)
        total, place = hashlib.sha256(), 0
        for data in (memoryview(_FIRST + json.dumps(told).encode() + b"\n"), *map(_bytes_of, held)):
            total.update(data)
            write_at(temporary.descriptor, data, place)
            place += len(data)
        write_at(temporary.descriptor, memoryview(total.digest()), place)
        temporary.replace(path)
    finally:
        temporary.drop()


def _order(array: np.ndarray) -> list[int]:
    """The axes as they lie in memory, outermost first: a product of a turned array may round otherwise."""
    return [int(axis) for axis in np.argsort([-abs(stride) for stride in array.strides], kind="stable")]


def _bytes_of(array: np.ndarray) -> memoryview:
    if not array.size:
        return memoryview(b"")
    flat: Any = np.ascontiguousarray(array.transpose(_order(array))).reshape(-1).view(np.uint8)
    return memoryview(flat)


def read_reached(path: Path, agreed: str) -> Reached:
    """Where a step was when the file was written."""
    header, arrays = read_arrays(path, agreed)

    def of(places: Mapping[str, int]) -> dict[str, np.ndarray]:
        return {name: arrays[place] for name, place in places.items()}

    began = None if header["began"] is None else of(header["began"])
    groups = {int(group): of(places) for group, places in header["groups"].items()}
    return Reached(header["index"], header["shards"], began, groups, header["random"])


def read_arrays(path: Path, agreed: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """What a file holds; refused where a byte of it is not as it was written, or it is of something else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size - _SUM
        total = hashlib.sha256()
        for data in _blocks(file, size):
            total.update(data)
        if size < 0 or file.read() != total.digest():
            raise NotUsed("the file is damaged")
        file.seek(0)
        if file.readline() != _FIRST:
            raise NotUsed("the file is of another version")
        header = json.loads(file.readline())
        if header["agreed"] != agreed:
            raise NotUsed("it is of other prompts, another step or other versions of the programs")
        return header, [_array(file, size, *described) for described in header["arrays"]]


def _blocks(file: Any, size: int) -> Iterator[bytes]:
    while size > 0:
        data = file.read(min(size, _BLOCK))
        if not data:
            return
        size -= len(data)
        yield data


def _array(file: Any, most: int, kind: str, shape: Sequence[int], order: Sequence[int]) -> np.ndarray:
    dtype = np.dtype(kind)
    count = math.prod(shape)
    if dtype.hasobject or count < 0 or count * dtype.itemsize > most - file.tell():
        raise NotUsed("the file is damaged")
    if not count:
        return np.zeros(shape, dtype)
    flat = np.frombuffer(file.read(count * dtype.itemsize), dtype)
    return flat.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
