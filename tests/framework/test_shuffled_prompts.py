"""Nulls of the text: what a shuffle keeps, the same in every process, and what plans and comparisons make of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import probes
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from test_run import by_label, do, parts, study

import gausslens
from gausslens.contract.errors import InputError, Mark
from gausslens.contract.model import ModelSpec
from gausslens.contract.prompts import Part, Prompt, Tokens
from gausslens.runfile import RunFileErrors
from gausslens.runs.compare import against
from gausslens.runs.plan import PlanError
from gausslens.runs.shuffled_prompts import Reads, shuffle_seed, shuffled
from gausslens.runs.study import Shuffle
from gausslens.spreading.prepare import prepare
from gausslens.testing import TinyParameters
from gausslens.testing.tiny_model import open_tiny

HOW = {"tokens": "prompt", "words": "prompt", "frequency": "all"}
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
PARTS = st.lists(st.tuples(TEXT, st.sampled_from(["ask", "say"])), min_size=1, max_size=4)
CARDS = [("Ant", " digs a nest"), ("Bear", " likes honey"), ("Cat", " sleeps"), ("Duck", " swims on a pond")]


def a_shuffle(how: str, within: str | None = None, segments: tuple[str, ...] = ()) -> Shuffle:
    return Shuffle(how, within or HOW.get(how), segments, Mark("run.yaml", 7, 3))


def tokenised(rows: list[list[tuple[str, str]]]) -> Tokens:
    prompts = [Prompt(tuple(Part(text, segment) for text, segment in row)) for row in rows]
    return open_tiny(ModelSpec("builtin:testing", TinyParameters())).tokenise(prompts)


def cards() -> Tokens:
    return tokenised([[("Say what it is: ", "ask"), (word, "word"), (clue, "answer")] for word, clue in CARDS])


def words_of(tokens: Tokens, prompt: int) -> list[str]:
    """Each word as its bytes, in order."""
    found: dict[int, bytes] = {}
    for number, word in zip(tokens.ids[prompt], tokens.word[prompt], strict=True):
        if word >= 0:
            found[int(word)] = found.get(int(word), b"") + bytes([number])
    return [found[n].decode() for n in sorted(found)]


def said(tokens: Tokens, prompt: int, segment: str) -> str:
    of = tokens.segment[prompt] == tokens.segments.index(segment)
    return bytes(int(i) for i in tokens.ids[prompt][of]).decode()


@settings(max_examples=60)
@given(st.lists(PARTS, min_size=1, max_size=4), st.sampled_from(sorted(HOW)), st.integers(0, 2**62))
def test_specials_and_frame_stay_and_texts_fit_their_tokens(rows: Any, how: str, seed: int) -> None:
    tokens = tokenised(rows)
    if how == "words" and not any((word >= 0).any() for word in tokens.word):
        with pytest.raises(InputError, match="without words"):
            shuffled(tokens, a_shuffle(how), seed)
        return
    found = shuffled(tokens, a_shuffle(how), seed)
    assert found.lengths == tokens.lengths
    for i in range(len(tokens)):
        np.testing.assert_array_equal(found.text[i], tokens.text[i])
        np.testing.assert_array_equal(found.ids[i][~found.text[i]], tokens.ids[i][~tokens.text[i]])
        if how != "words":  # a longer word in the place of a shorter one moves what follows
            np.testing.assert_array_equal(found.word[i], tokens.word[i])
            np.testing.assert_array_equal(found.segment[i], tokens.segment[i])
        if how != "frequency":
            assert Counter(found.ids[i].tolist()) == Counter(tokens.ids[i].tolist())
        assert len(found.pieces[i]) == len(found.span[i]) == len(found.ids[i])
        stood_for = dict(zip(tokens.ids[i].tolist(), map(tuple, tokens.span[i]), strict=True))
        for number, (start, end) in zip(found.ids[i].tolist(), found.span[i], strict=True):
            assert 0 <= start <= end <= len(found.rendered[i])
            if number < 128 and number in stood_for and how != "frequency":  # one byte, one character
                assert found.rendered[i][start:end] == tokens.rendered[i][slice(*stood_for[number])]


@given(st.lists(PARTS, min_size=1, max_size=3), st.integers(0, 2**62))
def test_tokens_stay_within_what_they_are_shuffled_within(rows: Any, seed: int) -> None:
    tokens = tokenised(rows)

    def counted(found: Tokens, by: str) -> Counter[Any]:
        return Counter(
            (prompt if by != "all" else 0, int(s) if by == "segment" else 0, int(i))
            for prompt in range(len(found))
            for i, s in zip(found.ids[prompt], found.segment[prompt], strict=True)
        )

    for within in ("segment", "prompt", "all"):
        found = shuffled(tokens, a_shuffle("tokens", within), seed)
        assert counted(found, within) == counted(tokens, within)


def test_words_are_moved_whole_and_white_space_stays_between_them() -> None:
    tokens = tokenised([[("one three  four\nfifteen", "text")], [("six seventy eight nine ten", "text")]])
    found = shuffled(tokens, a_shuffle("words"), 5)
    for prompt in range(2):
        assert sorted(words_of(found, prompt)) == sorted(words_of(tokens, prompt))
        assert words_of(found, prompt) != words_of(tokens, prompt)
        rendered = bytes(int(i) for i in found.ids[prompt][1:]).decode()
        assert rendered == found.rendered[prompt]
        assert rendered.split() == words_of(found, prompt)
    assert [c for c in found.rendered[0] if c.isspace()] == [" ", " ", " ", "\n"]
    across = shuffled(tokens, a_shuffle("words", "all"), 5)
    assert [len(words_of(across, i)) for i in range(2)] == [4, 5]
    assert sorted(words_of(across, 0) + words_of(across, 1)) == sorted(words_of(tokens, 0) + words_of(tokens, 1))


def test_only_the_named_segments_are_shuffled() -> None:
    tokens = cards()
    found = shuffled(tokens, a_shuffle("tokens", "prompt", ("ans*",)), 1)
    for i in range(len(tokens)):
        assert said(found, i, "ask") + said(found, i, "word") == said(tokens, i, "ask") + said(tokens, i, "word")
        assert sorted(said(found, i, "answer")) == sorted(said(tokens, i, "answer"))
    assert found.digest() != tokens.digest()


def test_documents_give_each_prompt_the_segment_of_another() -> None:
    tokens = cards()
    for seed in range(20):
        found = shuffled(tokens, a_shuffle("documents", segments=("answer",)), seed)
        clues = [said(found, i, "answer") for i in range(len(tokens))]
        assert sorted(clues) == sorted(clue for _, clue in CARDS)
        assert all(clue != own for clue, (_, own) in zip(clues, CARDS, strict=True))
        for i, (word, _) in enumerate(CARDS):
            assert found.rendered[i] == f"Say what it is: {word}{clues[i]}"
            assert words_of(found, i) == found.rendered[i].split()
            assert "".join(found.rendered[i][a:b] for a, b in found.span[i]) == found.rendered[i]


def test_several_segments_come_from_the_same_prompt() -> None:
    found = shuffled(cards(), a_shuffle("documents", segments=("word", "answer")), 3)
    pairs = {(said(found, i, "word"), said(found, i, "answer")) for i in range(len(CARDS))}
    assert pairs == set(CARDS)


def test_tokens_are_drawn_by_their_frequency() -> None:
    tokens = tokenised([[("a" * 700 + "b" * 300, "text")]])
    found = shuffled(tokens, a_shuffle("frequency"), 11)
    share, error = float(np.mean(found.ids[0][1:] == ord("a"))), (0.7 * 0.3 / 1000) ** 0.5
    assert abs(share - 0.7) < 4 * error
    assert found.ids[0][0] == tokens.ids[0][0]


@pytest.mark.parametrize(
    ("rows", "shuffle", "said"),
    [
        ([[("one", "text")]], a_shuffle("documents", segments=("text",)), "one prompt alone"),
        ([[("one", "text")], [("two", "text")]], a_shuffle("documents", segments=("text",)), "in another order"),
        ([[("a b", "text")]], a_shuffle("tokens", segments=("txet",)), "is 'txet': did you mean text?"),
        (
            [[("a", "ask"), ("b", "say")], [("c", "ask")]],
            a_shuffle("documents", segments=("say",)),
            r"prompt 1 \(1\) has none of these segments where prompt 0 has say",
        ),
        ([[(" ", "text")]], a_shuffle("words"), "tokens without words: shuffle tokens"),
        ([[("a", "text")]], a_shuffle("tokens", segments=("special",)), "no text to shuffle in these segments"),
    ],
)
def test_what_cannot_be_shuffled_is_said(rows: Any, shuffle: Shuffle, said: str) -> None:
    with pytest.raises(InputError, match=said):
        shuffled(tokenised(rows), shuffle, 0)


SCRIPT = """
from test_shuffled_prompts import a_shuffle, cards
from gausslens.runs.shuffled_prompts import shuffle_seed, shuffled
for how in ("tokens", "words", "frequency", "documents"):
    shuffle = a_shuffle(how, segments=("answer",))
    made = [shuffled(cards(), shuffle, shuffle_seed(shuffle, 3, draw)) for draw in range(3)]
    print(how, *(one.digest() for one in made), *(one.rendered for one in made))
"""


def test_two_processes_shuffle_alike_and_draws_apart() -> None:
    here = Path(__file__).parent
    told = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    for line in told[0].splitlines():
        assert len(set(line.split()[1:4])) == 3


def test_shuffled_tokens_are_let_go_and_made_the_same_again() -> None:
    shuffle = a_shuffle("tokens")
    reads = Reads(cards(), shuffle, shuffle_seed(shuffle, 0, 1))
    first = reads.tokens
    assert reads.tokens is first
    again, rendered = first.digest(), first.rendered
    del first
    assert reads._made is not None
    assert reads._made() is None
    assert (reads.tokens.digest(), reads.tokens.rendered) == (again, rendered)
    assert reads.digest == again


LINES = ["one two three four", "five six seven eight nine", "ten eleven twelve"]


def text_study(**changes: Any) -> dict[str, Any]:
    whole = {
        "prompts": {"source": "lines", "lines": LINES},
        "variants": {
            "trained": [],
            "other": {"prompts": {"source": "lines", "lines": ["quite another text"]}},
            "chance": {"prompts": {"shuffle": "tokens"}, "draws": 4},
        },
        "analyses": [
            {"use": "probe.power"},
            {"use": "probe.norm"},
            {"use": "probe.next"},
            {"use": "probe.doubled"},
            {"use": "probe.doubled", "as": "of_norm", "with": {"of": "probe.norm"}},
        ],
    }
    return study(**(whole | changes))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return do(text_study(), tmp_path_factory.mktemp("text") / "store")


def test_text_variants_have_the_twin_of_the_model_and_tokens_of_their_own(ran: Any) -> None:
    assert not ran.outcome.failed
    steps = [s for s in ran.plan.steps if s.ref.label == "probe.power"]
    assert len({str(s.ingredients["twin"]) for s in steps}) == 1
    assert len({s.ingredients["tokens"] for s in steps}) == len(steps) == 1 + 1 + 4
    other = next(s for s in steps if s.ref.variant == "other")
    assert other.tokens is not None
    assert other.tokens.rendered == ("quite another text",)


def test_a_shuffled_variant_is_what_running_its_prompts_gives(ran: Any, tmp_path: Path) -> None:
    """The tokens of one draw, given as the prompts of a run of their own, give the same numbers."""
    step = next(s for s in ran.plan.steps if (s.ref.variant, s.ref.draw, s.ref.label) == ("chance", 2, "probe.power"))
    assert step.tokens is not None
    assert [sorted(t) for t in step.tokens.rendered] == [sorted(t) for t in LINES]
    alone = text_study(prompts={"source": "lines", "lines": list(step.tokens.rendered)}, against=None)
    alone |= {"variants": {"trained": []}, "analyses": [{"use": "probe.power"}]}
    once = do(alone, tmp_path / "store")
    one = gausslens.open(once.path)["trained", "probe.power"]["value"]
    drawn = gausslens.open(ran.path)["chance", "probe.power"]["value"].sel(draw=2)
    np.testing.assert_array_equal(one, drawn.transpose(*one.dims))


def test_what_reads_no_prompts_is_left_out_and_told(ran: Any) -> None:
    labels = by_label(ran)
    assert "probe.norm/chance" not in labels
    assert "of_norm/chance" not in labels
    assert labels["probe.norm/other"] == labels["probe.norm/trained"]
    told = [note.partition(": ")[2] for note in ran.plan.notes if "left out" in note]
    why = "is left out on chance, whose draws differ in prompts alone: it"
    assert told == [f"probe.norm {why} does not read prompts", f"of_norm {why} reads what is left out there"]


def test_text_variants_are_nulls(ran: Any) -> None:
    compared = gausslens.open(ran.path)["trained", "probe.power.against.chance"]
    draws = gausslens.open(ran.path)["chance", "probe.power"]["value"]
    np.testing.assert_allclose(compared["value_null_mean"], draws.mean("draw"))
    assert (compared["value_null_sd"] > 0).any()


def test_a_second_run_finds_everything_and_another_seed_shuffles_anew(ran: Any) -> None:
    before = parts(ran.path)
    again = do(text_study(), ran.path)
    assert not again.outcome.computed
    assert parts(ran.path) == before
    another = do(text_study(seed=4), ran.path)
    assert {s.ref.variant for s in another.outcome.computed if not s.inputs} == {"chance"}


def test_an_analysis_prompts_win_over_a_whole_block_and_are_shuffled(tmp_path: Path) -> None:
    own = {"source": "lines", "lines": ["my own prompts here"]}
    whole = text_study(analyses=[{"use": "probe.power", "prompts": own}])
    *_, plan = prepare(whole, host=_host())
    read = {s.ref.variant: s.tokens.rendered for s in plan.steps if s.tokens}
    assert read["trained"] == read["other"] == ("my own prompts here",)
    assert read["chance"] != read["trained"]
    assert sorted(read["chance"][0]) == sorted(read["trained"][0])


def test_a_run_without_prompts_whose_variants_bring_theirs() -> None:
    bringing = {"prompts": {"source": "lines", "lines": ["one two"]}}
    whole = text_study(variants={"a": bringing, "b": bringing}, prompts=None, against=None)
    *_, plan = prepare(whole | {"analyses": [{"use": "probe.power"}]}, host=_host())
    assert [s.tokens.rendered for s in plan.steps if s.tokens] == [("one two",)] * 2
    with pytest.raises(RunFileErrors, match="runs the model and has no prompts"):
        prepare(
            whole | {"variants": {"a": bringing, "trained": []}, "analyses": [{"use": "probe.power"}]}, host=_host()
        )


def test_both_edits_and_prompts_of_a_variant_are_drawn() -> None:
    both = {"edits": [{"edit": "probe.redraw"}], "prompts": {"shuffle": "words"}, "draws": 3}
    *_, plan = prepare(text_study(variants={"trained": [], "chance": both}), host=_host())
    steps = [s for s in plan.steps if s.ref.variant == "chance" and s.ref.label == "probe.power"]
    assert len({s.ingredients["tokens"] for s in steps}) == len({str(s.ingredients["twin"]) for s in steps}) == 3
    assert sum(s.ref.label == "probe.norm" and s.ref.variant == "chance" for s in plan.steps) == 3


@pytest.mark.parametrize(
    ("lines", "shuffle", "said"),
    [
        (["aaaa"], {"shuffle": "tokens"}, "of chance, draw 0 are as before: they are too short"),
        (["aaaa"], {"shuffle": "documents", "segments": ["text"]}, "one prompt alone"),
        (["a b", "c d"], {"shuffle": "tokens", "segments": ["answer"]}, "no segment of these prompts is 'answer'"),
        (["a" + "b" * 60] * 3, {"shuffle": "words", "within": "all"}, "are as before"),
    ],
)
def test_refusals_name_the_line_and_the_draw(lines: list[str], shuffle: Any, said: str) -> None:
    variants = {"trained": [], "chance": {"prompts": shuffle, "draws": 4}}
    with pytest.raises(PlanError, match=said) as caught:
        prepare(text_study(prompts={"source": "lines", "lines": lines}, variants=variants), host=_host())
    assert str(caught.value).startswith("<dict>")


def test_draws_that_are_equal_are_told() -> None:
    variants = {"trained": [], "chance": {"prompts": {"shuffle": "documents", "segments": ["a"]}, "draws": 2}}
    whole = text_study(prompts={"source": "lines", "lines": ["ab"]}, variants=variants)
    whole["variants"]["chance"]["prompts"] = {"shuffle": "frequency"}
    whole["variants"]["chance"]["draws"] = 40
    # Of two tokens there are four texts by frequency, so that 40 draws hit the prompt itself.
    with pytest.raises(PlanError, match="are as before"):
        prepare(whole, host=_host())
    whole["prompts"]["lines"] = ["abcd"]
    whole["variants"]["chance"]["prompts"] = {"shuffle": "tokens"}
    whole["variants"]["chance"]["draws"] = 8
    whole["seed"] = next(seed for seed in range(100) if _repeats_itself("abcd", seed))
    *_, plan = prepare(whole, host=_host())
    assert any("equals another draw: take longer prompts" in note for note in plan.notes)


def _repeats_itself(line: str, seed: int) -> bool:
    """Whether two of eight draws are equal and none is the text itself."""
    shuffle, tokens = a_shuffle("tokens"), tokenised([[(line, "text")]])
    made = [shuffled(tokens, shuffle, shuffle_seed(shuffle, seed, draw)).rendered[0] for draw in range(8)]
    return line not in made and len(set(made)) < 8


def test_cells_of_other_segments_are_not_compared() -> None:
    def by_segment(names: list[str]) -> xr.Dataset:
        return xr.Dataset({"loss": ("segment", np.arange(2.0))}, coords={"segment": names})

    found = against(by_segment(["ask", "answer"]), [by_segment(["ask", "target"])] * 3)
    assert found.attrs["not_compared"] == "loss: the cells along segment are not those of draw 0 of the null"
    assert "loss_z" in against(by_segment(["ask", "answer"]), [by_segment(["ask", "answer"])] * 3)


def _host() -> Any:
    from test_run import host

    return host()


@pytest.fixture(autouse=True)
def _clear() -> None:
    probes.SEEN.clear()
