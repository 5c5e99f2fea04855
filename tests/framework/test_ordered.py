"""Ordered streams, the twin's weights and the names of its place, as an analysis sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_run import by_label, do, host, study

import gausslens
from gausslens.contract.analyses import Context, StepRef
from gausslens.contract.errors import ModelError
from gausslens.contract.prompts import Part, Prompt, Tokens
from gausslens.measuring.passes import shuffled
from gausslens.runs.plan import PlanError
from gausslens.spreading.prepare import prepare
from gausslens.testing import TinyModel

LINES = {"source": "lines", "lines": [f"{'x' * (1 + i % 3)} {chr(97 + i)}" * 40 for i in range(24)]}


def ordered(**changes: Any) -> dict[str, Any]:
    whole = study(
        prompts=LINES,
        variants={"trained": [], "dose": [{"edit": "probe.scale", "alpha": 3.0}]},
        analyses=[{"use": "probe.ordered", "with": {"epochs": 2}}, {"use": "probe.power"}],
        against=None,
    )
    return {name: value for name, value in (whole | changes).items() if value is not None}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return do(ordered(), tmp_path_factory.mktemp("ordered") / "store")


def test_one_instance_sees_every_prompt_once_in_each_pass_in_an_order_of_its_own(ran):
    read = gausslens.open(ran.path)
    seen = read["trained", "probe.ordered"]["seen"].values.reshape(2, -1)
    assert (np.sort(seen) == np.arange(24)).all()
    assert (seen[0] != seen[1]).any()
    assert (seen[0] != np.concatenate(next(step.tokens for step in ran.plan.steps if step.reads).shards())).any()
    # Paired: the same for all variants; the twin's own tensors are those of context.weights.
    assert (read["dose", "probe.ordered"]["seen"].values == seen.ravel()).all()
    edited, plain = (float(read[name, "probe.ordered"]["norm"]) for name in ("dose", "trained"))
    assert edited == pytest.approx(3 * plain)


def test_the_order_is_of_the_seed_which_is_in_the_key_and_others_beside_it_keep_theirs(ran, tmp_path):
    other = do(ordered(seed=4), tmp_path / "store")
    same, keys = by_label(ran), by_label(other)
    assert same["probe.ordered/trained"] != keys["probe.ordered/trained"]
    assert same["probe.power/trained"] == keys["probe.power/trained"]
    first, second = (gausslens.open(r.path)["trained", "probe.ordered"]["seen"].values for r in (ran, other))
    assert (first != second).any()
    alone = do(ordered(analyses=[{"use": "probe.power"}]), tmp_path / "alone")
    assert by_label(alone)["probe.power/trained"] == same["probe.power/trained"]
    one, beside = (gausslens.open(r.path)["trained", "probe.power"] for r in (alone, ran))
    assert one.equals(beside)


def test_errors_over_prompts_are_refused_by_name(tmp_path):
    asked = ordered(analyses=[{"use": "probe.ordered", "errors": {"groups": 4}}])
    with pytest.raises(PlanError, match=r"probe.ordered has no errors over prompts: .*sees all prompts in one order"):
        prepare(asked, host=host())
    *_, plan = prepare(ordered(errors={"groups": 4}), host=host())
    [note] = [n for n in plan.notes if "one order" in n]
    assert "probe.ordered" in note


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(0, 5), st.integers(0, 3))
def test_a_shuffled_pass_holds_each_prompt_once_in_shards_no_wider_than_before(lengths, seed, index):
    tokens: Tokens = TinyModel().tokenise([Prompt((Part("x" * n),)) for n in lengths])
    shards = [shard for _, shard in shuffled(tokens, seed, index)]
    assert sorted(np.concatenate(shards)) == list(range(len(lengths)))
    widths = lambda cut: sorted((len(s), max(tokens.lengths[i] for i in s)) for s in cut)  # noqa: E731
    assert widths(shards) == widths(tokens.shards())
    again = shuffled(tokens, seed, index)
    assert all((a == b).all() for (_, a), b in zip(again, shards, strict=True))


def test_names_are_read_where_they_are_declared_and_then_in_the_key(tmp_path):
    twice = {"variants": {"trained": [], "named": []}, "analyses": [{"use": "probe.placed"}, {"use": "probe.power"}]}
    ran = do(ordered(**twice), tmp_path / "store")
    read = gausslens.open(ran.path)
    assert float(read["trained", "probe.placed"]["letters"]) == len("trained None")
    assert float(read["named", "probe.placed"]["letters"]) == len("named None")
    keys = by_label(ran)
    assert keys["probe.placed/trained"] != keys["probe.placed/named"]
    assert keys["probe.power/trained"] == keys["probe.power/named"]


def test_names_that_are_not_declared_are_refused(tmp_path):
    ran = do(ordered(analyses=[{"use": "probe.undeclared"}, {"use": "probe.power"}]), tmp_path / "store")
    assert ran.outcome.counts() == {"computed": 2, "found": 0, "failed": 2}
    assert "Say knows=('variant',) in the Analysis" in ran.failures_in_words()


def test_what_is_there_only_while_a_step_runs_says_so():
    context = Context(TinyModel().info, 0)
    with pytest.raises(ModelError, match="call it in update, run or result"):
        context.weights(0)
    with pytest.raises(ModelError, match=r"not in __init__, inputs or request"):
        list(context.inputs.items())
    assert not context.inputs
    with pytest.raises(ModelError, match=r"call it in inputs\(steps\)"):
        context.same_twin([])
    here = context.at(StepRef("a", "x", "x", 1))
    assert here.same_twin([StepRef("a", "y", "y", 1), StepRef("a", "y", "y", 2), StepRef("b", "y", "y", 1)]) == [
        StepRef("a", "y", "y", 1)
    ]


def test_weights_are_copies():
    from gausslens.contract.twin import Twin

    model = TinyModel()
    context = Context(model.info.narrowed([0], [1]), 0).at(None, (), Twin(model))
    before = model.tensor(0, "W_Q").clone()
    context.weights(0).W_Q.zero_()
    assert context.weights(0).W_Q.shape[0] == 1
    assert (model.tensor(0, "W_Q") == before).all()
