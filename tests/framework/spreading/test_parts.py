"""Tasks and parts: what is computed together, in which order, and whose share it is."""

from __future__ import annotations

from collections import Counter

import pytest
from several_processes import same
from test_run import host, study

from gausslens.contract.errors import InputError
from gausslens.perform import perform
from gausslens.spreading.prepare import prepare
from gausslens.spreading.tasks import Board, Part, Task, tasks_of


@pytest.mark.parametrize("text", ["", "2", "0/5", "6/5", "-1/5", "1/0", "a/b", "1/2/3", "1.5/2"])
def test_a_part_is_k_of_n(text):
    with pytest.raises(InputError, match=r"write k/n|no such part"):
        Part.read(text)


def test_every_twin_is_of_one_part_and_neighbours_stay_together():
    *_, plan = prepare(study(), host=host())
    measured = {step.key for step in plan.steps if not step.inputs}
    for of in (1, 2, 3, 5, 50):
        shares = [Part(number, of).of_plan(plan) for number in range(1, of + 1)]
        counted = Counter(key for share in shares for key in share)
        assert set(counted.values()) == {1}
        assert measured <= set(counted)
        twins = [
            len(task.keys) for task in tasks_of(plan, list({s.key: s for s in plan.steps}.values())) if not task.reads
        ]
        sizes = [sum(key in measured for key in share) for share in shares]
        assert max(sizes) - min(sizes) <= 2 * max(twins)
    assert Part(1, 1).of_plan(plan) == {step.key for step in plan.steps}


def test_the_board_hands_out_what_waits_for_nothing():
    a, b = Task(("a",), frozenset(), 1, False), Task(("b",), frozenset(), 1, False)
    c = Task(("c",), frozenset(("a", "b")), 1, True)
    board = Board([a, b, c])
    assert [board.take(), board.take(), board.take()] == [a, b, None]
    board.settle(b)
    board.put_off(a)
    assert board.take() is None
    assert board.again() == 1
    assert board.take() == a
    board.settle(a)
    assert board.take() == c
    board.settle(c)
    assert not board.left


def test_five_parts_and_what_is_left_equal_one_run(tmp_path):
    whole = perform(study(), store=tmp_path / "one", host=host())
    left = []
    for number in (3, 1, 5, 2, 4):
        ran = perform(study(), store=tmp_path / "parts", host=host(), part=Part(number, 5))
        assert not ran.outcome.failed
        assert ran.report is None
        left.append(len(ran.outcome.left))
    assert left[-1]
    after = perform(study(), store=tmp_path / "parts", host=host())
    assert len(after.outcome.computed) + len(after.outcome.found) == len(whole.plan.steps)
    assert all(step.inputs for step in after.outcome.computed)
    assert same(tmp_path / "one", tmp_path / "parts")
