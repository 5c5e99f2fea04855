"""Random small studies give the same results whatever happened to their store; the soak has 200."""

from __future__ import annotations

import pytest
from random_studies import (
    a_copy,
    a_packing,
    a_run_that_is_killed,
    another_seed,
    parts,
    troubled,
    two_at_once,
    workers_that_are_killed,
)

pytestmark = pytest.mark.full


@pytest.mark.parametrize(
    ("seed", "acts"),
    [
        (1, [a_run_that_is_killed, a_packing, workers_that_are_killed]),
        (2, [parts, a_run_that_is_killed, a_copy]),
        (3, [another_seed, two_at_once]),
    ],
)
def test_a_study_that_is_troubled_gives_what_it_gives_in_peace(seed, acts):
    found = troubled(seed, acts)
    print(found)
    assert found["results"] > 0
    assert found["differ"] == []


def test_a_difference_would_be_seen():
    """The same study of another seed has other twins."""

    def with_another_seed(study):
        study.file.write_text(study.file.read_text().replace('"seed": ', '"seed": 1'))

    assert troubled(1, [with_another_seed])["differ"]
