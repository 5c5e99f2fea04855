"""The script that makes builtin:tiny makes it: same tokenizer, same shapes, same numbers from the same seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from scripts import script_at

from gausslens_models.loading.config_and_tokenizer import DIRECTORY


@pytest.fixture(scope="module")
def script() -> Any:
    return script_at("examples/train_tiny_model.py")


def test_tokenizer_and_config_are_those_that_come_with_us(script: Any, tmp_path: Path) -> None:
    script.tokenizer().save_pretrained(tmp_path)
    script.config(258).save_pretrained(tmp_path)
    held = DIRECTORY / "tiny"
    assert json.loads((tmp_path / "tokenizer.json").read_text()) == json.loads((held / "tokenizer.json").read_text())
    ours, theirs = (json.loads((path / "config.json").read_text()) for path in (tmp_path, held))
    said_of_the_file = {"architectures", "dtype", "transformers_version"}
    assert {k: v for k, v in ours.items() if k not in said_of_the_file} == {
        k: v for k, v in theirs.items() if k not in said_of_the_file
    }


def test_training_is_seeded(script: Any) -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    try:
        one, other = (script.train(3).state_dict() for _ in range(2))
        assert all(torch.equal(one[name], other[name]) for name in one)
        different = script.train(3, seed=1).state_dict()
        assert not torch.equal(one["lm_head.weight"], different["lm_head.weight"])
    finally:
        torch.set_num_threads(threads)
        torch.random.set_rng_state(state)


def test_what_is_kept_on_the_way_changes_nothing(script: Any) -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    kept: dict[int, dict[str, torch.Tensor]] = {}

    def keep(step: int, model: Any) -> None:
        kept[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    try:
        plain = script.train(3).state_dict()
        watched = script.train(3, at=(0, 2, 3), keep=keep).state_dict()
    finally:
        torch.set_num_threads(threads)
        torch.random.set_rng_state(state)
    assert sorted(kept) == [0, 2, 3]
    assert all(torch.equal(plain[name], watched[name]) and torch.equal(plain[name], kept[3][name]) for name in plain)
    assert not torch.equal(kept[0]["lm_head.weight"], kept[2]["lm_head.weight"])


@pytest.mark.full
def test_training_learns(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A fifth of it: from chance (5.6 nats) to words that are made up, on the way to copying (0.3 after all of it)."""
    script.train(600)
    first, *_, last = (float(line.split()[2]) for line in capsys.readouterr().out.strip().splitlines())
    assert 5 < first < 6
    assert last < 2.4


def test_fine_tuning_is_seeded_and_moves_every_matrix(root: Path) -> None:
    """The checkpoint of the example fine-tuning is what its script makes of builtin:tiny, in float16."""
    made = script_at("examples/fine_tune_tiny.py")
    assert made.BUILTIN == DIRECTORY / "tiny"
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(made.BUILTIN)
        tuned = []
        for _ in range(2):
            model = transformers.AutoModelForCausalLM.from_pretrained(made.BUILTIN, dtype=torch.float32)
            tuned.append(made.fine_tune(model, tokenizer, 2).state_dict())
    finally:
        torch.set_num_threads(threads)
        torch.random.set_rng_state(state)
    assert all(torch.equal(tuned[0][name], tuned[1][name]) for name in tuned[0])
    base, shipped = (
        load_file(place / "model.safetensors") for place in (made.BUILTIN, root / "examples" / "fine-tuning")
    )
    assert {n: t.shape for n, t in base.items()} == {n: t.shape for n, t in shipped.items()}
    for name, tensor in base.items():
        assert not torch.equal(tensor, shipped[name]), name
        assert float((shipped[name].float() - tensor.float()).norm() / tensor.float().norm()) < 0.6, name
