"""One pass of a twin over its prompts, shared by all stream analyses that want it.

The shard is the unit: an engine may hand it over in pieces, each analysis sees it whole. For each shard it works on a
copy of its empty state; the copies are merged in the order of the shards: so the result depends on nothing else. For
errors over prompts shards are cut within groups of prompts, and each group has a state of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from ..contract.batches import Request
from ..contract.digests_and_seeds import derive
from ..guard import Guard, settled, torch_for_tokens
from ..maths.resampling import dealt
from ..runs.requests import layers_given, layers_skipped
from .feed import Feed, LayerStates, guarded, merged_into, union
from .on_the_way import Arrays, OnTheWay, Reached, agreement, plain_arrays

if TYPE_CHECKING:
    import numpy as np

    from ..contract.engines import CaptureEngine
    from ..contract.model import ModelInfo
    from ..contract.prompts import Tokens
    from ..contract.twin import Twin


@dataclass
class Job:
    """A stream analysis on its way through the passes: its empty state, what it wants, and what went wrong."""

    name: str
    title: str
    state: Any
    request: Request
    info: ModelInfo
    row_blocks: bool = False
    column_blocks: bool = False
    all_layers: bool = False
    by_layer: bool = False
    shared: tuple[Any, ...] = ()  # what copies of the state share: context, tokens, the writer of large arrays
    error: BaseException | None = None
    at_fault: bool = False  # the error is of its own code, not of the engine
    layer: int | None = None
    guard: Guard = field(default_factory=Guard)  # how its calls are made
    groups: list[Any] = field(default_factory=list)  # where prompts are in groups: the state of each, of the last pass
    place: str = ""  # what it is in words, for notes
    made: Callable[[], Any] | None = None  # makes an instance anew
    can_commit: bool = False  # it has ``state`` and ``restore``, and all that it saw is in them
    start: tuple[int, int] = (0, 0)  # the pass, and the shard of it, from which it is fed
    restored: dict[int, Any] = field(default_factory=dict)  # its states there, by group
    apart: dict[int, Any] = field(default_factory=dict)  # states of groups of prompts that others have seen for it

    @property
    def layers(self) -> tuple[int | None, ...]:
        """The layers it gets batches of; None stands for the whole model."""
        return layers_given(self.request, self.info)

    @property
    def is_by_layer(self) -> bool:
        """Whether each layer of a shard may have a state of its own: what it makes of one depends on no other."""
        plain = not (self.request.ordered or self.all_layers)
        return plain and bool(self.layers) and (self.by_layer or len(self.layers) == 1)

    @property
    def skipped(self) -> dict[int, str]:
        """Layers that do not have one of its sites, with the reason."""
        return layers_skipped(self.request, self.info)

    def fresh(self) -> Any:
        """A copy of the empty state; one that sees the shards in order is itself in each."""
        return self.state if self.request.ordered else self.copied(self.state)

    def copied(self, state: Any) -> Any:
        """A copy of a state."""
        return copy.deepcopy(state, {id(one): one for one in self.shared})

    def failed(self, error: BaseException, layer: int | None = None) -> None:
        """Take the job out of the pass, by its own fault; the others go on."""
        self.error, self.layer, self.at_fault = error, layer, True

    def arrays(self, state: Any) -> Arrays:
        """A state as plain arrays."""
        return self.guard.call(lambda: plain_arrays(state.state()))

    def of_arrays(self, arrays: Arrays) -> Any:
        """The state that these are of; they are its own from then on."""
        empty = self.copied(self.state)
        self.guard.call(lambda: empty.restore(arrays))
        return empty

    def reached(self, index: int, shards: int, merged: Mapping[int, Any]) -> Reached:
        """Where it is after so many shards of a pass, as plain arrays."""
        random = self.guard.random
        began = self.arrays(self.state) if index and not self.request.ordered else None
        groups = {g: self.arrays(s) for g, s in merged.items()}
        self.guard.random = random  # what it draws does not depend on when it is committed
        return Reached(index, shards, began, groups, random)

    def go_on(self, reached: Reached) -> None:
        """Take up what was reached; where that fails it is as it was, still at the beginning."""
        random = self.guard.random
        try:
            self._take_up(reached)
        except BaseException:
            self.guard.random = random
            raise

    def _take_up(self, reached: Reached) -> None:

        def restored(empty: Any, arrays: Arrays) -> Any:
            own = {name: array.copy(order="K") for name, array in arrays.items()}
            self.guard.call(lambda: empty.restore(own))
            return empty

        anew = self.copied(self.state) if self.made is None else self.made()
        if self.request.ordered:
            began = restored(anew, reached.groups[0])
            groups = {0: began}
        else:
            began = anew if reached.began is None else restored(anew, reached.began)
            groups = {g: restored(self.guard.call(self.copied, began), arrays) for g, arrays in reached.groups.items()}
        self.guard.random = reached.random
        self.state, self.restored, self.start = began, groups, (reached.index, reached.shards)


def cut(tokens: Tokens, groups: int | None, size: int | None = None) -> list[tuple[int, np.ndarray]]:
    """The shards in their order, each with the group of prompts that it is of; without groups all are of group 0."""
    how: dict[str, Any] = {} if size is None else {"size": size}
    if groups is None:
        return [(0, shard) for shard in tokens.shards(**how)]
    import numpy as np

    group = dealt(tokens.ids, groups)
    return [(g, shard) for g in range(groups) for shard in tokens.shards(among=np.flatnonzero(group == g), **how)]


def shuffled(tokens: Tokens, seed: int, index: int) -> list[tuple[int, np.ndarray]]:
    """The shards of a pass over ordered analyses: prompts of one length are dealt anew, and shards come as they fall.

    Shards are cut by length as ever, so that no more is padded; where all prompts are of one length, as in text that is
    cut into pieces, any prompt comes in any place. Training wants neighbours that are of no one document or length.
    """
    import numpy as np

    generator = np.random.default_rng(derive(seed, "order of prompts", index))
    shards = tokens.shards()
    order = np.concatenate(shards)
    sources = tokens.lengths if tokens.sources is None else tokens.sources.lengths
    length = np.array([(tokens.lengths[i], sources[i]) for i in order]).reshape(-1, 2)
    for alike in np.unique(length, axis=0):
        places = np.flatnonzero((length == alike).all(axis=1))
        order[places] = generator.permutation(order[places])
    dealt_anew = np.split(order, np.cumsum([len(shard) for shard in shards])[:-1])
    return [(0, dealt_anew[i]) for i in generator.permutation(len(shards))]


def run_passes(
    engine: CaptureEngine,
    twin: Twin,
    tokens: Tokens,
    jobs: Sequence[Job],
    groups: int | None = None,
    order: int | None = None,
    way: OnTheWay | None = None,
    at_once: int = 1,
    size: int | None = None,
    among: Collection[int] | None = None,
) -> Iterator[str]:
    """Run as many passes as the jobs want, saying after each shard how far it is.

    Once it is exhausted, each job has its final state, or an error; with ``groups`` of prompts the last pass of a job
    gives a state of each group instead. ``order`` is the seed by which ordered jobs, which are all of them, see it.
    ``way`` commits jobs on the way: one that goes on is not fed again what it has seen, and shards that all have seen
    are left out. ``at_once`` shards go through a layer before the next is read (``run_together`` of an engine).
    ``size`` are the tokens of a shard where not as ever, of unordered jobs; ``among`` the groups to see, where not all.
    """
    shards = [s for s in cut(tokens, groups, size) if among is None or s[0] in among] if order is None else []

    @cache
    def agreed(passes: int) -> str:
        return agreement(shards if order is None else shuffled(tokens, order, 0), passes, groups, order)

    if way is not None:
        for job in jobs:
            way.begin(job, agreed)
    for index in range(max((j.request.passes for j in jobs), default=0)):
        shards = shards if order is None else shuffled(tokens, order, index)
        active = [j for j in jobs if j.request.passes > index and j.error is None]
        merged = {job.name: {**(job.restored if job.start[0] == index else {}), **job.apart} for job in active}
        layers: LayerStates = {j.name: {} for j in active if at_once > 1 and j.is_by_layer and j.start <= (index, 0)}
        number = 0
        while active and number < len(shards):
            fed = [job for job in active if job.start <= (index, number) and shards[number][0] not in job.apart]
            until = (j.start[1] for j in active if (index, number) < j.start < (index + 1, 0))  # others begin there
            some = shards[number : min([number + at_once, *until])]
            _fed(engine, twin, tokens, some, fed, index, merged, layers)
            each = range(number + 1, number + len(some) + 1)
            number += len(some)
            if way is not None:
                way.commit([job for job in fed if job.name not in layers], index, number, merged, agreed)
            yield from (f"pass {index + 1}, shard {done} of {len(shards)}" for done in each)
            active = [j for j in active if j.error is None]
        for job in active:
            if job.start[0] <= index:
                found = _of_all_layers(job, layers[job.name]) if job.name in layers else merged[job.name]
                _end_pass(job, index, found, groups)


def _fed(
    engine: CaptureEngine,
    twin: Twin,
    tokens: Tokens,
    some: Sequence[tuple[int, np.ndarray]],
    jobs: Sequence[Job],
    index: int,
    merged: Mapping[str, dict[int, Any]],
    layers: LayerStates,
) -> None:
    """Some shards of a pass through the model and to the jobs, and what these made of them merged in their order."""
    if not jobs:
        return
    # All passes but the last see all prompts: what they find is fixed, and the same for every group.
    feeds = [
        Feed(shard, jobs, {j.name: group if index + 1 == j.request.passes else 0 for j in jobs}, layers)
        for group, shard in some
    ]
    _run_shards(engine, twin, tokens, feeds, jobs)
    for feed in feeds:
        for job in jobs:
            if job.name not in layers:
                merged_into(job, feed.copies.get(job.name), merged[job.name], feed.groups[job.name])


def _end_pass(job: Job, index: int, merged: dict[int, Any], groups: int | None) -> None:
    job.restored = {}
    if index + 1 < job.request.passes:
        job.state = merged[0]
        guarded(job, None, _ended, job.state, index)
    elif groups is None:
        job.state = merged[0]
    else:
        job.groups = [merged[group] for group in sorted(merged)]


def _ended(state: Any, index: int) -> None:
    if hasattr(state, "end_pass"):
        state.end_pass(index)


def _run_shards(engine: Any, twin: Twin, tokens: Tokens, feeds: Sequence[Feed], jobs: Sequence[Job]) -> None:
    """Shards through the model, together where there are several."""
    try:
        with torch_for_tokens(min(sum(tokens.lengths[i] for i in feed.shard) for feed in feeds)):
            if len(feeds) == 1:
                engine.run(twin, tokens, feeds[0].shard, union(jobs), feeds[0].sink)
            else:
                sinks = [feed.sink for feed in feeds]
                engine.run_together(twin, tokens, [feed.shard for feed in feeds], union(jobs), sinks)
        for feed in feeds:
            feed.finish()
    except BaseException as error:
        for job in jobs:
            if job.error is None:
                job.error = settled(error)


def _of_all_layers(job: Job, groups: Mapping[int, Mapping[int | None, Any]]) -> dict[int, Any]:
    """One state of each group from those of its layers, in their order."""
    found: dict[int, Any] = {}
    for group, by_layer in groups.items():
        for layer in sorted(by_layer, key=lambda n: (n is None, n or 0)):
            merged_into(job, by_layer[layer], found, group)
    return found
