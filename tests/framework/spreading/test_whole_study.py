"""A study of several nulls and five analyses: equal bit for bit whoever computes it, and complete whatever is killed.

CI takes a sample on builtin:tiny; the whole, 4 variants of 8 draws on builtin:clue-tiny with 30 workers and 3
schedulers killed, is of the soak.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

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

    def write(self, site: Site, seconds: float = 0.0) -> int:
        """The run file; how many steps look at a model."""
        more = [f"  {name}: {{edits: [{{edit: {edit}}}], draws: {self.draws}}}\n" for name, edit in NULLS.items()]
        site.write(self.draws, ANALYSES, self.model, "".join(more[: self.nulls - 1]), seconds=seconds)
        return 5 * (1 + self.nulls * self.draws)


SAMPLE = Size("builtin:tiny", 2, 2, 6, 1)
WHOLE = Size("builtin:clue-tiny", 8, 4, 30, 3)
SIZES = pytest.mark.parametrize(
    "size", [pytest.param(SAMPLE, id="sample"), pytest.param(WHOLE, id="whole", marks=pytest.mark.soak)]
)
pytestmark = pytest.mark.full


@SIZES
def test_it_is_equal_with_one_process_two_workers_a_scheduler_and_five_parts(site, size):
    steps = size.write(site)
    stores = {name: site.directory / name for name in ("one", "workers", "scheduler", "parts")}
    ran = site.run(store=stores["one"])
    assert ran.returncode == 0, ran.stderr
    ran = site.run("--workers", "2", store=stores["workers"])
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("2 workers, each with 1 thread and ")
    assert len(ran.stderr.splitlines()) == 1
    with scheduler(site) as (file, _):
        ran = site.run("--scheduler", str(file), store=stores["scheduler"])
        assert ran.returncode == 0, ran.stderr
    for number in range(1, 6):
        ran = site.run("--part", f"{number}/5", store=stores["parts"])
        assert ran.returncode == 0, ran.stderr
    assert "left to other parts" in ran.stdout
    assert site.run(store=stores["parts"]).returncode == 0
    found = {name: arrays(path) for name, path in stores.items()}
    print(f"{steps} steps and their comparisons, {len(found['one'])} arrays, four times")
    assert len(site.committed()) > steps
    assert set(site.committed().values()) == {4}
    for name, other in found.items():
        assert other.keys() == found["one"].keys(), name
        assert [key for key in other if other[key] != found["one"][key]] == [], name
        assert list((stores[name] / "claims").iterdir()) == []


def moments(draw: random.Random, steps: int, number: int) -> list[int]:
    """After how many finished steps so many things are killed: some before anything is, the last before the end."""
    return sorted(draw.choices(range(max(1, steps - 4)), k=number))


def without_schedulers(site: Site, draw: random.Random, number: int, steps: int) -> int:
    """Kill so many schedulers of runs, each at its moment; how many."""
    for moment in moments(draw, steps, number):
        with scheduler(site) as (file, leads):
            process = site.start("--scheduler", str(file))
            while len(site.committed()) < moment:
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 2))
            leads.kill()
            _, error = process.communicate(timeout=300)
            assert process.returncode == 1, error
            assert "Traceback" not in error
        (site.directory / "scheduler.json").unlink()
    return number


def without_workers(site: Site, draw: random.Random, number: int, steps: int) -> tuple[int, int, int]:
    """Kill so many workers of runs, each at its moment, until one comes to its end.

    How many were killed, how many of these within 3 seconds of their start, and how many runs that took.
    """
    due, killed, early, runs = moments(draw, steps, number), 0, 0, 0
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


@SIZES
def test_what_is_killed_is_lost_and_nothing_else(site, size):
    draw = random.Random(19)
    steps = size.write(site, seconds=0.05)
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
    # Only what a worker was at: one step of each, and two workers of a scheduler.
    assert sum(begun.values()) - len(begun) <= killed + 2 * schedulers
    whole = site.directory / "whole"
    assert site.run(store=whole).returncode == 0
    one, other = arrays(site.store), arrays(whole)
    assert one.keys() == other.keys()
    assert [key for key in one if one[key] != other[key]] == []
