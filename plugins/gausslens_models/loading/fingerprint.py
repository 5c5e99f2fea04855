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
# A file may change again within the resolution of its time stamp: so young a one is not trusted to the cache.
_SETTLED_SECONDS = 2.0


def fingerprint(config: Mapping[str, Any], tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over the config and each tensor's name, type, shape and bytes, in the order of names."""
    found = hashlib.sha256(_canonical({k: v for k, v in config.items() if k not in _VOLATILE}))
    for name, tensor in tensors:
        found.update(_canonical([name, str(tensor.dtype), list(tensor.shape)]))
        found.update(_bytes(tensor))
    return found.hexdigest()


def cached(directory: Path, files: Sequence[Path], compute: Callable[[], str]) -> str:
    """The fingerprint of files, from the user's cache while their paths, sizes and times are the same."""
    marks = [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in sorted(files)]
    place = cache_directory() / f"{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        held = json.loads(place.read_text("utf-8"))
        if held["files"] == marks:
            return str(held["fingerprint"])
    found = compute()
    newest = max((f.stat().st_mtime for f in files), default=0.0)
    if time.time() - newest > _SETTLED_SECONDS:
        _write(place, {"files": marks, "fingerprint": found})
    return found


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
