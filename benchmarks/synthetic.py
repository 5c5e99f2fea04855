"""A checkpoint of any published shape with planted spectra: what nobody has to download, and whose answer is known.

    python benchmarks/synthetic.py SHAPE DIRECTORY [--layers N] [--set hidden_size=256 ...] [--dtype bfloat16]
        [--plant spikes|power|none] [--matrices W_Q W_K W_V W_O] [--seed 0] [--shard-gigabytes 5]

SHAPE is a name below, or the path of a config.json (or of its directory) of any type whose tensors gausslens knows.
What comes out opens in transformers: config.json, safetensors in shards with their index, written a tensor at a time,
so that memory is that of the largest one. Planted matrices are U diag(s) V^T with s as planted.json says (``values``
makes them again) and U, V orthonormal to rounding: signs and cosine transforms in turn, which cost n^2 log n. All else
is drawn as the model's class draws it. A tensor is the same whatever the number of layers and shards.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.fft import dct

from gausslens.maths.laws import MarchenkoPastur
from gausslens_models.families.layout import Layout, family_of
from gausslens_models.loading.skeleton import layout_of, skeleton_of, tensors_of
from gausslens_models.loading.weights import class_of

ATTENTION = ("W_Q", "W_K", "W_V", "W_O")
PLANTED = "planted.json"
_TYPES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def _shape(model: str, width: int, inner: int, layers: int, heads: tuple[int, int], **more: Any) -> dict[str, Any]:
    """A config in the words that most types share; ``heads``: of queries, and of keys and values."""
    kind, name = model.split()
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    of_heads = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    return {"model_type": kind, "architectures": [name], "tie_word_embeddings": False} | sizes | of_heads | more


_LLAMA, _MISTRAL = "llama LlamaForCausalLM", "mistral MistralForCausalLM"
# As their publishers give them; all else is the default of the type.
SHAPES: dict[str, dict[str, Any]] = {
    "mistral-7b": _shape(_MISTRAL, 4096, 14336, 32, (32, 8), vocab_size=32000, max_position_embeddings=32768),
    "llama-2-7b": _shape(_LLAMA, 4096, 11008, 32, (32, 32), vocab_size=32000, max_position_embeddings=4096),
    "llama-3-8b": _shape(_LLAMA, 4096, 14336, 32, (32, 8), vocab_size=128256, max_position_embeddings=8192),
    "llama-3-70b": _shape(_LLAMA, 8192, 28672, 80, (64, 8), vocab_size=128256, max_position_embeddings=8192),
    "smollm2-135m": _shape(_LLAMA, 576, 1536, 30, (9, 3), vocab_size=49152, tie_word_embeddings=True),
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
    "pythia-6.9b": _shape("gpt_neox GPTNeoXForCausalLM", 4096, 16384, 32, (32, 32), vocab_size=50432),
}


def values(entry: Mapping[str, Any]) -> np.ndarray:
    """The singular values that an entry of planted.json tells, largest first, before they were rounded to the dtype.

    ``spikes``: those named, above a bulk that lies where the law of Marchenko and Pastur expects it, of the sizes that
    the spikes leave. ``power``: s_i = first * i^-exponent.
    """
    rows, columns = entry["rows"], entry["columns"]
    if entry["plant"] == "power":
        return entry["first"] * np.arange(1.0, min(rows, columns) + 1) ** -entry["exponent"]
    spikes = np.asarray(entry["spikes"], dtype=np.float64)
    law = MarchenkoPastur(rows - len(spikes), columns - len(spikes), entry["variance"])
    return np.concatenate([spikes, np.sqrt(law.typical())])


def described(plant: str, layer: int, rows: int, columns: int) -> dict[str, Any]:
    """What is planted in a matrix: 1 to 4 spikes by layer, 1.5 to 3 times the edge of the noise; or a power law."""
    made: dict[str, Any] = {"plant": plant, "rows": rows, "columns": columns}
    variance = 1.0 / rows
    if plant == "power":
        return made | {"first": 4.0, "exponent": 0.25 + 0.05 * (layer % 4)}
    edge = float(np.sqrt(MarchenkoPastur(rows, columns, variance).edges[1]))
    spikes = [edge * strength for strength in (3.0, 2.5, 2.0, 1.5)[: 1 + layer % 4]]
    return made | {"variance": variance, "spikes": spikes}


def planted(s: np.ndarray, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """[rows, columns] with exactly these singular values and directions at random."""
    made = np.zeros((rows, columns))
    np.fill_diagonal(made, s)
    for axis in (0, 1):
        for _ in range(2):
            signs = rng.choice((-1.0, 1.0), size=made.shape[axis])
            made *= signs[:, None] if axis == 0 else signs
            made = dct(made, norm="ortho", axis=axis, overwrite_x=True)
    return made


def config_of(shape: str, layers: int | None = None, changed: Mapping[str, Any] | None = None) -> Any:
    """The config of a named shape, or of a config.json, with other sizes where they are given."""
    from transformers import AutoConfig

    if shape in SHAPES:
        told = dict(SHAPES[shape])
    else:
        path = Path(shape)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise SystemExit(f"{shape}: neither a shape ({', '.join(SHAPES)}) nor a config.json")
        told = json.loads(path.read_text("utf-8"))
    config = AutoConfig.for_model(**(told | dict(changed or {})))
    if layers is not None:
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
    return config


def write(
    config: Any,
    directory: Path,
    dtype: str = "bfloat16",
    plant: str = "spikes",
    matrices: Sequence[str] = ATTENTION,
    seed: int = 0,
    shard_bytes: int = 5 * 10**9,
) -> dict[str, Any]:
    """Write config, shards, index and planted.json into a directory; what planted.json holds."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise SystemExit(f"{directory} is not empty")
    name = (config.architectures or [""])[0]
    model = skeleton_of(class_of(config, not name.endswith("Model")), config, str(directory)).to(getattr(torch, dtype))
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(model).items() if name not in tied}
    layout = layout_of(model, family_of(config, str(directory), shapes), config, str(directory))
    config.dtype = dtype
    (directory / "config.json").write_text(config.to_json_string(use_diff=False), encoding="utf-8")
    entries: list[dict[str, Any]] = []
    here = {} if plant == "none" else _places(layout, matrices)
    size = getattr(torch, dtype).itemsize
    shards = _shards(shapes, size, shard_bytes)
    for names, file in zip(shards, _files(len(shards)), strict=True):
        with (directory / file).open("wb") as stream:
            stream.write(_header({name: shapes[name] for name in names}, dtype, size))
            for theirs in names:
                tensor = _drawn(model, theirs, seed)
                for layer, ours in here.get(theirs, ()):
                    entries.append(_plant(layout, tensor, layer, ours, plant, seed))
                stream.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    if len(shards) > 1:
        where = {n: file for names, file in zip(shards, _files(len(shards)), strict=True) for n in names}
        total = {"total_size": sum(size * int(np.prod(s)) for s in shapes.values())}
        _write_json(directory / "model.safetensors.index.json", {"metadata": total, "weight_map": where})
    told = {"plant": plant, "seed": seed, "dtype": dtype, "matrices": entries}
    _write_json(directory / PLANTED, told)
    return told


def _places(layout: Layout, matrices: Sequence[str]) -> dict[str, list[tuple[int, str]]]:
    """Which of our matrices lie in each tensor of the module."""
    found: dict[str, list[tuple[int, str]]] = {}
    for layer, places in layout.places.items():
        for ours in matrices if layer is not None else ():
            if ours in places:
                found.setdefault(places[ours].theirs, []).append((layer, ours))
    if not found:
        raise SystemExit(f"a {layout.family.name} has none of {', '.join(matrices)}: plant in others, or none")
    return found


def _plant(layout: Layout, tensor: torch.Tensor, layer: int, ours: str, plant: str, seed: int) -> dict[str, Any]:
    """Write one planted matrix into its tensor; what is to be told of it, and what rounding to the dtype moved.

    No singular value moves further than the largest of the rounding errors (Weyl), which Frobenius' norm bounds.
    """
    place = layout.places[layer][ours]
    view = layout.view(place, tensor)
    heads = view.ndim == 3 and ours in ATTENTION
    stacked = view.ndim == 3 and not heads
    if stacked:
        raise SystemExit(f"{ours} of layer {layer} is one matrix for each expert: plant in attention")
    if not heads:
        rows, columns = view.shape
    elif ours == "W_O":
        rows, columns = view.shape[0] * view.shape[1], view.shape[2]
    else:
        rows, columns = view.shape[1], view.shape[0] * view.shape[2]
    entry = {"layer": layer, "tensor": ours, "in": place.theirs} | described(plant, layer, rows, columns)
    exact = torch.from_numpy(planted(values(entry), rows, columns, _rng(seed, f"{ours} of layer {layer}")))
    if heads:
        each = exact.view(view.shape) if ours == "W_O" else exact.view(rows, view.shape[0], -1).transpose(0, 1)
    else:
        each = exact
    layout.write(place, tensor, each.to(tensor.dtype))
    entry["rounding"] = float(torch.linalg.vector_norm(each.to(tensor.dtype).double() - each))
    return entry


def _drawn(model: Any, name: str, seed: int) -> torch.Tensor:
    """One tensor as its class draws it: of its module alone, made real."""
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    alone = copy.copy(module)
    alone._modules = {}
    alone = copy.deepcopy(alone).to_empty(device="cpu")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(sha256(f"{seed} {name}".encode()).digest()[:7]))
        found: torch.Tensor = getattr(alone, leaf).detach()
        found.fill_(torch.nan)
        model._init_weights(alone)
    if not bool(torch.isfinite(found.sum(dtype=torch.float32))):  # no scheme is said for it: as most are
        draw = torch.Generator().manual_seed(int.from_bytes(sha256(f"{seed} {name}".encode()).digest()[:7]))
        found = found.detach().normal_(0.0, getattr(model.config, "initializer_range", 0.02), generator=draw)
    return found


def _rng(seed: int, what: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(sha256(f"{seed} {what}".encode()).digest()[:8]))


def _shards(shapes: Mapping[str, Sequence[int]], size: int, most: int) -> list[list[str]]:
    """Names in order, as many to a shard as fit."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, shape in shapes.items():
        here = size * int(np.prod(shape))
        if shards[-1] and filled + here > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += here
    return shards


def _files(count: int) -> Iterator[str]:
    for number in range(1, count + 1):
        yield "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"


def _header(shapes: Mapping[str, Sequence[int]], dtype: str, size: int) -> bytes:
    """What a file of safetensors begins with: so many bytes, then where each tensor lies behind them."""
    told: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, shape in shapes.items():
        end = place + size * int(np.prod(shape))
        told[name] = {"dtype": _TYPES[dtype], "shape": list(shape), "data_offsets": [place, end]}
        place = end
    line = json.dumps(told, separators=(",", ":")).encode()
    line += b" " * (-len(line) % 8)
    return len(line).to_bytes(8, "little") + line


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _value(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main() -> None:
    """Write one, and say what it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", help=f"{', '.join(SHAPES)}, or the path of a config.json")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--set", nargs="*", default=[], type=_value, metavar="KEY=VALUE", help="of the config")
    parser.add_argument("--dtype", choices=_TYPES, default="bfloat16")
    parser.add_argument("--plant", choices=("spikes", "power", "none"), default="spikes")
    parser.add_argument("--matrices", nargs="+", default=list(ATTENTION))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard-gigabytes", type=float, default=5.0)
    chosen = parser.parse_args()
    config = config_of(chosen.shape, chosen.layers, dict(chosen.set))
    most = int(chosen.shard_gigabytes * 1e9)
    told = write(config, chosen.directory, chosen.dtype, chosen.plant, chosen.matrices, chosen.seed, most)
    written = sum(file.stat().st_size for file in chosen.directory.glob("*.safetensors"))
    print(f"{chosen.directory}: {written / 1e9:.2f} GB, {len(told['matrices'])} planted matrices, told in {PLANTED}")


if __name__ == "__main__":
    sys.exit(main())
