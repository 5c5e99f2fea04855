"""Through the host: raw capture into a store, and the command that tells what a model is."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gausslens
from gausslens import SITES, Context, ModelError, ModelSpec, Part, Prompt, Request, Tokens, Twin
from gausslens.__main__ import main
from gausslens.maths.rotary import Rotation
from gausslens.runs.requests import check_request
from gausslens_models.analyses.capture import RawCapture, estimate
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.families.table import LLAMA
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.parameters import CaptureParameters, TransformersParameters

Directory = Callable[[str], Path]
TEXTS = ["The ant sees the bee.", "abcabc", "The owl warns the yak by the lake."]


def study(path: str, *sites: str, **more: Any) -> dict[str, Any]:
    analysis = {"use": "model.capture", "with": {"sites": list(sites)}} | more
    return {
        "gausslens": 1,
        "name": "raw",
        "model": {"path": path},
        "prompts": {"source": "text", "text": TEXTS},
        "analyses": [analysis],
        "report": False,
    }


def test_what_is_stored_is_what_was_captured(tmp_path: Path) -> None:
    sites = SITES
    results = gausslens.run(study("builtin:tiny", *sites), store=tmp_path)
    found = results["trained", "model.capture"]
    model = open_pretrained_tiny()
    tokens = model.tokenise([Prompt((Part(text),)) for text in TEXTS])
    seen: dict[Any, Any] = {}

    def sink(batch: Any) -> None:
        for row, prompt in enumerate(batch.prompts):
            for site in batch.arrays:
                seen[site, batch.layer, int(prompt)] = batch.numpy(site)[row]

    for shard in tokens.shards():
        TransformersEngine().run(Twin(model), tokens, shard, Request(sites), sink)
    assert found["length"].values.tolist() == list(tokens.lengths)
    for (site, layer, prompt), expected in seen.items():
        n = tokens.lengths[prompt]
        stored = found[site].isel(prompt=prompt)
        stored = (stored if layer is None else stored.isel(layer=layer)).values
        if site in ("scores", "pattern"):
            np.testing.assert_array_equal(stored[:, :n, :n], expected[:, :n, :n], err_msg=site)
            assert np.isnan(stored[:, n:]).all()
        else:
            np.testing.assert_array_equal(stored[:n], expected[:n], err_msg=site)
            assert np.isnan(stored[n:]).all()
    assert {str(d) for d in found["q"].dims} == {"layer", "prompt", "position", "head", "d_head"}


def open_pretrained_tiny() -> PretrainedModel:
    from gausslens_models.loading.config_and_tokenizer import DIRECTORY

    return open_pretrained(ModelSpec(str(DIRECTORY / "tiny"), TransformersParameters()))


def test_layers_and_heads_in_view(tmp_path: Path) -> None:
    results = gausslens.run(study("builtin:tiny", "z", "v", layers=[1], heads=[2, 3]), store=tmp_path)
    found = results["trained", "model.capture"]
    assert dict(found["z"].sizes) == {"layer": 1, "prompt": 3, "position": 35, "head": 2, "d_head": 16}
    assert found["v"].sizes["kv_head"] == 1
    assert found["layer"].values.tolist() == [1]


def test_layers_that_lack_a_site_are_left_out_and_named(directory: Callable[[str], Path], tmp_path: Path) -> None:
    whole = study(str(directory("lfm2")), "pattern", "resid_pre")
    whole["prompts"] = {"source": "tokens", "ids": [[3, 4, 5, 6], [7, 8, 9]]}
    found = gausslens.run(whole, store=tmp_path)["trained", "model.capture"]
    assert found["layer"].values.tolist() == [1]
    assert "short convolution" in found.attrs["skipped_layer_0"]
    assert "skipped_layer_1" not in found.attrs
    for site in ("pattern", "resid_pre"):
        assert np.isfinite(found[site].isel(prompt=0)).all()
    whole["analyses"][0]["with"]["sites"] = ["resid_pre"]
    found = gausslens.run(whole, store=tmp_path / "other")["trained", "model.capture"]
    assert found["layer"].values.tolist() == [0, 1, 2]
    assert np.isfinite(found["resid_pre"].isel(prompt=0)).all()


def test_the_cap_is_told_before_anything_runs(tmp_path: Path) -> None:
    whole = study("builtin:tiny", "pattern")
    whole["analyses"][0]["with"]["most_gigabytes"] = 1e-6
    with pytest.raises(gausslens.GausslensError, match=r"most_gigabytes: 1e-06.*fewer layers") as told:
        gausslens.run(whole, store=tmp_path)
    # 3 layers, 4 heads, prompts of 22, 7 and 35 tokens squared, 4 bytes
    assert "would write 84.38 kB, more" in str(told.value)


def test_the_estimate_is_what_is_written(tmp_path: Path) -> None:
    sites = ["resid_pre", "pattern", "mlp_pre", "k", "logits"]
    model = open_pretrained_tiny()
    tokens = model.tokenise([Prompt((Part(text),)) for text in TEXTS])
    told = estimate(CaptureParameters(sites=sites), model.info, tokens).disk
    found = gausslens.run(study("builtin:tiny", *sites), store=tmp_path)["trained", "model.capture"]
    # Patterns would more than double if they were filled up to the longest prompt.
    kept = {site: int(found[site].notnull().sum()) if site == "pattern" else found[site].size for site in sites}
    assert told == sum(4 * count for count in kept.values())


@pytest.mark.parametrize(
    "name",
    ["gpt2", "lfm2", "bert", "mixtral", "jamba", "gptj", "bloom", "mpnet", "deepseek_v3", "albert", "qwen3_next"],
)
def test_of_any_site_there_is_an_estimate_and_a_plan_or_a_refusal(
    name: str, opened: Callable[[str], PretrainedModel], prompts: Tokens
) -> None:
    model = opened(name)
    for sites in [*((s,) for s in SITES), *combinations(("q", "v", "q_rot", "mlp_pre", "resid_mid", "logits"), 2)]:
        parameters = CaptureParameters(sites=list(sites))
        context = Context(model.info, 0, prompts)
        reasons = [{s for s in sites if s in model.info.lacking.get(n, {})} for n in model.info.layers]
        served = set(sites) <= set(model.sites) and (set(sites) <= {"embed", "logits"} or not all(reasons))
        assert estimate(parameters, model.info, prompts).disk >= 0
        if served:
            check_request(RawCapture(parameters, context), TransformersEngine(), model)
            assert estimate(parameters, model.info, prompts).disk > 0
        else:
            with pytest.raises(ModelError, match=f"{model.info.name} has (no site|.* together)"):
                check_request(RawCapture(parameters, context), TransformersEngine(), model)


def test_a_site_that_no_layer_has_is_refused_with_the_layers_reason(directory: Directory, tmp_path: Path) -> None:
    for name, sites, told in (
        ("gpt2", ("q_rot",), r"gpt2\S* has no site 'q_rot' \(position is not applied.*its sites: embed, resid_pre"),
        ("gptj", ("resid_mid",), r"no site 'resid_mid' \(attention and MLP read the same stream"),
        ("jamba", ("q", "mlp_pre"), r"has q and mlp_pre together \(.*in analyses of their own"),
    ):
        whole = study(str(directory(name)), *sites) | {"prompts": {"source": "tokens", "ids": [[3, 4, 5, 6]]}}
        with pytest.raises(gausslens.GausslensError, match=told):
            gausslens.run(whole, store=tmp_path)


def test_values_of_another_width_have_a_dimension_of_their_own(directory: Directory, tmp_path: Path) -> None:
    """In latent attention values are narrower than queries: both can be had in one capture."""
    sites = ("q", "v", "q_rot", "z")
    whole = study(str(directory("deepseek_v3")), *sites) | {"prompts": {"source": "tokens", "ids": [[3, 4, 5, 6]]}}
    found = gausslens.run(whole, store=tmp_path)["trained", "model.capture"]
    assert [found[s].dims[-1] for s in sites] == ["d_head", "d_value", "d_head", "d_value"]
    assert (found.sizes["d_head"], found.sizes["d_value"]) == (10, 5)
    model = open_pretrained(ModelSpec(str(directory("deepseek_v3")), TransformersParameters()))
    seen = TransformersEngine().runner(Twin(model)).forward(np.array([[3, 4, 5, 6]]), sites=sites)
    for layer in model.info.layers:
        for site in sites:
            np.testing.assert_allclose(found[site].sel(layer=layer)[0], seen[layer, site][0], atol=2e-5)


@pytest.mark.parametrize(("dtype", "digits", "size"), [("float16", 2**-11, 2), ("bfloat16", 2**-8, 2)])
def test_two_byte_types_on_request(tmp_path: Path, dtype: str, digits: float, size: int) -> None:
    whole = study("builtin:tiny", "resid_pre", "pattern")
    exact = gausslens.run(whole, store=tmp_path / "exact")["trained", "model.capture"]
    whole["analyses"][0]["with"]["dtype"] = dtype
    found = gausslens.run(whole, store=tmp_path / "short")["trained", "model.capture"]
    for site in ("resid_pre", "pattern"):
        np.testing.assert_allclose(found[site].values.astype("f8"), exact[site], rtol=digits, atol=2**-24)
    model = open_pretrained_tiny()
    tokens = model.tokenise([Prompt((Part(text),)) for text in TEXTS])
    parameters = CaptureParameters.model_validate(whole["analyses"][0]["with"])
    told = estimate(parameters, model.info, tokens).disk
    assert told == size * (found["resid_pre"].size + int(found["pattern"].notnull().sum()))
    part = next((tmp_path / "short/parts/model.capture").glob("*.h5"))
    assert told < part.stat().st_size < told + 40_000


def test_a_site_named_twice_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(gausslens.InputError, match="resid_pre is named twice"):
        gausslens.run(study("builtin:tiny", "resid_pre", "pattern", "resid_pre"), store=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_misspelt_site_is_told_with_near_names(tmp_path: Path) -> None:
    with pytest.raises(gausslens.InputError, match="resid_pre"):
        gausslens.run(study("builtin:tiny", "resid_prae"), store=tmp_path)
    with pytest.raises(gausslens.InputError, match="'scores'"):
        gausslens.run(study("builtin:tiny", "blocks.0.attn.hook_attn_scores"), store=tmp_path)


def test_both_engines_through_the_host(directory: Callable[[str], Path], tmp_path: Path) -> None:
    whole = study(str(directory("qwen2")), "pattern", "resid_post", "v")
    whole["prompts"] = {"source": "tokens", "ids": [[3, 4, 5, 6], [7, 8, 9]]}
    one = gausslens.run(whole, store=tmp_path)["trained", "model.capture"]
    whole["model"]["loader"] = "transformer-lens"
    other = gausslens.run(whole, store=tmp_path / "other")["trained", "model.capture"]
    for site in ("pattern", "resid_post", "v"):
        np.testing.assert_allclose(one[site].values, other[site].values, atol=1e-5)


def test_blocks_of_rows_are_not_counted_twice(tmp_path: Path) -> None:
    """A long prompt comes in blocks of query rows where all who want patterns take blocks; moments see it once."""
    whole = study("builtin:tiny", "pattern", layers=[1])
    whole["prompts"] = {"source": "repeated-random", "prompts": 1, "length": 300, "repeats": 1}
    moments = {"use": "gaussian.moments", "with": {"site": "resid_pre"}}
    alone = gausslens.run(whole | {"analyses": [moments]}, store=tmp_path / "alone")
    together = gausslens.run(whole | {"analyses": [moments, *whole["analyses"]]}, store=tmp_path / "together")
    one, other = (store["trained", "gaussian.moments"] for store in (alone, together))
    assert one.identical(other)
    pattern = together["trained", "model.capture"]["pattern"].isel(layer=0, prompt=0)
    assert pattern.sizes["query"] > 256
    np.testing.assert_allclose(pattern.sum("key"), 1, atol=1e-5)


def test_weights_alone_run_no_prompts(directory: Callable[[str], Path], tmp_path: Path) -> None:
    whole = study(str(directory("llama")), "z")
    whole["model"]["loader"] = "weights"
    with pytest.raises(gausslens.InputError, match="no capture engine serves the loader 'weights'"):
        gausslens.run(whole, store=tmp_path)


def test_a_live_model_through_the_host(
    opened: Callable[[str], PretrainedModel], prompts: Tokens, tmp_path: Path
) -> None:
    module = opened("gemma2").module
    whole = study("", "z")
    whole["prompts"] = {"source": "tokens", "ids": [[3, 4, 5, 6], [7, 8, 9]]}
    del whole["model"]
    found = gausslens.run(whole, store=tmp_path, model=module)["trained", "model.capture"]
    assert found["z"].sizes["head"] == 4


def test_the_command_tells_and_proves(capsys: pytest.CaptureFixture[str], directory: Callable[[str], Path]) -> None:
    assert main(["model", str(directory("gpt_neox"))]) == 0
    told = capsys.readouterr().out
    assert "gpt_neox, opened by transformers, run by transformers" in told
    assert "resid_mid: no layer has it: attention and MLP read the same stream" in told
    assert "comparisons hold" in told
    assert "W_Q" in told


def test_the_command_as_json(capsys: pytest.CaptureFixture[str], directory: Callable[[str], Path]) -> None:
    assert main(["model", str(directory("gemma2")), "--loader", "transformer-lens", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["family"] == "gemma2"
    assert told["engine"] == "transformer-lens"
    assert all(entry["holds"] for entry in told["proof"])


def test_the_command_without_an_engine(capsys: pytest.CaptureFixture[str], directory: Callable[[str], Path]) -> None:
    assert main(["model", str(directory("bert")), "--loader", "weights"]) == 0
    assert "no capture engine serves this loader" in capsys.readouterr().out


def test_the_command_ends_with_one_where_numbers_differ(
    capsys: pytest.CaptureFixture[str], directory: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Rotation.turned

    def wrong(self: Rotation, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return plain(self, x, positions + 1e-3)

    monkeypatch.setattr(Rotation, "turned", wrong)
    assert main(["model", str(directory("llama"))]) == 1
    told = capsys.readouterr().out
    assert "DIFFER" in told
    assert "q_rot of layer 0 from weights" in told


def test_a_wrong_table_is_caught_before_the_first_capture(
    directory: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys taken for queries: no shape is wrong, every number is."""
    swapped = LLAMA.taps | {"k": LLAMA.taps["v"], "v": LLAMA.taps["k"]}
    monkeypatch.setitem(LLAMA.taps, "k", swapped["k"])
    monkeypatch.setitem(LLAMA.taps, "v", swapped["v"])
    whole = study(str(directory("llama")), "v")
    whole["prompts"] = {"source": "tokens", "ids": [[3, 4, 5, 6]]}
    with pytest.raises(gausslens.GausslensError, match=r"v of layer [01] from weights"):
        gausslens.run(whole, store=tmp_path)


def test_the_command_refuses_what_is_no_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["model", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
