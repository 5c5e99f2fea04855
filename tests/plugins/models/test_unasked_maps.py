"""Maps that nobody asked for are kept where they are small; keys are those of what is kept."""

import pytest

from gausslens_models.analyses import attention


def planned(**told: str) -> tuple[str, int, float]:
    """The key of a step, and what it is told to need: bytes of disk, seconds."""
    from gausslens.runs.resources import needs
    from gausslens.spreading.prepare import prepare

    study = {
        "gausslens": 1,
        "name": "maps",
        "model": {"path": "builtin:tiny"},
        "prompts": {"source": "repeated-random", "prompts": 4, "length": 8},
        "analyses": [{"use": "model.attention", "with": told}],
    }
    _, _, models, plan = prepare(study, ())
    models.close()
    need = needs(plan.steps[0], plan.steps[0].info)
    return plan.steps[0].key, need.disk, need.seconds


def test_small_maps_are_kept_unasked_under_the_key_that_they_had() -> None:
    assert planned()[:2] == planned(maps="mean")[:2]
    assert planned()[1] > 0


def test_large_maps_are_not_kept_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "UNASKED_BYTES", 100)
    assert planned()[:2] == planned(maps="none")[:2]
    assert planned()[1] == 0
    assert planned(maps="mean")[1] > 100
