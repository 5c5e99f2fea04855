"""Reading what says what a model is, transformers kept quiet: config, dtype, tokenizer, which loader a path is for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gausslens import InputError, ModelError

if TYPE_CHECKING:
    import torch

    from gausslens import ModelSpec

HUB = "hub:"
LIVE = "live:"
# A live module with a mapping, which needs no transformers.
MAPPED = "live:mapped:"
BUILTIN = "builtin:"
DIRECTORY = Path(__file__).parents[1] / "builtin"
# One row for each built-in model: its data is builtin/<name>/.
BUILTIN_MODELS = {
    "clue-tiny": "four layers of Mistral type, eight heads over two key/value heads; defines words, from examples",
    "tiny": "three layers of Mistral type, four heads over two key/value heads, bytes as tokens; has induction heads",
}
# What configs call numbers of layers, heads and features (num_hidden_layers, n_embd, ...), and how many there can be.
SIZES = re.compile(
    r"((num|n|encoder|decoder|num_hidden|num_encoder|num_decoder)_)?(layers?|heads?|attention_heads|key_value_heads)"
    r"|(n_)?(embd|inner)|d_(model|ff|kv)|head_dim|vocab_size|([a-z]+_)*(hidden|intermediate|embedding)_size"
    r"|((encoder|decoder)_)?ffn_dim|(hidden_)?dim|num(_local)?_experts|n_routed_experts|word_embed_proj_dim"
)
LAYERS, WIDTH = 10_000, 100_000_000
# Of these no model has none.
AT_LEAST_ONE = re.compile(
    r"num_(hidden_layers|attention_heads|key_value_heads)|n_(layer|head|embd|positions)|hidden_size|vocab_size"
    "|max_position_embeddings"
)
# What the files of an adapter say that it is, and of weights without a config.
ADAPTER, WEIGHTS = "adapter_config.json", ("*.safetensors", "*.bin")
# How files of weights begin under the names of their publisher, which are not read.
CONSOLIDATED = "consolidated"
# Which modules a directory of sentence-transformers has, in order.
MODULES = "modules.json"


def claims_directory(path: str) -> bool:
    """A directory with a config, an adapter, a GGUF file, a hub id, or a live model."""
    if path.startswith(HUB):
        return True
    if path.startswith(LIVE):
        return not path.startswith((f"{LIVE}TransformerBridge", MAPPED))
    return claims_files(path) or is_adapter(Path(path)) or Path(path).suffix == ".gguf"


def claims_files(path: str) -> bool:
    """A local directory with a config, or of sentence-transformers with such a one inside."""
    return any((Path(path) / name).is_file() for name in ("config.json", MODULES))


def claims_builtin(path: str) -> bool:
    """Everything that starts with ``builtin:``."""
    return path.startswith(BUILTIN)


def claims_mapped(path: str) -> bool:
    """A live module that comes with a mapping."""
    return path.startswith(MAPPED)


def claims_weights(path: str) -> bool:
    """A local directory with a config, or one that should have it: the error can then say so."""
    return claims_files(path) or (Path(path).is_dir() and (is_adapter(Path(path)) or _has_weights(Path(path))))


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds an adapter and no model; some trainers leave the base's config beside it."""
    if not (directory / ADAPTER).is_file():
        return False
    return not ((directory / "config.json").is_file() and _has_weights(directory, but=("adapter_",)))


def _has_weights(directory: Path, but: tuple[str, ...] = ()) -> bool:
    files = (file for pattern in WEIGHTS for file in directory.glob(pattern))
    return any(not file.name.startswith((*but, "training_args", "optimizer", "scheduler")) for file in files)


def claims_bridge(path: str) -> bool:
    """A directory with a config, or a live bridge."""
    return path.startswith(f"{LIVE}TransformerBridge") or claims_files(path)


def where_pretrained(spec: ModelSpec) -> tuple[str, dict[str, Any]]:
    """What to give to from_pretrained: a directory, and the arguments that keep it from the network."""
    trusted = bool(getattr(spec.parameters, "trust_remote_code", False))
    gguf = getattr(spec.parameters, "gguf_file", None)
    path = Path(spec.path)
    if spec.path.startswith(HUB):
        path = _downloaded(spec.path.removeprefix(HUB), gguf)
    elif path.suffix == ".gguf":
        path, gguf = path.parent, path.name
    if not path.is_dir():
        raise InputError(f"{spec.path}: no such directory (a model of the hub is written hub:owner/name)")
    path = path if gguf else path / transformer_inside(path)
    extra = {"gguf_file": gguf} if gguf else {}
    return str(path), {"trust_remote_code": trusted, "local_files_only": True} | extra


def directory_of_builtin(path: str) -> Path:
    """Where the files of a built-in model are."""
    name = path.removeprefix(BUILTIN)
    if name not in BUILTIN_MODELS:
        raise InputError(f"{path}: no such built-in model; there are {', '.join(BUILTIN + m for m in BUILTIN_MODELS)}")
    return DIRECTORY / name


def transformer_inside(directory: Path) -> str:
    """Where in a directory of sentence-transformers its transformer is, "" where the directory is a model itself."""
    if (directory / "config.json").is_file() or not (directory / MODULES).is_file():
        return ""
    try:
        first = json.loads((directory / MODULES).read_text("utf-8"))[0]
        kind, name = str(first["type"]).rpartition(".")[2], str(first["path"])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ModelError(f"{directory / MODULES}: not a list of modules: {error!r}") from error
    if kind != "Transformer":
        raise ModelError(
            f"{directory}: a model of sentence-transformers whose first module is a {kind}, no Transformer"
        )
    if Path(name).name != name or name in ("", ".."):
        raise ModelError(
            f"{directory / MODULES}: its transformer is in {name!r}; it should be in a directory of this one"
        )
    return name


def notes_of(spec: ModelSpec) -> tuple[str, ...]:
    """What a directory holds besides the model that is opened."""
    if not (Path(spec.path) / MODULES).is_file():
        return ()
    at = transformer_inside(Path(spec.path))
    what = f"the transformer in {at} is opened" if at else "its transformer is opened"
    return (f"a model of sentence-transformers: {what}; what follows it (pooling, ...) is none of it",)


@cache
def _downloaded(name: str, gguf: str | None) -> Path:
    """The files of ``owner/name@revision`` from the hub, or its cache: the one place that asks the network."""
    from huggingface_hub import snapshot_download

    name, _, revision = name.partition("@")
    told = ["*.json", "*.txt", "*.model", "*.jinja"]
    for weights in [gguf] if gguf else ["*.safetensors", "*.bin"]:
        try:
            found = snapshot_download(name, revision=revision or None, allow_patterns=[*told, weights])
        except Exception as error:
            raise ModelError(f"{HUB}{name}: cannot be had from the hub: {first_line(error)}") from error
        if any(Path(found).glob(weights)):
            break
    return Path(found)


def read_config(spec: ModelSpec) -> Any:
    """The config, with the defaults of its class; quantised checkpoints are refused."""
    with warnings.catch_warnings():
        # In a notebook without ipywidgets tqdm says so when it is imported first, as here; none of its bars is shown.
        warnings.filterwarnings("ignore", "IProgress not found")
        from transformers import AutoConfig

    name, arguments = where_pretrained(spec)
    if "gguf_file" not in arguments:
        _refuse_no_config(Path(name))
    refuse_absurd_sizes(Path(name) / "config.json")
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(name, **arguments)
    except Exception as error:
        raise ModelError(f"{spec.path}: its config cannot be read: {first_line(error)}") from error
    if "gguf_file" not in arguments:
        refuse_quantised(config, spec.path)
    return config


def _refuse_no_config(directory: Path) -> None:
    """A directory with an adapter is opened by those who merge it; one with both says not which is meant."""
    if is_adapter(directory):
        raise ModelError(
            f"{directory} holds an adapter ({ADAPTER}), not a model: `loader: transformers` and `loader: weights` open "
            "it with its base; for others merge it into that (peft's merge_and_unload) and save_pretrained() the result"
        )
    if (directory / ADAPTER).is_file():
        raise ModelError(both_in(directory))
    if not (directory / "config.json").is_file():
        raise ModelError(
            f"there is no config.json in {directory}, which says what model its weights are of: put it beside them"
        )


def both_in(directory: Path) -> str:
    """The refusal of a directory with a model and an adapter."""
    if not _has_weights(directory, but=("adapter_", CONSOLIDATED)):
        return (
            f"{directory} holds an adapter ({ADAPTER}) and, beside it, a model in {CONSOLIDATED}.*, which is not read: "
            "move that elsewhere, and it is the directory of the adapter"
        )
    return (
        f"{directory} holds a model and, beside it, an adapter ({ADAPTER}): which is meant? For the model alone "
        f"move {ADAPTER} and adapter_model.* elsewhere; for both, move them into a directory ADAPTER and write "
        f"`model: {{path: ADAPTER, base: {directory.name}}}`"
    )


def refuse_absurd_sizes(file: Path) -> None:
    """Sizes that no model has are refused before anything is made of them: lists of all layers, or whole tensors."""
    try:
        told = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return  # whoever reads it says what is wrong with it
    for key, value in _sizes(told):
        most = LAYERS if "layer" in key else WIDTH
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > most:
            raise ModelError(f"{file}: {key} is {value}: no model has more than {most:,}")
    for key, value in told.items() if isinstance(told, dict) else ():
        if AT_LEAST_ONE.fullmatch(key) and isinstance(value, int | float) and value < 1:
            raise ModelError(f"{file}: {key} is {value}: every model has at least 1")


def _sizes(told: Any) -> Iterator[tuple[str, Any]]:
    """Every count of a config and of the configs in it."""
    if isinstance(told, dict):
        for key, value in told.items():
            if SIZES.fullmatch(key):
                yield key, value
            else:
                yield from _sizes(value)


def refuse_quantised(config: Any, path: str) -> None:
    """Stored integers are not the numbers that a model computes with."""
    quantised = getattr(config, "quantization_config", None)
    if quantised is None:
        return
    method = quantised.get("quant_method") if isinstance(quantised, dict) else type(quantised).__name__
    raise ModelError(
        f"{path}: its weights are quantised ({method}), so they are not the numbers that the model computes with; use "
        "the checkpoint it was made from, or load it with transformers, call model.dequantize() and save_pretrained() "
        "to a new directory"
    )


def read_tokenizer(spec: ModelSpec) -> Any:
    """The tokenizer, or None where the model comes without one."""
    from transformers import AutoTokenizer

    if spec.tokenizer is not None:
        return spec.tokenizer
    if spec.path.startswith(LIVE):
        return None
    name, arguments = where_pretrained(spec)
    files = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
    if "gguf_file" not in arguments and Path(name).is_dir() and not any((Path(name) / f).is_file() for f in files):
        return None
    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(name, **arguments)
    except Exception as error:
        raise ModelError(f"{spec.path}: its tokenizer cannot be read: {first_line(error)}") from error


def digest_of_tokenizer(tokenizer: Any) -> str:
    """SHA-256 of all that makes text of token numbers and back; how it was last asked to cut and pad is none of it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        told = json.dumps(sorted(tokenizer.get_vocab().items()))
    else:
        told = backend.to_str()
        told = told[told.index('"added_tokens"') :]  # cutting and padding stand before it
    more = [sorted(tokenizer.all_special_ids), bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))]
    return hashlib.sha256(f"{more}{told}".encode("utf-8", "surrogatepass")).hexdigest()


def torch_dtype(spec: ModelSpec) -> torch.dtype:
    """The type that the weights are wanted in: float32 unless the run file says otherwise."""
    import torch

    known = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if (spec.dtype or "float32") not in known:
        raise InputError(f"dtype: {spec.dtype}; it is one of {', '.join(known)}")
    return known[spec.dtype or "float32"]


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers says less and shows no progress bars; afterwards as before."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    loud = level != logging.ERROR  # setting it, to what it is too, empties what every logger remembers
    if loud:
        logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if loud:
            logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """What an error says first."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
