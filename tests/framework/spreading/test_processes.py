"""Several processes at one study: runs at once, parts, and what happens to them when they are told to end."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest
from several_processes import Site, same

pytestmark = pytest.mark.full


def until(site: Site, many: int = 1) -> None:
    end = time.monotonic() + 600
    while len(list(site.store.rglob("parts/logged.norm/*.h5"))) < many:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_same_run_started_six_times_does_each_step_once(site):
    site.write(draws=8, seconds=0.2)
    started = [site.start() for _ in range(6)]
    ended = [process.communicate(timeout=1200) for process in started]
    assert [process.returncode for process in started] == [0] * 6, ended
    assert set(site.computed().values()) == {1}
    assert len(site.computed()) == 9
    counts = Counter(word for out, _ in ended for word in out.split("steps:")[1].split("\n")[0].split())
    assert "failed" not in counts
    assert list((site.store / "claims").iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_run_that_is_told_to_end_lets_go_and_another_goes_on(site, number, code):
    site.write(draws=6, seconds=0.3)
    process = site.start(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    until(site)
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == code, error
    assert "the same command goes on from there" in error
    assert "Traceback" not in error
    assert list((site.store / "claims").iterdir()) == []
    before = site.computed()
    assert site.run().returncode == 0
    assert sum((site.computed() - before).values()) <= 7 - (len(before) - 1)
    assert sum(count - 1 for count in site.computed().values()) <= 1  # the one that it was at


def test_what_a_killed_run_claimed_is_taken_up_by_one_that_waits_for_it(site):
    site.write(draws=2, seconds=3.0)
    first = site.start()
    end = time.monotonic() + 600
    while not site.computed():
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    second = site.start()
    time.sleep(0.5)
    first.kill()
    first.communicate()
    _, error = second.communicate(timeout=600)
    assert second.returncode == 0, error
    assert len(site.computed()) == 3
    assert sum(site.computed().values()) <= 4


def test_a_run_stopped_for_longer_than_its_lease_loses_nothing(site):
    site.environment["GAUSSLENS_LEASE_SECONDS"] = "1"
    site.write(draws=3, seconds=0.5)
    first = site.start()
    until(site)
    first.send_signal(signal.SIGSTOP)
    second = site.run()
    assert second.returncode == 0, second.stderr
    first.send_signal(signal.SIGCONT)
    _, error = first.communicate(timeout=600)
    assert first.returncode == 0, error
    assert max(site.computed().values()) <= 2
    assert sum(site.computed().values()) <= 4 + 1
    site.environment.pop("GAUSSLENS_LEASE_SECONDS")
    assert site.run(store=site.directory / "whole").returncode == 0
    assert same(site.store, site.directory / "whole")
