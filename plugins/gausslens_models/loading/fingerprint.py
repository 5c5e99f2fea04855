"""What a model is, as one digest: its config and the content of its tensors, whatever files they lie in."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Said by transformers of the file, not of the model.
_VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "_attn_implementation")
# A file may change again within the resolution of its time stamps: so young a one is not trusted to the cache.
_SETTLED_SECONDS = 2.0
# What is looked at of each file whenever its fingerprint is taken from the cache: its start, and blocks spread over it.
_START, _BLOCKS, _BLOCK = 2**16, 64, 2**12


def fingerprint(config: Mapping[str, Any], tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over the config and each tensor's name, type, shape and bytes, in the order of names."""
    found = hashlib.sha256(_canonical({k: v for k, v in config.items() if k not in _VOLATILE}))
    for name, tensor in tensors:
        found.update(_canonical([name, str(tensor.dtype), list(tensor.shape)]))
        found.update(_bytes(tensor))
    return found.hexdigest()


def of_stack(found: str, stack: str | None) -> str:
    """The fingerprint of one stack of a model of two; of others the model's own."""
    return found if stack is None else hashlib.sha256(f"{found} {stack}".encode()).hexdigest()


def cached(directory: Path, files: Sequence[Path], compute: Callable[[], str]) -> str:
    """The fingerprint of files, from the user's cache while they are the same.

    Size and time of writing can be given back to other content; inode and time of change are not so easily, and what
    lies at the start (names and shapes) and in blocks spread over the file is looked at.
    """
    marks = [_marks(f) for f in sorted(files)]
    try:
        place = cache_directory() / f"{hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()}.json"
    except RuntimeError:  # no HOME, and the system does not know the user, as in some containers
        return compute()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        held = json.loads(place.read_text("utf-8"))
        if held["files"] == marks:
            return str(held["fingerprint"])
    found = compute()
    newest = max((max(f.stat().st_mtime, f.stat().st_ctime) for f in files), default=0.0)
    if time.time() - newest > _SETTLED_SECONDS:
        _write(place, {"files": marks, "fingerprint": found})
    return found


def _marks(file: Path) -> list[Any]:
    """What a file is known by, without reading all of it."""
    told = file.stat()
    size = told.st_size
    looked = hashlib.sha256()
    with file.open("rb") as stream:
        if file.suffix == ".safetensors":  # its header, which is as long as its first eight bytes say
            header = int.from_bytes(stream.read(8), "little")
            stream.seek(0)
            looked.update(stream.read(min(8 + header, size)))
        looked.update(stream.read(_START))
        for number in range(_BLOCKS):
            stream.seek(max(0, (size - _BLOCK) * number // (_BLOCKS - 1)))
            looked.update(stream.read(_BLOCK))
    return [str(file.resolve()), size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino, looked.hexdigest()]


def cache_directory() -> Path:
    """Where fingerprints are kept: below XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gausslens" / "fingerprints"


def _write(place: Path, content: Mapping[str, Any]) -> None:
    """Write at once and whole, so that others see the old file or the new; a cache that cannot be written is none."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place.parent, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(content, stream)
        Path(temporary).replace(place)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def _bytes(tensor: torch.Tensor) -> Any:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data
