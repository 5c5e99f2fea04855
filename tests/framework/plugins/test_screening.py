"""What descriptors may hold, field by field; and that no value of any field gets past, or breaks the look at it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.contract.descriptors import Analysis, Descriptor, Edit, Engine, Loader, PromptSource, ReportSection
from gausslens.plugins.check_descriptors import HOOKS, RESERVED, problems

GOOD: dict[str, Descriptor] = {
    "loaders": Loader(name="l", version=1, summary="L.", claims="m:c", open="m.n:o", rank=-3),
    "captures": Engine(name="e-1", version=2, summary="E.", engine="m:E", serves=("l",)),
    "prompt_sources": PromptSource(name="few_shot", version=1, summary="P.", prompts="m:p", random=True),
    "edits": Edit(name="mine.edit", version=1, summary="E.", edit="m:e", touches="m:touched"),
    "analyses": Analysis(
        name="mine.one",
        version=1,
        summary="A.",
        shape="stream",
        analysis="m:A",
        exchangeable=("head",),
        prompts={"source": "text", "text": ["a"]},
        estimate="m:estimate",
    ),
    "report_sections": ReportSection(name="mine", version=1, summary="S.", section="m:s", analyses=("mine.one",)),
}
REFERENCES = ("m", "m:", ":n", "m:n:o", "m n:o", "m:n.o", "", "1m:n", None, 3, ("m:n",))
BAD: dict[str, tuple[Any, ...]] = {
    "version": (0, -1, True, 1.0, "1", None),
    "summary": ("", "  ", "two\nlines", None, 3),
    "rank": (1.5, True, "1", None),
    "order": (1.5, True, "1", None),
    "random": (1, "yes", None),
    "row_blocks": (1, None),
    "column_blocks": (1, None),
    "all_layers": (1, None),
    "by_layer": (1, None),
    "any_size": (1, None),
    "crossed": ("yes", None),
    "differences": ("allso", "", True, None),
    "bulk": ("no", None),
    "texts": (1, "yes", None),
    "scope": ("all", None, 1, []),
    "shape": ("streem", "", None, ["stream"]),
    "serves": ((), ["l"], "l", (1,), ("",), None),
    "touches": ((), "W_Q", ["W_Q"], (1,), None),
    "exchangeable": (["head"], "head", (1,), None),
    "names": (["of"], "of", (1,), None),
    "knows": ("variant", ["draw"], ("model",), ("draw", "draw"), (1,), None),
    "formerly": (["mine.old"], "mine.old", (1,), ("",), None),
    **dict.fromkeys(
        ("estimate", "settle", "model", "check", "inputs", "fingerprint"), tuple(r for r in REFERENCES if r is not None)
    ),
    "name": ("", "a b", "a.b.c", ".a", "a.", "-a", "ä", "a/b", None, 1, ["a"]),
    **dict.fromkeys(("parameters", "claims", "open", "engine", "edit", "analysis", "section"), REFERENCES),
    "keeps": (1, "", "two words", ("scale",), "a.b"),
    "question": (1, None, " ", "two\nlines"),
}
CASES = [
    (hook, field.name, value)
    for hook, descriptor in GOOD.items()
    for field in dataclasses.fields(descriptor)
    for value in ({"prompts": REFERENCES} | {"analyses": BAD["serves"]} | BAD).get(field.name, ())
    if not (hook == "analyses" and field.name == "prompts")
] + [("analyses", "prompts", value) for value in ("m:p", {}, {"source": 1}, ["text"])]


@pytest.mark.parametrize("hook", HOOKS)
def test_what_is_in_order_passes(hook: str) -> None:
    assert problems(hook, [GOOD[hook]], ours=False) == []
    assert problems(hook, (), ours=False) == []


@pytest.mark.parametrize(("hook", "field", "value"), CASES)
def test_what_is_not_is_named(hook: str, field: str, value: object) -> None:
    [problem] = problems(hook, [dataclasses.replace(GOOD[hook], **{field: value})], ours=False)
    said = "its name is not of the form" if field == "name" else f"{field} is "
    assert said in problem


def test_every_field_of_every_descriptor_is_looked_at() -> None:
    """A field that is added to a descriptor needs a check, and cases here."""
    for hook, descriptor in GOOD.items():
        for field in dataclasses.fields(descriptor):
            bad = dataclasses.replace(descriptor, **{field.name: object()})
            assert problems(hook, [bad], ours=False), f"{type(descriptor).__name__}.{field.name}"
            assert any(case[:2] == (hook, field.name) for case in CASES)


@pytest.mark.parametrize("prefix", RESERVED)
@pytest.mark.parametrize("hook", ["analyses", "edits", "report_sections"])
def test_our_prefixes_are_ours(hook: str, prefix: str) -> None:
    named = dataclasses.replace(GOOD[hook], name=f"{prefix}.new")
    assert problems(hook, [named], ours=True) == []
    assert "reserved" in problems(hook, [named], ours=False)[0]


@pytest.mark.parametrize("hook", HOOKS)
def test_plain_and_dotted_names(hook: str) -> None:
    form = HOOKS[hook][1]
    for name, allowed in (("thing", form != "dotted"), ("mine.thing", form != "plain")):
        assert bool(problems(hook, [dataclasses.replace(GOOD[hook], name=name)], ours=False)) is not allowed


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from([*GOOD.values()]),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(hook=st.sampled_from(sorted(HOOKS)), returned=ANYTHING)
def test_whatever_a_hook_returns_is_judged(hook: str, returned: object) -> None:
    found = problems(hook, returned, ours=False)
    kind = HOOKS[hook][0]
    in_order = isinstance(returned, list | tuple) and all(isinstance(item, kind) for item in returned)
    assert found or in_order
    assert all(len(line) < 400 for line in found)


@given(hook=st.sampled_from(sorted(HOOKS)), data=st.data(), value=ANYTHING)
def test_whatever_a_field_holds_is_judged(hook: str, data: st.DataObject, value: object) -> None:
    field = data.draw(st.sampled_from(dataclasses.fields(GOOD[hook])))
    for line in problems(hook, [dataclasses.replace(GOOD[hook], **{field.name: value})], ours=False):
        assert len(line) < 400
