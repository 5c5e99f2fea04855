"""All mistakes of a file at once, each once, at its place, in words that say what to write."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from gausslens import Edit, Loader, Parameters, hookimpl, plugins
from gausslens.plugins.host import Host
from gausslens.runfile import Problem, RunFileErrors, read

HERE = Path(__file__).parent
Mistakes = Callable[..., list[Problem]]

# Line, path, and what is said, of every mistake in mistaken.yaml.
MISTAKES = [
    (2, "nmae", "unknown key; did you mean name?"),
    (3, "seed", "should be a whole number, is the text '0123'; write 123 (a leading zero makes it a text)"),
    (6, "model.dtype", "is the text 'float23'; did you mean float32"),
    (7, "model.device", "should be cpu, cuda, cuda:1, mps or xpu, is the text 'gpu'"),
    (8, "model.revison", "unknown key; did you mean revision?"),
    (8, "model.revison", 'should be a text, is 3; in quotes it is a text: "3"'),
    (11, "prompts.text[1]", 'should be a text, is 2; in quotes it is a text: "2"'),
    (12, "prompts.rôle", "unknown key; did you mean role?"),
    (14, "variants.trained", "should be a list of edits, is the text 'probe.scale'; write [{edit: probe.scale}]"),
    (15, "variants.all", "this name is kept for the results of a whole run"),
    (18, "variants.doubled[0].alpha", "should be a number, is the text 'two'"),
    (19, "variants.doubled[0].matrices[1]", "should be one of W_Q, W_K, W_V, is the text 'W_X'; did you mean"),
    (20, "variants.doubled[1].edit", "there is no edit 'probe.scald'; did you mean probe.scale"),
    (23, "variants.swept[0].sweep.alhpa", "there is no such parameter to sweep; did you mean alpha?"),
    (23, "variants.swept[0].sweep.alhpa[1]", "1 is swept twice; keep one"),
    (23, "variants.swept[0].sweep.centre", "a sweep needs at least one value"),
    (25, "variants.chance.edits[0].kep", "unknown key; did you mean keep?"),
    (
        25,
        "variants.chance.edits[0].kep",
        "should be one of nothing, moments, is the text 'moment'; did you mean moments?",
    ),
    (26, "variants.chance.draws", "should be a whole number or a table, is 1.0; write 1"),
    (27, "analysis", "unknown key; did you mean analyses?"),
    (30, "analysis[0].with.kepe", "unknown key; did you mean keep?"),
    (30, "analysis[0].with.kepe", "should be a whole number, is 3.5; the default is 8"),
    (31, "analysis[0].with.centred", "is the text 'yes'; write true (YAML 1.2 reads yes as text)"),
    (32, "analysis[0].with.window.strat", "unknown key; did you mean start?"),
    (32, "analysis[0].with.window.length", "should be at least 1, is 0"),
    (33, "analysis[0].with.by_segment.target.length", "missing: a whole number; how many positions"),
    (34, "analysis[0].with.range[1]", "missing from the list"),
    (35, "analysis[0].with.layer[1]", "should be a whole number, is the text 'a'"),
    (36, "analysis[0].with.region.shape", "should be one of ball, box, is the text 'cube'"),
    (37, "analysis[1].use", "the label 'probe.moments' is given to two analyses (line 28); name one of them"),
    (37, "analysis[1].layers", "should be a list, is 0; write [0]"),
    (37, "analysis[1].variants[1]", "there is no variant 'doubles'; did you mean doubled?"),
    (38, "analysis[2].prompts", "probe.norms reads weights and takes no prompts; leave them out"),
    (38, "analysis[2].heads[0]", "should be at least 0, is -1"),
    (39, "analysis[3]", "should be a table, is the text 'probe.norms'; write {use: probe.norms}"),
    (40, "against", "there is no variant 'chants'; did you mean chance?"),
    (41, "report", "should be true or false, is the text 'no'; write false (YAML 1.2 reads no as text)"),
]


def test_as_many_errors_as_mistakes(host: Host) -> None:
    with pytest.raises(RunFileErrors) as caught:
        read(HERE / "mistaken.yaml", host)
    found = [(p.mark.line, p.path, str(p)) for p in caught.value.problems]
    assert [f[:2] for f in found] == [t[:2] for t in MISTAKES]
    for (*_, told), (*_, said) in zip(found, MISTAKES, strict=True):
        assert said in told


def test_all_are_printed_with_a_head_line(host: Host) -> None:
    with pytest.raises(RunFileErrors) as caught:
        read(HERE / "mistaken.yaml", host)
    first, *lines = str(caught.value).splitlines()
    assert first == f"{len(MISTAKES)} mistakes in {HERE / 'mistaken.yaml'}"
    assert len(lines) == len(MISTAKES)
    assert all(line.startswith(f"{HERE / 'mistaken.yaml'}:") for line in lines)
    assert caught.value.code == 2


def test_more_than_a_screen_are_counted(mistakes: Mistakes, host: Host) -> None:
    problems = mistakes("".join(f"wrong{i}: 1\n" for i in range(60)))
    assert len(problems) == 60 + 3  # gausslens, model and analyses are missing
    lines = str(RunFileErrors("x", problems)).splitlines()
    assert len(lines) == 42
    assert lines[-1] == "... and 23 more"


BASE = "gausslens: 1\nmodel: {path: builtin:tiny}\nprompts: {source: text, text: [a]}\n"
NORMS = "analyses: [{use: probe.norms}]\n"


@pytest.mark.parametrize(
    ("parameters", "place", "said"),
    [
        ("range: [3, 1]", "with", "range: from is beyond to"),
        ("layer: x", "with.layer", "should be a whole number or a list, is the text 'x'"),
        ("region: {}", "with.region.shape", "missing: one of ball, box"),
        ("region: 3", "with.region", "should be a table, is 3"),
        ("region: {shape: box, sdies: [1, 2]}", "with.region.sdies", "unknown key; did you mean sides?"),
        ("region: {shaep: box}", "with.region.shaep", "unknown key; did you mean shape?"),
        ("region: {shape: box, sides: [1, 2, 3]}", "with.region.sides", "should have at most 2 items, has 3"),
        ("region: {shape: ball, radius: 0}", "with.region.radius", "should be more than 0, is 0; the default is 1.0"),
        ("by_layer: {a: 1}", "with.by_layer.a", "this key should be a whole number, is the text 'a'"),
        ("by_segment: {a: 1}", "with.by_segment.a", "should be a table, is 1"),
        ("windows: [{length: 1}, {}]", "with.windows[1].length", "missing: a whole number; how many positions"),
        ("windows: {length: 1}", "with.windows", "should be a list, is a table"),
        ("title: x", "with.title", "should have at least 2 characters"),
        ("title: 1.10", "with.title", 'should be a text, is 1.10; in quotes it is a text: "1.10"'),
        ("keep: '8'", "with.keep", "should be a whole number, is the text '8'; take the quotes away"),
        ("keep: 1_000", "with.keep", "write 1000 (numbers have no separators)"),
        ("keep: 1e1", "with.keep", "should be a whole number, is 1e1; write 10"),
        ("keep: null", "with.keep", "should be a whole number, is null; the default is 8"),
        ("centred: 'true'", "with.centred", "take the quotes away"),
        ("centred: off", "with.centred", "write false (YAML 1.2 reads off as text)"),
        ("tolerance: 007", "with.tolerance", "write 7 (a leading zero makes it a text)"),
        ("site: Q", "with.site", "should be one of resid_pre, q, k, v, is the text 'Q'; did you mean q?"),
        ("wholly_else: 1", "with.wholly_else", "unknown key; there are by_layer, by_segment, centred"),
    ],
)
def test_parameters_are_told_in_plain_words(parameters: str, place: str, said: str, mistakes: Mistakes) -> None:
    [problem] = mistakes(f"{BASE}analyses:\n- use: probe.moments\n  with: {{{parameters}}}")
    assert problem.path == f"analyses[0].{place}"
    assert problem.mark.line == 6
    assert said in str(problem)


@pytest.mark.parametrize(
    ("rest", "line", "said"),
    [
        ("analyses: [{use: gaussian.moment}]", 4, "there is no analysis 'gaussian.moment'; there are probe.absent"),
        (
            "analyses: [{use: probe.scale}]",
            4,
            "probe.scale is an edit: it belongs under variants: [{edit: probe.scale}]",
        ),
        ("analyses: [{use: few-shot}]", 4, "few-shot is a source: it belongs under prompts: {source: few-shot}"),
        (f"{NORMS}variants: {{a: {{edit: probe.redraw, draws: 2}}}}", 5, "write {edits: [{edit: ...}], draws: ...}"),
        ("analyses: []", 4, "analyses: should have at least 1 item, has 0"),
        ("analyses: [{use: probe.norms}]\nvariants: {}", 5, "variants: should have at least 1 item, has 0"),
        ("analyses: [{use: probe.norms}]\nvariants: {a: {edit: probe.redraw}}", 5, "is one edit alone; put it in [ ]"),
        (
            "analyses: [{use: probe.norms}]\nvariants: {a: {edits: [{edit: probe.scale, alpha: 2}], draws: 3}}",
            5,
            "no edit of this variant is random, so all draws would be equal; leave draws out, or add a random edit: "
            "probe.redraw",
        ),
        (
            f"{NORMS}variants:\n  t: []\n  a: {{edits: [{{edit: probe.redraw}}], draws: 1}}\nagainst: a",
            8,
            "a null has 2 draws or more, and the variant a (line 7) has one draw; write `a: {edits: [...], draws: 8}`",
        ),
        (
            "analyses: [{use: probe.norms}]\nvariants:\n  a: {edits: [{edit: probe.redraw}], draws: 4}\nagainst: a",
            7,
            "there is no variant to compare with a; add the model itself to variants, as `trained: []`",
        ),
        (
            "analyses: [{use: probe.norms}]\nvariants:\n  t: []\n"
            "  a: {edits: [{edit: probe.redraw, sweep: {keep: [nothing, moments]}}], draws: 4}\nagainst: [a]",
            8,
            "a null sweeps nothing but models, and the variant a (line 7) sweeps",
        ),
        (
            "analyses: [{use: probe.norms}]\nvariants:\n  a:\n  - {edit: probe.scale, sweep: {alpha: [2, 3]}}\n"
            "  - {edit: probe.scale, sweep: {alpha: [4]}}",
            8,
            "alpha is swept twice in this variant, first on line 7",
        ),
        (
            "analyses: [{use: probe.norms, heads: []}]",
            4,
            "should have at least 1 item, has 0",
        ),
        (
            f"{NORMS}variants:\n  a: {{edits: [{{edit: probe.scale, alpha: 2, layers: []}}]}}",
            6,
            "should have at least 1 item, has 0",
        ),
        (
            f"{NORMS}variants:\n  a:\n  - {{edit: probe.scale, sweep: {{alpha: [1, 2], centre: [2, 3]}}}}",
            7,
            "variants.a[0]: alpha and centre are equal: nothing would change (at alpha 2, centre 2)",
        ),
        (
            "analyses: [{use: probe.raising, with: {how: exit}}]",
            4,
            "the parameters of probe.raising (plugin probe of (given)) cannot be checked: SystemExit: 3",
        ),
        (
            "analyses: [{use: probe.absent}]",
            4,
            "cannot be imported: ModuleNotFoundError: No module named 'runfile_probes_absent'; its plugin is at fault; "
            "--without probe leaves it out",
        ),
    ],
)
def test_mistakes_between_parts(rest: str, line: int, said: str, mistakes: Mistakes) -> None:
    [problem] = mistakes(BASE + rest)
    assert problem.mark.line == line
    assert said in str(problem)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("builtin:absent", "no loader claims 'builtin:absent'; asked: files, tiny"),
        ("hub:tiny", "'hub:tiny' is no model of the hub; write hub:OWNER/NAME@REVISION"),
        ("owner/name", "a model of the hub is hub:owner/name"),
        ("./weihgts", "did you mean weights?"),
        ("weights/unclaimed", "no loader claims"),
        ("live:Tiny", "a live model is passed from Python; gausslens.run(..., model=...)"),
        ("''", "should have at least 1 character"),
        ("x" * 3000, "there is no directory"),
        ("~absent/x", "there is no directory"),
    ],
)
def test_paths_of_models(path: str, said: str, mistakes: Mistakes, tmp_path: Path) -> None:
    (tmp_path / "weights" / "unclaimed").mkdir(parents=True)
    [problem] = mistakes(f"gausslens: 1\nmodel: {{path: {path}}}\nanalyses: [{{use: probe.norms}}]")
    assert (problem.path, problem.mark.line) == ("model.path", 2)
    assert said in str(problem)


def test_a_path_alone_is_no_model(mistakes: Mistakes) -> None:
    problems = mistakes("gausslens: 1\nmodel: ./weights\nprompts: text\nanalyses: [{use: probe.norms}]")
    assert [p.suggestion for p in problems] == ["write {path: ./weights}", "write {source: text}"]


def test_prompts_are_asked_for_where_there_are_none(mistakes: Mistakes) -> None:
    problems = mistakes(
        "gausslens: 1\nmodel: {path: builtin:tiny}\nanalyses:\n- use: probe.moments\n- use: probe.replace\n"
        "- use: probe.wrong-prompts\n- use: probe.norms\n"
    )
    assert [p.mark.line for p in problems] == [4, 6]
    assert "runs the model and has no prompts" in str(problems[0])
    assert "prompts that probe.wrong-prompts brings are wrong (prompts.txet: unknown key); plugin probe" in str(
        problems[1]
    )


def test_a_plugin_set_aside_is_named_with_its_cause(mistakes: Mistakes, tmp_path: Path) -> None:
    class Broken:
        """Would provide spectrum.scale."""

        def __init__(self) -> None:
            raise ImportError("no module named spectra")

    with_broken = plugins.load(only=(), extra={"spectrum": Broken})
    path = tmp_path / "run.yaml"
    path.write_text("gausslens: 1\nmodel: {path: builtin:tiny}\nanalyses:\n- use: spectrum.scale\n- use: other.scale\n")
    with pytest.raises(RunFileErrors) as caught:
        read(path, with_broken)
    told = str(caught.value)
    assert (
        "plugin spectrum of (given) would provide it, but was set aside: ImportError: no module named spectra" in told
    )
    assert "there is no analysis 'other.scale'; set aside: spectrum" in told
    assert "no loader claims 'builtin:tiny'; asked: none; plugins set aside or left out: spectrum" in told


def test_a_plugin_left_out_is_named(tmp_path: Path) -> None:
    without = plugins.load(only=("models",), without=("gaussian",))
    path = tmp_path / "run.yaml"
    path.write_text("gausslens: 1\nmodel: {path: builtin:absent}\nanalyses: [{use: gaussian.moments}]\n")
    with pytest.raises(RunFileErrors, match="plugin gaussian was left out, by --without or GAUSSLENS_WITHOUT"):
        read(path, without)


def test_a_dict_is_told_as_well(mistakes: Mistakes) -> None:
    problems = mistakes(
        {
            "model": {"path": "builtin:tiny", "dtpye": "float32"},
            "seed": float("nan"),
            3: 4,
            "analyses": [{"use": "probe.norms", "layers": (0, -1)}, {"use": object()}],
        }  # type: ignore[dict-item]
    )
    assert all(str(p.mark) == "<dict>" for p in problems)
    assert sorted(p.path for p in problems) == ["3", "analyses[0].layers[1]", "analyses[1].use", "model.dtpye", "seed"]


def test_an_alias_is_told_once(mistakes: Mistakes) -> None:
    problems = mistakes(
        f"{BASE}analyses:\n- {{use: probe.moments, with: &a {{window: {{length: 0}}}}}}\n"
        "- {use: probe.moments, as: again, with: *a}\n"
    )
    assert [(p.mark.line, p.path) for p in problems] == [(5, "analyses[0].with.window.length")]


class Hiding(Parameters):
    """A parameter that an edit cannot have: `heads` is the host's."""

    heads: int = 0


def test_plugins_that_cannot_be_used_are_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless:
        @hookimpl
        def loaders(self) -> list[Loader]:
            reference = "hiding:claims"
            return [Loader(name="careless", version=1, summary="Raises.", claims=reference, open=reference)]

        @hookimpl
        def edits(self) -> list[Edit]:
            reference = "hiding:Hiding"
            return [Edit(name="careless.hide", version=1, summary="Hides.", edit=reference, touches=("W_Q",),
                         parameters=reference)]  # fmt: skip

    def claims(path: str) -> bool:
        raise RuntimeError("the disk is elsewhere")

    module = ModuleType("hiding")
    module.Hiding, module.claims = Hiding, claims  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hiding", module)
    careless = plugins.load(only=(), extra={"careless": Careless})
    with pytest.raises(RunFileErrors) as caught:
        read({"model": {"path": tmp_path}, "variants": {"a": [{"edit": "careless.hide"}]}, "analyses": [{}]}, careless)
    told = str(caught.value)
    assert "the parameter 'heads' of careless.hide (plugin careless of (given)) cannot be given" in told
    assert "the loader careless (plugin careless of (given)) cannot say whether it opens this: RuntimeError" in told
    assert "--without careless leaves it out" in told
    assert "analyses[0].use: missing: a text; which analysis" in told


def test_swept_lists_are_told_each(mistakes: Mistakes) -> None:
    found = mistakes(BASE + f"{NORMS}variants:\n  a:\n  - {{edit: probe.scale, sweep: {{alpha: [[1], [2]]}}}}")
    said = [p for p in found if "a swept value is a number, a text, true or false; this is a list" in str(p)]
    assert len(said) == 2


@pytest.mark.parametrize(
    ("given", "path", "said"),
    [
        ("tokens", "", "should be a table, is the text 'tokens'"),
        ("{shufle: tokens}", ".shufle", "unknown key; did you mean shuffle?"),
        ("{shuffle: token}", ".shuffle", "should be one of tokens, words, documents, frequency, is the text 'token'"),
        ("{shuffle: tokens, withn: all}", ".withn", "unknown key; did you mean within?"),
        ("{shuffle: words, within: word}", ".within", "should be one of segment, prompt, all"),
        ("{shuffle: tokens, segments: answer}", ".segments", "should be a list, is the text 'answer'; write [answer]"),
        ("{shuffle: documents}", ".shuffle", "say which segments are swapped; add segments, as `segments: [answer]`"),
        (
            "{shuffle: documents, segments: [answer], within: all}",
            ".within",
            "documents are swapped between prompts, not within them; leave it out",
        ),
        ("{source: text, text: [a], shuffle: tokens}", ".shuffle", "keep one; to shuffle other prompts, give them to"),
        ("{source: txt, text: [a]}", ".source", "there is no source 'txt'; did you mean text"),
        ("{text: [a]}", ".source", "missing"),
    ],
)
def test_prompts_of_a_variant(mistakes: Mistakes, given: str, path: str, said: str) -> None:
    """Each mistake once, on the line of the variant, and nothing beside it about draws."""
    whole = f"""gausslens: 1
model: {{path: builtin:tiny}}
prompts: {{source: text, text: [One two]}}
variants:
  trained: []
  shuffled: {{prompts: {given}, draws: 8}}
analyses: [{{use: probe.moments}}]
against: shuffled
"""
    (problem,) = mistakes(whole)
    assert (problem.mark.line, problem.path) == (6, f"variants.shuffled.prompts{path}")
    assert said in str(problem)


def test_draws_of_other_prompts_would_be_equal(mistakes: Mistakes) -> None:
    whole = """gausslens: 1
model: {path: builtin:tiny}
variants:
  other: {prompts: {source: text, text: [One two]}, draws: 8}
analyses: [{use: probe.moments}]
"""
    (problem,) = mistakes(whole)
    assert (problem.mark.line, problem.path) == (4, "variants.other.draws")
    assert "all draws would be equal; leave draws out" in str(problem)
    assert "shuffle its prompts: `prompts: {shuffle: tokens}`" in str(problem)


def test_a_parameter_beside_with_is_told_where_it_belongs(mistakes: Mistakes) -> None:
    found = mistakes("gausslens: 1\nmodel: {path: .}\nanalyses: [{use: probe.moments, keep: 3}]\n")
    assert [(p.message, p.suggestion) for p in found if p.path == "analyses[0].keep"] == [
        ("is a parameter of probe.moments", "write it within `with`, as `with: {keep: ...}`")
    ]


def test_of_a_list_whose_items_are_wrong_only_the_items_are_told(mistakes: Mistakes) -> None:
    edit = {"edit": "probe.scale", "alpha": 1.0, "matrices": ["W_X"]}
    found = mistakes({"gausslens": 1, "model": {"path": "."}, "variants": {"cut": [edit]}})
    assert [p.path for p in found if "matrices" in p.path] == ["variants.cut[0].matrices[0]"]
