"""A study of several nulls and five analyses: equal bit for bit whoever computes it, and complete whatever is killed.

CI takes a sample on builtin:tiny; the whole, 4 variants of 8 draws on builtin:clue-tiny with 30 workers and 3
schedulers killed, is of the soak.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from several_processes import Site, arrays, below, scheduler

ANALYSES = (
    "  - {use: bilinear.spectrum}\n  - {use: gaussian.moments}\n"
    "  - {use: model.attention, with: {maps: none}}\n  - {use: model.loss}\n"
)
NULLS = {
    "gaussian": "reinit.gaussian",
    "entries": "reinit.permute",
    "spectrum": "reinit.rotate, by: matrix",
}


@dataclass(frozen=True)
class Size:
    model: str
    draws: int
    nulls: int
    kills: int
    schedulers: int

    def write(self, site: Site, seconds: float) -> int:
        """The run file; how many steps look at a model."""
        more = [f"  {name}: {{edits: [{{edit: {edit}}}], draws: {self.draws}}}\n" for name, edit in NULLS.items()]
        site.write(self.draws, ANALYSES, self.model, "".join(more[: self.nulls - 1]), seconds=seconds)
        return 5 * (1 + self.nulls * self.draws)


SAMPLE = Size("builtin:tiny", 2, 2, 6, 1)
WHOLE = Size("builtin:clue-tiny", 8, 4, 30, 3)
SIZES = [pytest.param(SAMPLE, id="sample"), pytest.param(WHOLE, id="whole", marks=pytest.mark.soak)]
pytestmark = pytest.mark.full


@dataclass
class Study:
    """A study of a size, its number of steps that look at a model, and what one process computed of it."""

    site: Site
    size: Size
    steps: int
    one: dict[str, Any]

    def like(self, store: Path) -> None:
        """Another store holds the same arrays, bit for bit, and no claim is left in it."""
        other = arrays(store)
        assert other.keys() == self.one.keys()
        assert [key for key in other if other[key] != self.one[key]] == []
        assert list((store / "claims").iterdir()) == []


@pytest.fixture(scope="module", params=SIZES)
def computed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The study, computed by one process."""
    site = Site(tmp_path_factory.mktemp("study"))
    steps = request.param.write(site, seconds=0.05)
    one = site.directory / "one"
    ran = site.run(store=one)
    assert ran.returncode == 0, ran.stderr
    assert len(site.committed()) > steps
    assert set(site.committed().values()) == {1}
    return Study(site, request.param, steps, arrays(one))


@pytest.fixture
def study(computed: Study) -> Study:
    """The same, with nothing logged yet."""
    computed.site.log.unlink(missing_ok=True)
    computed.site.commits.unlink(missing_ok=True)
    return computed


def test_it_is_equal_with_one_process_two_workers_a_scheduler_and_five_parts(study):
    site, stores = study.site, {name: study.site.directory / name for name in ("workers", "scheduler", "parts")}
    ran = site.run("--workers", "2", store=stores["workers"])
    assert ran.returncode == 0, ran.stderr
    told = [line for line in ran.stderr.splitlines() if not line.startswith("study: ")]  # progress, where it takes long
    assert len(told) == 1
    assert told[0].startswith("2 workers, each with 1 thread and ")
    with scheduler(site) as (file, _):
        ran = site.run("--scheduler", str(file), store=stores["scheduler"])
        assert ran.returncode == 0, ran.stderr
    for number in range(1, 6):
        ran = site.run("--part", f"{number}/5", store=stores["parts"])
        assert ran.returncode == 0, ran.stderr
    assert "left to other parts" in ran.stdout
    assert site.run(store=stores["parts"]).returncode == 0
    print(f"{study.steps} steps and their comparisons, {len(study.one)} arrays, in four ways")
    assert set(site.committed().values()) == {3}
    for store in stores.values():
        study.like(store)


def moments(site: Site, draw: random.Random, steps: int, number: int) -> list[int]:
    """After how many finished steps so many things are killed: from now on, the last before the end."""
    done = len(site.committed())
    return sorted(draw.choices(range(done, max(done + 1, steps - 4)), k=number))


def without_schedulers(site: Site, draw: random.Random, number: int, steps: int) -> int:
    """Kill so many schedulers of runs, each at its moment; how many."""
    for moment in moments(site, draw, steps // 2, number):
        with scheduler(site, 1) as (file, leads):
            process = site.start("--scheduler", str(file))
            while len(site.committed()) < moment:
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 2))
            leads.kill()
            _, error = process.communicate(timeout=1200)
            assert process.returncode == 1, error
            assert "Traceback" not in error
    return number


def without_workers(site: Site, draw: random.Random, number: int, steps: int) -> tuple[int, int, int]:
    """Kill so many workers of runs, each at its moment, until one comes to its end.

    How many were killed, how many of these within 3 seconds of their start, and how many runs that took.
    """
    due, killed, early, runs = moments(site, draw, steps, number), 0, 0, 0
    while runs < 20:
        runs += 1
        process = site.start("--workers", "2")
        while process.poll() is None:
            time.sleep(draw.uniform(0.02, 0.5))
            victims = below(process)
            if killed < number and victims and len(site.committed()) >= due[killed]:
                victim = draw.choice(victims)
                try:
                    early += time.time() - victim.create_time() < 3
                    victim.kill()
                except psutil.Error:
                    continue
                killed += 1
        _, error = process.communicate()
        assert "Traceback" not in error
        if process.returncode == 0:
            break
    return killed, early, runs


def test_what_is_killed_is_lost_and_nothing_else(study):
    draw, site, size, steps = random.Random(19), study.site, study.size, study.steps
    schedulers = without_schedulers(site, draw, size.schedulers, steps)
    killed, early, runs = without_workers(site, draw, size.kills, steps)
    finished, begun = site.committed(), site.computed()
    print(
        f"{steps} steps and {len(finished) - steps} that read them; killed {killed} workers ({early} within 3 s "
        f"of their start) and {schedulers} schedulers; {runs} runs after these; finished twice: "
        f"{sum(count > 1 for count in finished.values())}; of {len(begun)} steps that log their beginning "
        f"{sum(begun.values()) - len(begun)} were begun again"
    )
    assert (killed, schedulers) == (size.kills, size.schedulers)
    assert set(finished.values()) == {1}  # nothing that was finished is done again
    assert sum(begun.values()) - len(begun) <= killed + schedulers  # only what a worker was at
    study.like(site.store)
