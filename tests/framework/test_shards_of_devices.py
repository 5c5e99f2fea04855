"""How many tokens a shard has: fixed on the CPU, on a device by its memory; and what `plan` says of devices."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import other_device
import pytest
import xarray as xr

import gausslens
from gausslens import Part, Prompt
from gausslens.__main__ import main
from gausslens.measuring import shards
from gausslens.measuring.shards import shard_tokens
from gausslens.testing import TinyEngine, TinyModel, host_of

INFO = TinyModel().info
TOKENS = TinyModel().tokenise([Prompt((Part("some words"),))])


def opened(device: str, max_memory: int | None = None) -> Any:
    call = SimpleNamespace(device=device, mark="run.yaml:2")
    return SimpleNamespace(call=call, model=SimpleNamespace(info=INFO), max_memory=max_memory)


def test_it_is_fixed_on_the_cpu_and_under_a_limit_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "device_memory", lambda device: 10**12)
    monkeypatch.setenv(shards.TOKENS, "64")
    assert shard_tokens(opened("cpu"), TOKENS, ["resid_pre"]) is None
    assert shard_tokens(opened("cuda", max_memory=1), TOKENS, ["resid_pre"]) is None
    assert shard_tokens(opened("cuda"), TOKENS, ["resid_pre"]) == 64


def test_more_memory_gives_more_tokens_and_more_sites_give_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for memory in (0, 10**6, 3 * 10**6, 10**7, 10**8, 10**12):
        monkeypatch.setattr(shards, "device_memory", lambda device, memory=memory: memory)
        few, many = (shard_tokens(opened("cuda:1"), TOKENS, sites) for sites in (["v"], ["resid_pre", "pattern", "v"]))
        assert few
        assert many
        assert many <= few
        assert few & (few - 1) == 0  # a power of two: nearly the same memory gives the same
        sizes.append(few)
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (shards.LEAST, shards.MOST)
    assert len(set(sizes)) > 3


@pytest.mark.parametrize("told", ["0", "many", "-3", "1e3"])
def test_what_is_no_number_of_tokens_is_refused(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shards.TOKENS, told)
    with pytest.raises(gausslens.InputError, match="give a number of tokens"):
        shard_tokens(opened("cuda"), TOKENS, ["v"])


def study(device: str) -> dict[str, Any]:
    return {
        "gausslens": 1,
        "name": "shards",
        "model": {"path": "builtin:testing", "device": device},
        "prompts": {"source": "tokens", "ids": [[3 + (5 * i * j + i + j) % 40 for j in range(40)] for i in range(24)]},
        "variants": {"trained": []},
        "analyses": [{"use": "gaussian.moments", "with": {"site": "resid_pre"}}, {"use": "model.attention"}],
        "errors": False,
        "report": False,
    }


def test_a_run_on_a_device_is_cut_by_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def run(place: Any, device: str) -> dict[str, xr.Dataset]:
        other_device.compute(monkeypatch, place)
        inner = TinyEngine.run

        def counted(engine: TinyEngine, twin: Any, tokens: Any, shard: np.ndarray, *rest: Any) -> None:
            seen.append(len(shard))
            inner(engine, twin, tokens, shard, *rest)

        monkeypatch.setattr(TinyEngine, "run", counted)
        seen.clear()
        store = gausslens.run(study(device), store=tmp_path / device, host=host_of("models", "gaussian"), shown=False)
        return {name: store["trained", name] for name in ("gaussian.moments", "model.attention")}

    here = run(other_device.in_float32, "cpu")
    assert seen == [24]
    monkeypatch.setattr(shards, "device_memory", lambda device: 10**6)
    there = run(other_device.on_device, "cuda")
    assert seen == [6, 6, 6, 6]  # of 256 tokens
    for name, wanted in here.items():
        for variable, array in wanted.data_vars.items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(
                    there[name][variable].values, array.values, atol=1e-10, rtol=1e-8, err_msg=f"{name} {variable}"
                )


def test_plan_tells_of_the_device_and_a_run_without_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "gausslens: 1\nname: first\nmodel: {path: 'builtin:tiny', device: cuda}\n"
        "prompts: {source: repeated-random, prompts: 4, length: 24}\n"
        "variants: {trained: []}\nanalyses: [{use: model.attention}, {use: bilinear.spectrum}]\n"
    )
    assert main(["plan", str(file), "--store", str(tmp_path / "store")]) == 0
    assert "device  cuda: 1.15 MB for weights and a twin's" in (told := capsys.readouterr().out)
    assert "2,048 tokens; there is none here" in told
    assert main(["run", str(file), "--store", str(tmp_path / "store")]) != 0
    assert "finds no device 'cuda' here: write `device: cpu`" in capsys.readouterr().err
    monkeypatch.setattr(shards, "device_memory", lambda device: 10**9)
    assert main(["plan", str(file), "--store", str(tmp_path / "store")]) == 0
    assert "a shard of 16,384 tokens; of 1 GB that this process may hold" in capsys.readouterr().out
