"""The plugin on a tiny model, and beside its null, of which it knows nothing."""

from __future__ import annotations

import numpy as np
import pytest
from gausslens_sinks import plugin
from gausslens_sinks.parameters import FirstTokenParameters
from gausslens_sinks.section import section

from gausslens import InputError, Part, Prompt, Twin
from gausslens.testing import TinyEngine, TinyModel, check_references, check_round_trip, check_stream


def test_everything_that_the_plugin_names_exists():
    assert "sinks.first-token" in check_references(plugin).analyses


def test_cutting_merging_and_blocks_of_rows_do_not_matter():
    result = check_stream(plugin.FIRST_TOKEN)
    assert result["mass"].dims == ("layer", "head")
    check_round_trip(result)


def test_it_is_the_mean_of_the_first_column_of_the_pattern():
    model, text = TinyModel(), "what a head attends to"
    ids = model.tokenise([Prompt((Part(text),))]).ids[0]
    patterns = TinyEngine().runner(Twin(model)).forward(ids[None], sites=("pattern",))
    found = check_stream(plugin.FIRST_TOKEN, FirstTokenParameters(after=5), model=model, texts=[text])
    for layer in (0, 1):
        rows = patterns[layer, "pattern"][0, :, 5:].double()
        np.testing.assert_allclose(found["mass"].sel(layer=layer), rows[..., 0].mean(-1), rtol=1e-6)
        leads = (rows.argmax(-1) == 0).double().mean(-1)
        np.testing.assert_allclose(found["share"].sel(layer=layer), leads)


def test_a_planted_sink_is_found():
    """Queries and keys that both read one direction, in which all tokens lie and the first lies most."""
    model, plain = TinyModel(), TinyModel()
    first = model.tensor(None, "W_E")[256] + model.tensor(None, "W_pos")[0]
    direction = first / first.norm()
    model.tensor(None, "W_E")[:] += 2 * direction
    for layer in model.info.layers:
        for name, size in (("W_Q", 1.0), ("W_K", 40.0)):
            tensor = model.tensor(layer, name).zero_()
            tensor[:, :, 0] = size * direction
    planted = check_stream(plugin.FIRST_TOKEN, model=model)["mass"].sel(layer=0)
    unplanted = check_stream(plugin.FIRST_TOKEN, model=plain)["mass"].sel(layer=0)
    assert float(planted.min()) > 2 * float(unplanted.max())


def test_prompts_that_are_too_short_are_said_to_be():
    with pytest.raises(InputError, match="give longer prompts"):
        check_stream(plugin.FIRST_TOKEN, FirstTokenParameters(after=200))


def test_a_run_gives_null_columns_and_figures(gausslens_run):
    study = {
        "prompts": {"source": "text", "text": ["A first prompt.", "And a second one."]},
        "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.config"}], "draws": 3}},
        "analyses": [{"use": "sinks.first-token"}],
        "against": "chance",
    }
    results = gausslens_run(study, "models", "reinit", sinks=plugin)
    beside = results.against("trained", "sinks.first-token")
    for name in ("mass", "share"):
        assert {f"{name}_null_mean", f"{name}_null_sd", f"{name}_z", f"{name}_p", f"{name}_q"} <= set(beside)
    assert [figure.sources[0].variant for figure in section(results)] == ["trained", "chance"]
