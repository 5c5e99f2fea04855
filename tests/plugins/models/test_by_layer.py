"""Models whose weights are more than the memory that they may take: read a layer at a time, with the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from random_models import OTHERS, build
from tiny_stacks import STACKED
from transformers import LlamaConfig, LlamaForCausalLM

import gausslens
from gausslens import Intervention, ModelError, ModelSpec, Request, Twin
from gausslens.runs.resources import needs
from gausslens.spreading.prepare import prepare
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.capture.walk import Streams
from gausslens_models.loading.checkpoint import Checkpoint
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.parameters import TransformersParameters

SHARDS = [np.array([0]), np.array([2, 1])]

# Types where it hangs on roundings whether prompts that are carried together end alike to the bit.
MAY_DIFFER = {"deberta-v2", "deberta"}


def opened(path: Path, most: int | None = 1, **how: Any) -> Any:
    return open_pretrained(ModelSpec(str(path), TransformersParameters(**how), max_memory=most))


def everything(
    engine: TransformersEngine, twin: Twin, tokens: Any, together: bool, columns: bool = False
) -> list[dict[Any, torch.Tensor]]:
    """All sites of all layers, of two shards; logits in ``columns`` are put together."""
    found: list[dict[Any, torch.Tensor]] = [{}, {}]

    def sink(number: int) -> Any:
        def keep(batch: Any) -> None:
            for site, array in batch.arrays.items():
                before = [found[number][batch.layer, site]] if batch.columns else []
                found[number][batch.layer, site] = torch.cat([*before, array], -1)

        return keep

    request = Request(engine.sites(twin.base), columns=columns)
    if together:
        engine.run_together(twin, tokens, SHARDS, request, [sink(0), sink(1)])
    else:
        for number, shard in enumerate(SHARDS):
            engine.run(twin, tokens, shard, request, sink(number))
    return found


def assert_alike(ours: list[dict[Any, torch.Tensor]], theirs: list[dict[Any, torch.Tensor]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for what, array in one.items():
            assert torch.equal(array.nan_to_num(7), other[what].nan_to_num(7)), what


def check_alike(path: Path, prompts: Any, name: str) -> None:
    engine, whole, apart = TransformersEngine(), opened(path, None), opened(path)
    wanted = everything(engine, Twin(whole), prompts, together=False)
    why = engine.together(apart)
    assert why is None or name in MAY_DIFFER, why
    before = apart.checkpoint.reads.copy()
    assert_alike(everything(engine, Twin(apart), prompts, together=why is None, columns=True), wanted)
    layers = {name for part in apart.by_layer.layers for name in part.tensors}
    reads = [n for tensor, n in (apart.checkpoint.reads - before).items() if tensor in layers]
    assert why is not None or all(n == 1 for n in reads)
    assert whole.by_layer is None
    assert all(p.is_meta for p in apart.module.parameters())


def test_every_site_of_every_layer_is_the_same(which, directory, prompts):
    check_alike(directory(which), prompts, which)


@pytest.mark.full
@pytest.mark.parametrize("name", OTHERS)
def test_every_site_of_other_types_is_the_same(name, tmp_path, prompts):
    build(name).save_pretrained(tmp_path)
    check_alike(tmp_path, prompts, name)


@pytest.mark.parametrize("name", ["albert", "deberta-v3", "ctrl", "bloom", "ibert"])
def test_odd_ways_from_layer_to_layer(name, tmp_path, prompts):
    build(name).save_pretrained(tmp_path)
    check_alike(tmp_path, prompts, name)


@pytest.mark.parametrize("name", STACKED)
def test_an_encoder_of_two_stacks(name, stacks_at, prompts):
    engine = TransformersEngine()
    whole, apart = opened(stacks_at(name), None, stack="encoder"), opened(stacks_at(name), stack="encoder")
    wanted = everything(engine, Twin(whole), prompts, together=False)
    assert engine.together(apart) is None
    assert_alike(everything(engine, Twin(apart), prompts, together=True), wanted)
    with pytest.raises(ModelError, match="stack: encoder"):
        engine.by_layer(opened(stacks_at(name), stack="decoder"))


def halved(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
    """Anything but norms, whose gains are had back with rounding."""
    return tensor / 2 if name[:2] in ("W_", "b_") and tensor.ndim > 1 else None


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "gemma2", "gpt_neox", "bert-masked", "mixtral"])
def test_twins_are_the_same(name, directory, prompts, written):
    engine = TransformersEngine()
    whole, apart = opened(directory(name), None), opened(directory(name))
    assert engine.together(apart) is None

    def twin(model: Any) -> Twin:
        known = {"W_Q", "W_K", "W_O", "W_in", "W_E", "W_U", "b_Q"}
        return written(model, change=lambda n, t: halved(n, t) if n in known else None)

    wanted = everything(engine, twin(whole), prompts, together=False)
    plain = everything(engine, Twin(whole), prompts, together=False)
    assert not torch.equal(wanted[0][0, "pattern"], plain[0][0, "pattern"])
    assert_alike(everything(engine, twin(apart), prompts, together=True), wanted)
    assert_alike(everything(engine, Twin(apart), prompts, together=True), plain)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "mixtral", "gpt2"])
def test_each_tensor_is_read_once_in_a_pass_and_one_that_is_tied_twice(name, directory, prompts, twin_of_rotated):
    engine, model = TransformersEngine(), opened(directory(name))
    assert engine.together(model) is None
    for twin in (Twin(model), twin_of_rotated(model)):
        before = model.checkpoint.reads.copy()
        everything(engine, twin, prompts, together=True, columns=True)
        reads = model.checkpoint.reads - before
        embedding = model.by_layer.rows[model.by_layer.embedding]
        # There is no room to keep those of both shards: a token of both is read twice.
        rows = Fraction(sum(len(np.unique(prompts.padded(shard)[0])) for shard in SHARDS), embedding.vocabulary)
        assert set(reads) == set(model.checkpoint.tensors)
        assert reads.pop(embedding.stored) == rows + model.layout.tied
        assert set(reads.values()) == {1}


@pytest.fixture
def twin_of_rotated():
    """A twin of edits as a run makes it: every matrix of attention turned."""
    from gausslens.contract.descriptors import Owned, Owner
    from gausslens.contract.errors import Mark
    from gausslens.contract.twin import EditCall
    from gausslens_reinit import plugin
    from gausslens_reinit.parameters import BlockParameters

    edit = next(e for e in plugin.edits() if e.name == "reinit.rotate")
    call = EditCall(Owned(edit, Owner("tests", "tests", "0")), BlockParameters(), None, None, Mark("<test>", 1, 1))
    return lambda model: Twin(model, [call], 0, 0)


def test_patching_is_the_same(directory, prompts):
    engine = TransformersEngine()
    ids, _, mask = prompts.padded(np.array([0, 2]))
    change = [Intervention("z", 1, lambda tensor, where: tensor.flip(0), heads=[1], positions=[3])]
    answers = []
    for most in (None, 1):
        runner = engine.runner(Twin(opened(directory("llama"), most)))
        answers.append([runner.forward(ids, mask=mask, interventions=given)["logits"] for given in ((), change)])
    assert not torch.equal(*answers[0])
    assert torch.equal(answers[0][0], answers[1][0])
    assert torch.equal(answers[0][1], answers[1][1])


def test_what_needs_all_weights_is_refused_by_name(directory):
    engine = TransformersEngine()
    runner = engine.runner(Twin(opened(directory("llama"))))
    with pytest.raises(ModelError, match="generation needs all weights"):
        runner.generate(np.array([[3, 4]]), 2)
    with pytest.raises(ModelError, match="gradients needs all weights"):
        runner.forward(np.array([[3, 4]]), grad=True)
    with pytest.raises(ModelError, match=r"smallest that will do is max_memory: \d+kB"):
        engine.by_layer(opened(directory("llama")))


def test_buffers_are_those_that_transformers_makes(which, directory):
    whole, apart = opened(directory(which), None).module, opened(directory(which)).module
    lasting = set(whole.state_dict())
    made = dict(apart.named_buffers())
    for name, buffer in whole.named_buffers():
        if name not in lasting:
            assert torch.equal(buffer, made[name]), name


def test_streams_beyond_the_limit_come_back_the_same_and_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    streams = Streams(100)
    draw = torch.Generator().manual_seed(0)
    cpu = torch.device("cpu")
    for dtype in (torch.bfloat16, torch.float32, torch.bfloat16):  # the second is larger than its place
        given = [torch.randn(2, n, 5, generator=draw).to(dtype) for n in (2, 3, 4, 1)]
        for number, stream in enumerate(given):
            streams.put(number, stream)
        for number, stream in enumerate(given):
            assert torch.equal(streams.take(number, cpu), stream)
    assert streams.spilled > 0
    assert not list(tmp_path.iterdir())
    streams.close()


KILLED = """
import os, signal, sys, torch
from gausslens_models.capture.walk import Streams
from gausslens_models.loading.checkpoint import Checkpoint
streams = Streams(0)
for number in range(4):
    streams.put(number, torch.zeros(1000))
assert streams.spilled == 16000
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_on_the_way_nothing_is_left(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -9
    assert not list(tmp_path.iterdir())


STUDY: dict[str, Any] = {
    "model": {"path": "builtin:tiny"},
    "prompts": {"source": "repeated-random", "prompts": 45, "length": 100},
    "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.config"}], "draws": 1}},
    "analyses": [
        {"use": "gaussian.moments"},
        {"use": "model.attention", "with": {"maps": "none"}},
        {"use": "model.loss"},
    ],
    "errors": False,
    "report": False,
}


def test_a_run_has_the_same_numbers_and_the_same_keys(tmp_path):
    whole = gausslens.run(STUDY, store=tmp_path / "whole")
    apart = gausslens.run(STUDY | {"max_memory": "500kB"}, store=tmp_path / "apart")
    for variant in STUDY["variants"]:
        for analysis in ("gaussian.moments", "model.attention", "model.loss"):
            ours, theirs = apart[variant, analysis], whole[variant, analysis]
            if analysis == "model.loss":  # sums over blocks of the vocabulary: another order, then rounded to float32
                xr.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=2e-6)
            else:
                assert theirs.equals(ours), (variant, analysis)
    keys = [{file.name for file in (tmp_path / name / "parts").rglob("*.h5")} for name in ("whole", "apart")]
    assert keys[0]
    assert keys[0] == keys[1]


@pytest.mark.parametrize("size", ["8", "8 gigabytes", "-1GB", 8])
def test_sizes_are_read_strictly(size):
    with pytest.raises(gausslens.GausslensError, match="max_memory"):
        gausslens.run(STUDY | {"max_memory": size}, store="unused")


def test_too_little_memory_is_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(gausslens.GausslensError, match=r"max_memory is less than.*layer 0.*the smallest that will do"):
        gausslens.run(STUDY | {"max_memory": "100kB"}, store=tmp_path / "store")


RUNS = """
import json, sys
import torch
torch.set_num_threads(1)
import transformers, gausslens
from gausslens_models.capture.engine import TransformersEngine
import gausslens_models.capture.attention, gausslens_models.loading.pretrained
def peak():  # ru_maxrss would be that of the process that started this one, where that had more
    return 1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
own = peak()
store = gausslens.run(json.loads(sys.argv[1]), store=sys.argv[2])
print(own, peak())
"""


@pytest.mark.full
@pytest.mark.real_model
def test_a_third_of_its_size_is_enough(tmp_path, real_models):
    path = real_models / "smollm2"
    study: dict[str, Any] = {
        "model": {"path": str(path), "dtype": "float32"},
        "prompts": {"source": "repeated-random", "prompts": 8, "length": 32},
        "analyses": [{"use": "model.attention", "with": {"maps": "none"}}, {"use": "gaussian.moments"}],
        "errors": False,
        "report": False,
    }
    peaks = {}
    for name, more in (("whole", {}), ("apart", {"max_memory": "180MB"})):
        told = subprocess.run(
            [sys.executable, "-c", RUNS, json.dumps(study | more), str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=True,
        )
        own, peak = map(int, told.stdout.split()[-2:])
        peaks[name] = peak - own
    assert peaks["apart"] < peaks["whole"] - 250e6, peaks
    stores = [gausslens.open(tmp_path / name) for name in peaks]
    for analysis in ("model.attention", "gaussian.moments"):
        ours, theirs = (store["trained", analysis] for store in stores)
        for variable in (v for v in ours.data_vars if ours[v].dtype.kind == "f"):
            assert np.allclose(ours[variable], theirs[variable], rtol=0, atol=1e-5, equal_nan=True), variable


def test_those_that_read_rows_in_blocks_and_those_that_do_not_share_a_pass(tmp_path):
    study = {
        "model": {"path": "builtin:tiny"},
        "prompts": {"source": "repeated-random", "prompts": 10, "length": 150},
        "analyses": [{"use": "gaussian.moments", "layers": [0, 1]}, {"use": "bilinear.head-roles"}],
        "errors": False,
        "report": False,
    }
    whole, apart = (
        gausslens.run(study | more, store=tmp_path / name)
        for name, more in (("whole", {}), ("apart", {"max_memory": "700kB"}))
    )
    for analysis in ("gaussian.moments", "bilinear.head-roles"):
        assert whole["trained", analysis].equals(apart["trained", analysis])


def test_logits_that_are_read_whole_are_refused_when_planned(tmp_path):
    capture = STUDY | {"analyses": [{"use": "model.capture", "with": {"sites": ["logits"]}}], "max_memory": "500kB"}
    with pytest.raises(gausslens.GausslensError, match=r"model.capture reads the logits of all the vocabulary at once"):
        gausslens.run(capture, store=tmp_path / "store")


@pytest.fixture
def wide_of_words(tmp_path):
    """A model most of which is its embedding, which is its head too."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=3000, max_position_embeddings=64, tie_word_embeddings=True, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def test_an_embedding_larger_than_the_limit(wide_of_words, prompts):
    engine, whole, apart = TransformersEngine(), opened(wide_of_words, None), opened(wide_of_words, 40_000)
    assert apart.by_layer is None
    assert whole.info.weight_bytes > 3 * 40_000
    assert engine.by_layer(apart).endswith("(layer 0)")
    wanted = everything(engine, Twin(whole), prompts, together=False)
    assert_alike(everything(engine, Twin(apart), prompts, together=False), wanted)
    assert engine.together(apart) is None
    before = apart.checkpoint.reads.copy()
    assert_alike(everything(engine, Twin(apart), prompts, together=True, columns=True), wanted)
    reads = apart.checkpoint.reads - before
    assert 1 < reads.pop("model.embed_tokens.weight") < 2
    assert set(reads.values()) == {1}
    with pytest.raises(ModelError, match=r"the embedding, .*max_memory: 2\d\dkB") as told:
        engine.by_layer(apart, edited=["W_E"])  # three copies of it: all of the model is less
    assert not opened(wide_of_words, 1000 * int(str(told.value)[-5:-2])).exceeds


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_a_tensor_are_those_of_the_whole(dtype, tmp_path):
    from safetensors.torch import save_file

    whole = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    save_file({"before": torch.ones(7), "it": whole}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    for wanted in (torch.arange(50), torch.tensor([0, 1, 2, 7, 49]), torch.tensor([], dtype=torch.long)):
        assert torch.equal(checkpoint.rows("it", wanted, torch.float32), whole[wanted].float())
    assert checkpoint.reads["it"] == Fraction(55, 50)


def test_what_losses_need_is_told_of_the_logits_that_are_there_at_a_time(tmp_path):
    wide = LlamaConfig(
        vocab_size=60_000, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(wide).save_pretrained(tmp_path)
    study = STUDY | {"model": {"path": str(tmp_path)}, "variants": {"trained": []}, "analyses": [{"use": "model.loss"}]}
    memory = {}
    for limit in (None, "3MB"):
        _, _, models, plan = prepare(study | ({"max_memory": limit} if limit else {}))
        memory[limit] = needs(plan.steps[0], plan.steps[0].info, 1e9).memory
        models.close()
    logits = 2000 * 60_000 * 4  # of a shard
    assert memory[None] > logits
    assert memory["3MB"] < logits / 10
