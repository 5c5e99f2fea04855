"""What is no attention, looks padded, or cannot be read, is refused by its place, with what settles it."""

from __future__ import annotations

import json
import mmap
import pickle
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import gausslens
import gausslens_matrices.plugin
from gausslens import InputError, ModelSpec, Prompt
from gausslens.testing import check_references
from gausslens_matrices.maths.map_faults import Padding, fault, softmax_gap, tolerance_of
from gausslens_matrices.model import MatricesModel, open_matrices
from gausslens_matrices.parameters import MatricesParameters


def maps(*shape: int, causal: bool = True, seed: int = 0) -> np.ndarray:
    """Softmaxes of Gaussian scores."""
    scores = np.random.default_rng(seed).normal(size=shape)
    if causal:
        scores = np.where(np.tri(shape[-1], dtype=bool), scores, -np.inf)
    made = np.exp(scores)
    return np.asarray(made / made.sum(axis=-1, keepdims=True))


def opened(path: Path, **options: Any) -> MatricesModel:
    return open_matrices(ModelSpec(str(path), MatricesParameters.model_validate(options)))


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        opened(path, **options)
    return str(caught.value)


def saved(directory: Path, **arrays: np.ndarray) -> Path:
    np.savez(directory / "maps.npz", **arrays)  # type: ignore[arg-type]
    return directory / "maps.npz"


def test_the_plugin() -> None:
    check_references(gausslens_matrices.plugin)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.nan, "prompt 1, layer 2, head 0, row 4: holds nan at key 3"),
        (np.inf, "prompt 1, layer 2, head 0, row 4: holds inf at key 3"),
        (-0.25, "prompt 1, layer 2, head 0, row 4: holds -0.25 at key 3: attention is not negative"),
        (7.0, "prompt 1, layer 2, head 0, row 4: sums to 7."),
    ],
)
def test_what_is_no_attention_is_told_by_place(tmp_path: Path, value: float, said: str) -> None:
    P = maps(2, 3, 2, 6, 6)
    P[1, 2, 0, 4, 3] = value
    assert said in refused(saved(tmp_path, pattern=P))


def test_rows_may_sum_to_less_beside_sinks_and_to_no_more(tmp_path: Path) -> None:
    P = maps(6, 6)
    P[2] *= 0.5
    path = saved(tmp_path, pattern=P)
    assert "row 2: sums to 0.5, not to one (within 0.0001)" in refused(path)
    assert opened(path, sinks=True).info.n_layers == 1
    P[2] *= 3
    assert "row 2: sums to 1.5" in refused(saved(tmp_path, pattern=P), sinks=True)
    assert opened(path, tolerance=0.6)


def test_the_tolerance_is_that_of_the_dtype(tmp_path: Path) -> None:
    P = torch.from_numpy(maps(3, 4, 64, 64, causal=False))
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        save_file({"pattern": P.to(dtype)}, tmp_path / "maps.safetensors")
        opened(tmp_path / "maps.safetensors")
    # Rounding to a relative eps / 2 moves the sum of a row of ones by that at most.
    assert tolerance_of("bfloat16") == 4 * 2.0**-7
    assert tolerance_of("float32") == 1e-4


def test_maps_that_are_said_to_be_causal_and_look_ahead(tmp_path: Path) -> None:
    path = saved(tmp_path, pattern=maps(2, 5, 5, causal=False))
    assert "head 0, row 0: looks ahead" in refused(path, causal=True)
    assert opened(path).info.causal is False
    assert opened(saved(tmp_path, pattern=maps(2, 5, 5))).info.causal is True


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            {"pattern": np.ones((2, 4, 5)) / 5},
            "maps of 4 queries by 5 keys; attention of tokens to each other is square",
        ),
        ({"pattern": np.ones(4)}, "pattern has shape (4,)"),
        (
            {"pattern": maps(2, 4, 4), "v": np.zeros((2, 5, 3))},
            "v has shape (2, 5, 3), which does not go with the maps",
        ),
        (
            {"pattern": maps(3, 4, 4), "v": np.zeros((2, 4, 3))},
            "v has shape (2, 4, 3), which does not go with the maps",
        ),
        ({"pattern": maps(2, 4, 4), "q": np.zeros((2, 4, 3)), "k": np.zeros((2, 4, 2))}, "their widths differ"),
        ({"pattern": maps(2, 4, 4), "v": np.full((2, 4, 3), np.nan)}, "layer 0, head 0: v of token 0 is not finite"),
        ({"pattern": maps(2, 4, 4), "lengths": np.array([9])}, "its length is said to be 9, its map has 4 rows"),
        ({"pattern": maps(2, 4, 4), "mask": np.zeros((1, 4), bool)}, "mask says that no token is real"),
        ({"pattern": maps(2, 4, 4), "tokens": np.zeros((1, 3), int)}, "tokens has shape (1, 3)"),
        ({"a": maps(4, 4), "b": maps(4, 4)}, "holds a, b: say which are the maps with `array:`"),
        ({"pattern": np.zeros((0, 4, 4))}, "it is empty"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], said: str) -> None:
    assert said in refused(saved(tmp_path, **arrays))


def _padded(kind: str) -> np.ndarray:
    """Maps of 5 and 7 tokens, padded to 12."""
    P = np.zeros((2, 2, 2, 12, 12))
    for prompt, n in enumerate((5, 7)):
        P[prompt, :, :, :n, :n] = maps(2, 2, n, n, causal=False, seed=prompt)
        rest = P[prompt, :, :, n:]
        if kind == "uniform":
            rest[:] = 1 / 12
        elif kind == "alike":
            rest[:] = maps(2, 2, 1, 12, causal=False)
        elif kind == "as the last":
            rest[..., :n] = P[prompt, :, :, n - 1 : n, :n]
        elif kind == "unseen":
            rest[..., :n] = maps(2, 2, 12 - n, n, causal=False)
        elif kind == "nan":
            rest[:] = np.nan
        elif kind == "in view":
            rest[:] = (np.tri(12) / np.arange(1, 13)[:, None])[n:]
        elif kind == "diagonal":
            rest[:] = np.eye(12)[n:]
        elif kind == "of padding":
            rest[..., n:] = 1 / (12 - n)
        elif kind == "of padding in view":
            rest[..., n:] = np.tri(12 - n) / np.arange(1, 13 - n)[:, None]
    return P


SETTLED = ["uniform", "alike", "as the last", "unseen", "in view", "diagonal", "of padding", "of padding in view"]


@pytest.mark.parametrize("kind", ["empty", "nan", *SETTLED])
def test_padding_is_noticed_and_what_settles_it_does(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path, pattern=_padded(kind))
    message = refused(path)
    assert "prompt 0: " in message
    assert "5 x 5 of 12 x 12 real" in message
    assert "and so in 1 more of 2 prompts" in message
    for settled in ({"lengths": "found"}, {"lengths": [5, 7]}):
        model = opened(path, **settled)
        assert [len(place.real) for place in model.maps.places] == [5, 7]
        np.testing.assert_array_equal(model.maps.take("pattern", 0, 1), _padded(kind)[0, 1, :, :5, :5])
        assert any("2 of 2 maps are cut" in note for note in model.info.facts["notes"])
    if kind in SETTLED:  # which are attention, as numbers go
        assert len(opened(path, lengths="whole").maps.places[0].real) == 12
    else:
        assert "row 5" in refused(path, lengths="whole")


def test_a_mask_may_pad_on_the_left(tmp_path: Path) -> None:
    P = np.zeros((1, 2, 6, 6))
    P[..., 2:, 2:] = maps(1, 2, 4, 4)
    mask = np.arange(6) >= 2
    model = opened(saved(tmp_path, pattern=P, mask=mask, tokens=np.array(list("##abcd"))))
    np.testing.assert_array_equal(model.maps.take("pattern", 0, 0), P[0, :, 2:, 2:])
    assert model.tokenise([Prompt(ids=(0, 1, 2, 3))]).pieces == (("a", "b", "c", "d"),)


@pytest.mark.parametrize("kind", ["empty", "nan", "first key", "in view", "diagonal", "uniform"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_before_the_text_is_noticed(tmp_path: Path, kind: str, causal: bool) -> None:
    P = np.zeros((2, 3, 12, 12))
    P[:, :, 5:, 5:] = maps(2, 3, 7, 7, causal=causal)
    rows = {"nan": np.nan, "first key": np.eye(1, 12), "diagonal": np.eye(5, 12), "uniform": np.full((5, 12), 1 / 12)}
    rows["in view"] = np.tri(5, 12) / np.arange(1, 6)[:, None]
    P[:, :, :5] = rows.get(kind, 0)
    path = saved(tmp_path, pattern=P[None])
    message = refused(path)
    assert "prompt 0: rows 0 to 4 " in message
    assert "7 x 7 of 12 x 12 real" in message
    assert "lengths: [" not in message  # which are counted from the first token
    model = opened(path, lengths="found")
    np.testing.assert_array_equal(model.maps.take("pattern", 0, 1), P[1, :, 5:, 5:])


def test_padding_before_the_text_of_an_encoder_may_look_at_the_text(tmp_path: Path) -> None:
    """A batch padded on the left, as BERT gives it: no row sees padding, whose own rows are like those of the text."""
    P = np.zeros((2, 3, 12, 12))
    P[..., 5:] = maps(2, 3, 12, 12, causal=False)[..., 5:]
    P /= P.sum(axis=-1, keepdims=True)
    path = saved(tmp_path, pattern=P[None])
    assert "prompt 0: keys 0 to 4 are looked at by no row" in refused(path)
    assert "7 x 7 of 12 x 12 real" in refused(path)
    np.testing.assert_array_equal(opened(path, lengths="found").maps.take("pattern", 0, 1), P[1, :, 5:, 5:])
    path = saved(tmp_path, pattern=P[None, ..., :9, :])
    said = refused(path, crossed=True)
    assert "prompt 0: keys 0 to 4 are looked at by no row" in said
    assert "7 of 12 keys real" in said
    model = opened(path, crossed=True, key_lengths="found")
    np.testing.assert_array_equal(model.maps.take("pattern", 0, 1), P[1, :, :9, 5:])


def test_documents_in_one_prompt_are_no_padding(tmp_path: Path) -> None:
    """Texts that do not see each other leave blocks: rows of the first are not those of padding."""
    P = np.zeros((2, 3, 12, 12))
    P[:, :, :5, :5], P[:, :, 5:, 5:] = maps(2, 3, 5, 5), maps(2, 3, 7, 7, seed=1)
    assert len(opened(saved(tmp_path, pattern=P[None])).maps.places[0].real) == 12


@given(n=st.integers(2, 9), seed=st.integers(0, 50), causal=st.booleans())
def test_no_attention_of_a_text_looks_padded(n: int, seed: int, causal: bool) -> None:
    padding = Padding()
    for P in maps(2, n, n, causal=causal, seed=seed):
        assert fault(P, causal, 1e-4) is None
        padding.show(P)
    assert padding.found() is None
    at_one_key = np.eye(n)[[0, -1], None].repeat(n, axis=1)
    for whole in (np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None], np.eye(n), *at_one_key):
        alone = Padding()
        alone.show(whole)
        assert alone.found() is None


def test_a_pickle_is_refused_with_two_lines_that_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    P = maps(2, 4, 4).astype(np.float32)
    (tmp_path / "maps.pkl").write_bytes(pickle.dumps(list(P)))
    np.save(tmp_path / "objects.npy", np.array([*P, None], dtype=object)[:2], allow_pickle=True)
    torch.save([torch.from_numpy(each) for each in P], tmp_path / "maps.pt")
    np.savez(tmp_path / "arrays.npz", pattern=np.array([*P, None], dtype=object)[:2])
    monkeypatch.chdir(tmp_path)
    for name, made in (
        ("maps.pkl", "maps.npz"),
        ("objects.npy", "objects.npz"),
        ("maps.pt", "maps.npz"),
        ("arrays.npz", "arrays-plain.npz"),
    ):
        message = refused(tmp_path / name)
        assert "pickle" in message
        lines = [line.strip() for line in message.splitlines()[1:]]
        assert len(lines) == 2
        exec("\n".join(lines), {})  # as a user would
        assert opened(tmp_path / made).info.n_heads == 2
        (tmp_path / made).unlink()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "maps.npz").write_bytes(b"PK nothing")
    assert "cannot be read as .npz" in refused(tmp_path / "maps.npz")
    whole = saved(tmp_path, pattern=maps(2, 64, 64)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:2000])
    assert "cannot be read as .npz" in refused(tmp_path / "cut.npz")
    (tmp_path / "maps.csv").write_text("1")
    assert "matrices are read from .npy" in refused(tmp_path / "maps.csv")
    (tmp_path / "empty").mkdir()
    assert "holds no .npy" in refused(tmp_path / "empty")


def _header(shape: str, dtype: str = "<f8") -> bytes:
    """A .npy file that says it holds so much, and holds next to nothing."""
    told = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00\x76\x00" + told.encode() + bytes(64)


@pytest.mark.parametrize("shape", ["(1000000, 100, 100, 10000, 10000)", "(10000, 2, 2, 100, 100)"])
@pytest.mark.parametrize("how", ["npy", "no width", "stored", "deflated", "h5"])
def test_more_numbers_than_a_file_can_hold_are_refused_before_they_are_asked_for(
    tmp_path: Path, shape: str, how: str
) -> None:
    path = tmp_path / f"maps.{ {'npy': 'npy', 'no width': 'npy', 'h5': 'h5'}.get(how, 'npz') }"
    if how == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("pattern", shape=eval(shape), dtype="f4", chunks=(1, 1, 1, 100, 100))
    elif path.suffix == ".npy":
        path.write_bytes(_header(shape, "|V0" if how == "no width" else "<f8"))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED if how == "stored" else zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("pattern.npy", _header(shape))
    message = refused(path)
    assert f"is said to have shape {shape}" in message
    assert f"more than its {path.stat().st_size:,} bytes can hold" in message


def test_maps_that_are_mostly_zeros_are_small_and_read_all_the_same(tmp_path: Path) -> None:
    P = np.tile(np.eye(300), (4, 4, 1, 1))
    np.savez_compressed(tmp_path / "maps.npz", pattern=P)
    with h5py.File(tmp_path / "maps.h5", "w") as file:
        file.create_dataset("pattern", data=P, chunks=(1, 1, 300, 300), compression="gzip", compression_opts=9)
    for name in ("maps.npz", "maps.h5"):
        assert P.nbytes > 300 * (tmp_path / name).stat().st_size
        assert opened(tmp_path / name).info.n_layers == 4


def test_numbers_of_other_files_are_not_followed(tmp_path: Path) -> None:
    """Neither would be part of the key under which results are kept."""
    P = maps(2, 4, 4)
    P.tofile(tmp_path / "raw.bin")
    with h5py.File(tmp_path / "outside.h5", "w") as file:
        file.create_dataset("pattern", shape=P.shape, dtype="f8", external=[(tmp_path / "raw.bin", 0, P.nbytes)])
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["pattern"] = P
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["v"], file["pattern"] = np.zeros((2, 4, 3)), h5py.ExternalLink("own.h5", "/pattern")
    assert "pattern is a link into own.h5: write its numbers into this file" in refused(tmp_path / "link.h5")
    layout = h5py.VirtualLayout(shape=P.shape, dtype="f8")
    layout[:] = h5py.VirtualSource(tmp_path / "own.h5", "pattern", shape=P.shape)
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("pattern", layout)
    assert "outside.h5: pattern is external storage, whose numbers are in other files" in refused(
        tmp_path / "outside.h5"
    )
    assert "virtual.h5: pattern is a virtual dataset" in refused(tmp_path / "virtual.h5")
    assert opened(tmp_path / "own.h5").info.n_heads == 2


def test_a_mask_that_is_added_to_scores_or_the_other_way_round_is_told(tmp_path: Path) -> None:
    P = np.zeros((2, 8, 8))
    P[:, :5, :5] = maps(2, 5, 5)
    real = np.arange(8) < 5
    assert len(opened(saved(tmp_path, pattern=P, mask=real * 1.0)).maps.places[0].real) == 5
    message = refused(saved(tmp_path, pattern=P, mask=np.where(real, 0.0, -1e9)))
    assert "prompt 0: mask holds -1e+09; it is 1 where a token is real and 0 where it is padding" in message
    message = refused(saved(tmp_path, pattern=P, mask=~real))
    assert "sums to 0, and mask says that it is real: is that 1 at real tokens and 0 at padding?" in message


def test_which_tokens_are_text_is_told_by_truth_values_alone(tmp_path: Path) -> None:
    P = maps(2, 4, 4)
    for text in (np.array([False, True, True, True]), np.array([[0, 1, 1, 1]])):
        assert opened(saved(tmp_path, pattern=P, text=text)).maps.text(0).tolist() == [False, True, True, True]
    for text in (np.array(["a b c d"]), np.array([7, 3, 9, 4])):
        model = opened(saved(tmp_path, pattern=P, text=text))
        assert model.maps.text(0).all()
        assert model.info.facts["notes"] == ("arrays that are not read: text",)
    assert "text has shape (3,)" in refused(saved(tmp_path, pattern=P, text=np.ones(3, bool)))


def test_a_path_of_prompts_where_nothing_is_speaks_of_files_of_maps(tmp_path: Path) -> None:
    saved(tmp_path, pattern=maps(2, 4, 4))
    for named, near in (("maps.npy", "did you mean maps.npz?"), ("b/nope.npy", "paths are relative to the run file")):
        study = {"prompts": {"source": "matrices", "path": named}, "analyses": [{"use": "model.attention"}]}
        (tmp_path / "run.yaml").write_text(json.dumps({"gausslens": 1, "name": "maps", **study}))
        with pytest.raises(InputError) as caught:
            gausslens.run(tmp_path / "run.yaml", store=tmp_path / "store")
        said = str(caught.value)
        assert "prompts.path: there is nothing at '" in said
        assert (
            "it should be attention matrices in .npy, .npz, .safetensors or HDF5 files, or a directory of them" in said
        )
        assert near in said
        assert "hub" not in said


def test_files_of_a_directory_must_go_together(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", maps(2, 4, 4))
    np.save(tmp_path / "b.npy", maps(3, 4, 4))
    assert "b.npy: pattern has shape (3, 4, 4), in a.npy (2, 4, 4)" in refused(tmp_path)


@pytest.mark.parametrize("name", ["maps.npz", "maps.npy"])
def test_large_files_are_mapped_into_memory_and_not_loaded(tmp_path: Path, name: str) -> None:
    P = maps(2, 4, 4)
    saved(tmp_path, pattern=P)
    np.save(tmp_path / "maps.npy", P)
    part = opened(tmp_path / name).maps.files[0].held["pattern"].take((slice(1, 2), slice(None), slice(None)))
    np.testing.assert_array_equal(part[0], P[1])
    bases = [part]
    while isinstance(bases[-1], np.ndarray):
        bases.append(bases[-1].base)
    assert isinstance(bases[-1], mmap.mmap)


def test_axes_may_be_named(tmp_path: Path) -> None:
    P = maps(3, 2, 4, 5, 5)
    model = opened(saved(tmp_path, attn=P.swapaxes(0, 1)), axes=["layer", "prompt", "head"])
    assert (model.info.n_layers, model.info.n_heads, len(model.maps.places)) == (2, 4, 3)
    np.testing.assert_array_equal(model.maps.take("pattern", 2, 1), P[2, 1])
    one = opened(saved(tmp_path, attn=P[:, 0, 0]), axes=["prompt"])
    assert (one.info.n_layers, one.info.n_heads, len(one.maps.places)) == (1, 1, 3)
    assert "`axes:` names 1: prompt" in refused(saved(tmp_path, attn=P), axes=["prompt"])


def test_queries_and_keys_that_do_not_make_the_maps_are_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 1, 6, 4))
    scores = np.where(np.tri(6, dtype=bool), q[0] @ k[0].T / 2, -np.inf)
    P = np.exp(scores)
    P /= P.sum(axis=1, keepdims=True)
    assert softmax_gap(P, q[0], k[0], 0.5, causal=True) < 1e-12
    path = saved(tmp_path, pattern=P[None], q=q, k=k)
    assert opened(path).info.facts["notes"] == ()
    [note] = opened(path, scale=2.0).info.facts["notes"]
    assert note.startswith("softmax(2 q . k) is not the maps")


def test_arrays_of_one_name_in_several_groups_are_never_left_out(tmp_path: Path) -> None:
    one, other = maps(2, 5, 5), maps(2, 5, 5, seed=1)
    with h5py.File(tmp_path / "maps.h5", "w") as file:
        file["a/pattern"], file["b/pattern"], file["b/v"] = one, other, np.ones((2, 5, 3))
    said = refused(tmp_path / "maps.h5")
    assert "holds a/pattern, b/pattern: the maps of a file are one array" in said
    model = opened(tmp_path / "maps.h5", array="b/pattern")
    np.testing.assert_array_equal(model.maps.take("pattern", 0, 0), other)
    assert model.sites == ("pattern", "v")
    assert model.maps.notes() == ("arrays that are not read: a/pattern",)
    assert opened(tmp_path / "maps.h5", array="a/pattern").sites == ("pattern",)
    assert "no array 'c/pattern': did you mean" in refused(tmp_path / "maps.h5", array="c/pattern")
    np.savez(tmp_path / "maps.npz", **{"layer.0/attn": one, "layer.1/attn": other})
    assert "holds layer.0/attn, layer.1/attn" in refused(tmp_path / "maps.npz")


def test_a_file_of_a_directory_is_read_whatever_its_case_and_a_link_to_nothing_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "1.npy", maps(2, 5, 5))
    np.save(tmp_path / "b.npy", maps(2, 4, 4))
    (tmp_path / "b.npy").rename(tmp_path / "2.NPY")
    assert [len(place.real) for place in opened(tmp_path).maps.places] == [5, 4]
    (tmp_path / "3.npy").symlink_to(tmp_path / "nowhere.npy")
    assert "3.npy: cannot be read as .npy: FileNotFoundError" in refused(tmp_path)


def scored(n: int, causal: bool) -> dict[str, np.ndarray]:
    """Maps of two heads beside the scores that made them."""
    scores = np.random.default_rng(0).normal(size=(2, n, n)) * 3
    made = np.where(np.tri(n, dtype=bool), scores, -np.inf) if causal else scores
    P = np.exp(made - made.max(axis=-1, keepdims=True))
    return {"pattern": P / P.sum(axis=-1, keepdims=True), "scores": made}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.nan, "head 1, row 3: scores hold nan at key 2: they are finite, or -inf where a key is masked"),
        (np.inf, "head 1, row 3: scores hold inf at key 2"),
        (-1e9, "head 1, row 3: scores hold -1e+09 at key 2, which is a mask: write -inf"),
        (float(np.finfo("f4").min), "which is a mask"),
        (-10_000.0, "which is a mask"),
    ],
)
def test_scores_that_are_none_are_told_by_place(tmp_path: Path, value: float, said: str) -> None:
    arrays = scored(6, causal=False)
    arrays["scores"][1, 3, 2] = value
    assert said in refused(saved(tmp_path, **arrays))
    arrays["scores"][1, 3] = -np.inf
    assert "row 3: scores are -inf at every key" in refused(saved(tmp_path, **arrays))


@pytest.mark.parametrize("before", [-1e9, 0.0, np.nan])
def test_what_scores_hold_where_a_causal_map_looks_at_nothing_does_not_matter(tmp_path: Path, before: float) -> None:
    """Many keep scores as they were before the mask, or a low number in place of it: fits would be of these."""
    arrays = scored(6, causal=True)
    model = opened(saved(tmp_path, **arrays))
    masked = arrays | {"scores": np.where(np.isfinite(arrays["scores"]), arrays["scores"], before)}
    other = opened(saved(tmp_path, **masked))
    np.testing.assert_array_equal(other.maps.take("scores", 0, 0), model.maps.take("scores", 0, 0))
    assert not other.maps.notes()


def test_scores_that_do_not_make_the_maps_are_told(tmp_path: Path) -> None:
    arrays = scored(6, causal=False)
    assert not opened(saved(tmp_path, **arrays)).maps.notes()
    arrays["scores"][1] *= 2  # as without the scale
    (note,) = opened(saved(tmp_path, **arrays)).maps.notes()
    assert note.startswith("softmax(scores) is not the maps but differs by up to 0.")
    assert "prompt 0, layer 0, head 1" in note
