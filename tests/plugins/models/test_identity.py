"""Which model this is: one decision which file is read, held against what was loaded; and a fingerprint of content."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gausslens import ModelError, ModelSpec
from gausslens_models.loading import fingerprint
from gausslens_models.loading.checkpoint import Checkpoint
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import CheckpointModel, open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

Directory = Callable[[str], Path]
Q = "model.layers.1.self_attn.q_proj.weight"


def files(path: Path) -> CheckpointModel:
    return open_weights(ModelSpec(str(path), WeightsParameters()))


def run(path: Path) -> PretrainedModel:
    return open_pretrained(ModelSpec(str(path), TransformersParameters()))


@pytest.fixture
def copy(directory: Directory, tmp_path: Path) -> Path:
    path = tmp_path / "model"
    shutil.copytree(directory("llama"), path)
    return path


def changed(path: Path, name: str, into: Path | None = None) -> None:
    """The same checkpoint with one tensor of other numbers."""
    tensors = load_file(path)
    tensors[name] = tensors[name].flip(0).contiguous()
    save_file(tensors, into or path, {"format": "pt"})


def both_read(path: Path, expected: torch.Tensor) -> None:
    """The header reader and transformers read the same file."""
    loaded = run(path)
    assert torch.equal(loaded.module.get_parameter(Q), expected)
    assert torch.equal(files(path).checkpoint.read(Q), expected)  # type: ignore[union-attr]


def test_a_single_file_goes_before_an_index(copy: Path, tmp_path: Path) -> None:
    """transformers' order: the shards beside it are of another model and nobody reads them."""
    single = load_file(copy / "model.safetensors")[Q]
    run(copy).module.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    for shard in (tmp_path / "shards").glob("model*"):
        if shard.suffix == ".safetensors":
            tensors = {name: tensor + 1 for name, tensor in load_file(shard).items()}
            save_file(tensors, copy / shard.name, {"format": "pt"})
        else:
            shutil.copy(shard, copy / shard.name)
    both_read(copy, single)
    (copy / "model.safetensors").unlink()
    both_read(copy, single + 1)


@pytest.mark.parametrize("sharded", [False, True])
def test_the_file_that_the_config_names_goes_first(sharded: bool, copy: Path, tmp_path: Path) -> None:
    plain = files(copy).info.fingerprint
    config = json.loads((copy / "config.json").read_text())
    if sharded:
        run(copy).module.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
        for shard in (tmp_path / "shards").glob("model-*"):
            changed(shard, Q) if Q in load_file(shard) else None
            shutil.copy(shard, copy / shard.name)
        shutil.copy(tmp_path / "shards" / "model.safetensors.index.json", copy / "own.safetensors.index.json")
        named = "own.safetensors.index.json"
    else:
        changed(copy / "model.safetensors", Q, copy / "own.safetensors")
        named = "own.safetensors"
    (copy / "config.json").write_text(json.dumps(config | {"transformers_weights": named}))
    both_read(copy, load_file(copy / "model.safetensors")[Q].flip(0))
    assert files(copy).info.fingerprint != plain


@pytest.mark.parametrize("named", ["../own.safetensors", "/etc/passwd", "own.bin", "nowhere.safetensors"])
def test_a_name_that_cannot_be_followed_is_refused(named: str, copy: Path) -> None:
    with pytest.raises(ModelError, match="transformers_weights"):
        Checkpoint(copy, named)


def test_what_was_loaded_is_held_against_the_file(copy: Path, tmp_path: Path) -> None:
    """The files change between the look at their headers and loading."""
    model = run(copy)
    assert model.info.n_layers == 3
    changed(copy / "model.safetensors", Q)
    kept = model.checkpoint
    changed(copy / "model.safetensors", Q, tmp_path / "before.safetensors")
    assert kept is not None
    kept.files = (tmp_path / "before.safetensors",)
    for name, stored in kept.tensors.items():
        kept.tensors[name] = type(stored)(kept.files[0], stored.shape, stored.dtype)
    with pytest.raises(ModelError, match=rf"{Q} of before\.safetensors is not what transformers loaded"):
        model.module  # noqa: B018


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_what_was_loaded_is_what_the_file_holds(which: str, dtype: str, directory: Directory) -> None:
    spec = ModelSpec(str(directory(which)), TransformersParameters(), dtype=dtype)
    assert open_pretrained(spec).module is not None


def test_a_sample_of_each_tensor_is_compared(directory: Directory) -> None:
    checkpoint = Checkpoint(directory("gpt2"))
    seen = {}
    for name, start, rows in checkpoint.samples(list(checkpoint.tensors)):
        assert torch.equal(rows, checkpoint.read(name)[start : start + len(rows)])
        seen[name] = start
    assert set(seen) == set(checkpoint.tensors)


class TestTheCacheOfFingerprints:
    """Equal path, size and time do not make equal content."""

    @pytest.fixture(autouse=True)
    def old_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fingerprint, "_SETTLED_SECONDS", -1.0)

    def rewritten(self, path: Path, how: str) -> None:
        """Another content of equal size, with the times of before; in place, or as a new file."""
        file = path / "model.safetensors"
        told = file.stat()
        if how == "in place":
            content = bytearray(file.read_bytes())
            content[-3] ^= 0x10
            with file.open("r+b") as stream:
                stream.write(content)
        else:
            tensors = load_file(file)
            tensors[Q][2, 3] += 0.5
            save_file(tensors, path / "new", {"format": "pt"})
            (path / "new").replace(file)
        os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (told.st_size, told.st_mtime_ns)

    @pytest.mark.parametrize("how", ["in place", "a new file"])
    def test_a_file_of_equal_size_and_time_is_another(self, how: str, copy: Path) -> None:
        before = files(copy).info.fingerprint
        assert files(copy).info.fingerprint == before
        time.sleep(0.02)  # the clock of inodes goes in steps of milliseconds
        self.rewritten(copy, how)
        assert files(copy).info.fingerprint != before

    def test_blocks_are_looked_at_where_nothing_else_tells(self, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file system that gives inode and times back: what lies in the file is seen."""
        real = Path.stat

        class Told:
            def __init__(self, told: os.stat_result) -> None:
                self.told = told
                self.st_ctime_ns = self.st_ino = 7
                self.st_ctime = 7.0

            def __getattr__(self, name: str) -> Any:
                return getattr(self.told, name)

        monkeypatch.setattr(Path, "stat", lambda self, **how: Told(real(self, **how)))
        before = files(copy).info.fingerprint
        monkeypatch.undo()
        monkeypatch.setattr(fingerprint, "_SETTLED_SECONDS", -1.0)
        self.rewritten(copy, "in place")
        monkeypatch.setattr(Path, "stat", lambda self, **how: Told(real(self, **how)))
        assert files(copy).info.fingerprint != before

    def test_every_part_of_a_large_file_is_near_a_block(self, tmp_path: Path) -> None:
        """Of 64 MB each stretch of 1.1 MB is looked at."""
        file = tmp_path / "weights.bin"
        content = bytearray(64 * 2**20)
        file.write_bytes(content)
        marks = [fingerprint._marks(file)[-1]]
        for start in range(0, len(content) - 1_100_000, 5_500_000):
            changed_at = bytearray(content)
            changed_at[start : start + 1_100_000] = b"\1" * 1_100_000
            file.write_bytes(changed_at)
            marks.append(fingerprint._marks(file)[-1])
        assert len(set(marks)) == len(marks)

    def test_the_fingerprint_itself_is_what_it_was(self, tmp_path: Path) -> None:
        """Keys of stores hang on it: it may not change for a model that has not."""
        tensors = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
        found = fingerprint.fingerprint({"hidden_size": 3, "use_cache": True}, sorted(tensors.items()))
        assert found == "95ac6de1d11678ce78abca0b49b1cd5d42e729d1d6813c992270281b5b14f00b"
