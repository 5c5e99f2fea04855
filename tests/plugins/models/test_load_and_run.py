"""gausslens.load(...).run: what a pass computes of prompts, as a dataset in which tokens have their text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_stacks import pairs_of

import gausslens
from gausslens import InputError, ModelError, Prompt, Twin

TEXTS = ["The cat sat on the mat", "Ant"]


@pytest.fixture(scope="module")
def model() -> Any:
    """Grouped heads; a token for each byte."""
    return gausslens.load("builtin:tiny")


def test_every_site_is_what_a_runner_gives_of_each_prompt(model: Any) -> None:
    opened = model._opened
    sites = opened.running.sites(opened.model)
    found, tokens = model.run(TEXTS, sites), model.tokenise(TEXTS)
    assert set(found.data_vars) == set(sites)
    runner = opened.running.runner(Twin(opened.model))
    for prompt, ids in enumerate(tokens.ids):
        told = runner.forward(ids[None], sites=sites)
        for name in sites:
            row = gausslens.site(name)
            ours = found[name].isel(prompt=prompt)
            assert ours.dims == (() if row.whole else ("layer",)) + row.dims[1:]
            beyond = {dim: slice(len(ids), None) for dim in ("position", "query", "key") if dim in ours.dims}
            assert all(bool(ours.isel({dim: cut}).isnull().all()) for dim, cut in beyond.items())
            there = ours.isel({dim: slice(len(ids)) for dim in beyond})
            theirs = told[name][0] if row.whole else torch.stack([told[n, name][0] for n in model.info.layers])
            finite = np.isfinite(theirs.numpy()) & (theirs.numpy() > -1e30)  # scores of what is not seen
            np.testing.assert_allclose(there.values[finite], theirs.numpy()[finite], rtol=0, atol=2e-5, err_msg=name)


def test_tokens_have_their_text_along_every_axis_of_tokens(model: Any) -> None:
    found, tokens = model.run(TEXTS, ("pattern", "v")), model.tokenise(TEXTS)
    for dim, text in (("position", "piece"), ("query", "query_piece"), ("key", "key_piece")):
        assert found[text].dims == ("prompt", dim)
        for prompt, pieces in enumerate(tokens.pieces):
            assert tuple(found[text].values[prompt, : len(pieces)]) == pieces
            assert not "".join(found[text].values[prompt, len(pieces) :])
    assert list(found.length) == list(tokens.lengths)
    assert list(found.kv_head) == list(model.info.kv_heads)
    seen = found.pattern.sel(prompt=0, layer=1, head=2).swap_dims(key="key_piece").sel(key_piece="c")
    assert seen.sizes["query"] == max(tokens.lengths)


def test_attention_is_drawn_beside_its_tokens_and_an_intervention_by_its_effect(model: Any) -> None:
    found = model.run(TEXTS, "pattern")
    drawn = gausslens.draw(found)
    assert [each.figure.title for each in drawn] == ["pattern, 0", "pattern, 1"]
    assert list(drawn[1].figure.queries) == list(model.tokenise(TEXTS).pieces[1])  # type: ignore[attr-defined]
    shown = drawn[1].plot(layer=1, head=2).axes[0].images[0].get_array()
    there = found.pattern.sel(prompt=1, layer=1, head=2).values[: shown.shape[0], : shown.shape[1]]
    np.testing.assert_array_equal(shown, there)

    change = gausslens.Intervention("z", layer=1, function=lambda z, _where: 0 * z)
    loss, following = model.effect("The cat", [change], most=3)
    pair = [model.run("The cat", "logits", interventions=each).logits.values[0] for each in ((), [change])]
    logs = [torch.log_softmax(torch.tensor(each, dtype=torch.float64), -1).numpy() for each in pair]
    ids = model.tokenise("The cat").ids[0]
    for line, log in zip(loss.figure.series, logs, strict=True):
        np.testing.assert_allclose(line.y, [-log[at, token] for at, token in enumerate(ids[1:])], rtol=1e-9)
    change_of_all = np.abs(np.exp(logs[1][-1]) - np.exp(logs[0][-1]))
    moved = np.abs(np.diff(np.asarray(following.figure.values), axis=1))[:, 0]
    np.testing.assert_allclose(np.sort(moved), np.sort(change_of_all)[-3:], rtol=1e-9)


def test_a_plain_text_a_prompt_and_tokens_are_the_same(model: Any) -> None:
    one = model.run("Ant", "z")
    for prompts in (["Ant"], Prompt((gausslens.Part("Ant"),)), model.tokens("Ant"), iter(["Ant"])):
        assert one.equals(model.run(prompts, ["z"]))


def test_layers_and_heads_narrow_it(model: Any) -> None:
    whole = model.run(TEXTS, ("pattern", "k", "resid_post"))
    for how in (None, ()):
        some = model.run(TEXTS, ("pattern", "k", "resid_post"), layers=[2, 0], heads=[3], interventions=how)
        assert tuple(list(some[dim].values) for dim in ("layer", "head", "kv_head")) == ([0, 2], [3], [1])
        for name in some:
            cut = {dim: some[dim] for dim in ("layer", "head", "kv_head") if dim in some[name].dims}
            np.testing.assert_allclose(some[name], whole[name].sel(cut), rtol=0, atol=2e-5)


def test_of_an_intervention_nothing_is_compared_with_what_was_computed_otherwise(model: Any) -> None:
    """With interventions, be they none, all is as a runner computes it, to the bit."""
    runner = model._opened.running.runner(Twin(model._opened.model))
    ids = model.tokenise("Ant").ids[0]
    found = model.run("Ant", "logits", interventions=()).logits.values
    assert np.array_equal(found[0], runner.forward(ids[None])["logits"][0])


def test_interventions_act_on_the_way(model: Any) -> None:
    def nothing(tensor: torch.Tensor, _where: Any) -> torch.Tensor:
        return torch.zeros_like(tensor)

    change = gausslens.Intervention("z", 1, nothing, heads=(2,), positions=(3,))
    plain, changed = (
        model.run(TEXTS[0], ("z", "attn_out", "resid_post"), interventions=each) for each in ((), [change])
    )
    ablated = changed.z.sel(layer=1, head=2, position=3)
    assert not ablated.values.any()
    assert plain.z.sel(layer=1, head=2, position=3).values.any()
    moved = abs(changed.resid_post - plain.resid_post).max("d_model").isel(prompt=0)
    assert not moved.sel(layer=0).values.any()
    assert not moved.sel(layer=1).isel(position=slice(3)).values.any()
    assert float(moved.sel(layer=1, position=3)) > 1e-3
    wanted = plain.z.sel(layer=1, head=2, position=3).values[0] @ model.weights(1).W_O[2].numpy()
    gone = (plain.attn_out - changed.attn_out).sel(layer=1, position=3).values[0]
    np.testing.assert_allclose(gone, wanted, rtol=0, atol=1e-5)


def test_the_page_s_snippet_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    section = page[page.index("## In a notebook") :]
    snippet = section[section.index("```python\n") + 10 :]
    names: dict[str, Any] = {}
    exec(compile(snippet[: snippet.index("\n```")], "docs/models.md", "exec"), names)
    assert names["found"].resid_post.dims == ("layer", "prompt", "position", "d_model")
    assert float(abs(names["ablated"].logits - names["plain"].logits).max()) > 1e-3


def test_more_than_there_is_room_for_is_refused_before_it_is_computed(model: Any) -> None:
    with pytest.raises(InputError, match=r"MB of activations \(pattern: .* in 3 layers, for 2 prompts .*limit="):
        model.run(TEXTS, ("pattern", "resid_post"), limit=10_000)
    needed = 4 * 3 * 2 * 4 * 23**2
    assert model.run(TEXTS, "pattern", limit=needed).pattern.nbytes == needed
    with pytest.raises(InputError, match="name fewer"):  # all layers of a prompt at once
        model.run(TEXTS, "pattern", limit=needed, interventions=())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"sites": "resid_past"}, "no site 'resid_past': did you mean resid_post"),
        ({"sites": ()}, "names none of"),
        ({"prompts": []}, "no tokens"),
        ({"prompts": [[1, 2]]}, r"not list; of token numbers it is Prompt\(ids="),
        ({"prompts": "a" * 5000}, "takes"),
        ({"layers": [9]}, "no layer 9"),
        ({"heads": [9]}, "no head 9"),
    ],
)
def test_what_cannot_be_run_is_said(how: dict[str, Any], said: str, model: Any) -> None:
    with pytest.raises((InputError, ModelError), match=said):
        model.run(**{"prompts": "Ant", **how})


def test_weights_are_shown_as_a_table(model: Any) -> None:
    shown = model.weights(1)._repr_html_()
    assert "tensors of layer 1 of" in shown
    shape = " \u00d7 ".join(map(str, model.weights(1).W_Q.shape))
    assert f"<td>W_Q</td><td>{shape}</td><td>float32</td>" in shown


def test_weights_alone_are_not_run(directory: Any) -> None:
    with pytest.raises(ModelError, match="no engine runs models of this loader"):
        gausslens.load(directory("llama"), loader="weights").run([Prompt(ids=(1, 2))])


def test_keys_of_another_stack_have_their_own_text(open_stack: Any) -> None:
    opened = open_stack("t5", "cross")
    model = gausslens.load(opened.spec.path, stack="cross")
    tokens = pairs_of(model)
    for how in (None, ()):
        found = model.run(tokens, ("pattern", "q", "k"), interventions=how)
        assert found.k.dims == ("layer", "prompt", "key", "kv_head", "d_head")
        assert found.sizes["key"] == max(tokens.keys.lengths)
        assert "".join(found.key_piece.values[0]) == "".join(tokens.keys.pieces[0])
        rows = found.pattern.sum("key", skipna=True, min_count=1).isel(prompt=0)
        np.testing.assert_allclose(rows.isel(query=slice(tokens.lengths[0])), 1.0, rtol=0, atol=1e-5)


def test_a_function_is_told_which_prompt_it_acts_on(model: Any) -> None:
    tokens = model.tokenise(["abcd", "efgh", "ijkl"])
    clean = torch.from_numpy(model.run(["mnop", "qrst", "uvwx"], "z", layers=[1], interventions=()).z.values[0])
    told = []

    def put(tensor: torch.Tensor, where: gausslens.Where) -> torch.Tensor:
        told.append(where.prompts)
        return clean[list(where.prompts)]

    # As a generator, which can be read once.
    found = model.run(tokens, "z", interventions=(gausslens.Intervention("z", 1, put) for _ in range(1)))
    assert told == [(0,), (1,), (2,)]
    np.testing.assert_array_equal(found.z.sel(layer=1).values, clean.numpy())


def test_what_cannot_be_named_is_refused_in_a_line(model: Any) -> None:
    for prompts, said in (
        (3, "and not int"),
        (None, "and not NoneType"),
        (b"Ant", "and not bytes"),
        (Prompt(ids=(1, 99_999)), "has no token 99999: it has 0 to 257"),
        (Prompt(ids=(1, -1)), "has no token -1"),
    ):
        with pytest.raises(InputError, match=said):
            model.run(prompts, "z")
    with pytest.raises(ModelError, match=r"layers= are whole numbers in a list, as \[0, 3\]"):
        model.run("Ant", "z", layers=2)
    assert list(model.run("Ant", "z", heads=np.array([1, 3]), layers=range(1))["head"]) == [1, 3]
    with pytest.raises(ModelError, match="in brackets"):
        model.run("Ant", "z", interventions=gausslens.Intervention("z", 1, lambda tensor, where: tensor))
