"""The weights that a model holds in memory, and its hooks: whether they are what they were, and how they are put back.

Looked at only where an outside plugin could have reached them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from zlib_ng import zlib_ng

if TYPE_CHECKING:
    import torch

    from ..runs.open import Opened

# What stands for a model that is passed from Python: no file has its weights.
LIVE = "live:"


class HeldWeights:
    """The weights in memory of one model, by their CRC-32.

    They are those that the model's ``held()`` tells; a model without it has none to look at. Where it has ``code()``,
    what that gives is looked at, too: hooks, numbers of its modules. What was changed is let go of, and read from its
    files again; of a model that is passed from Python copies are kept.
    """

    def __init__(self, opened: Opened) -> None:
        self._model = opened.model
        self._held: Callable[[], Mapping[str, torch.Tensor]] | None = getattr(opened.model, "held", None)
        self._told: Callable[[], Mapping[str, Any]] = getattr(opened.model, "code", dict)
        self._code: dict[str, Any] = {}
        self._live = opened.call.path.startswith(LIVE)
        self._sums: dict[str, int] = {}
        self._copies: dict[str, torch.Tensor] = {}
        self.closed = 0  # how often the model was let go of

    def note(self) -> None:
        """Take down what is in memory, before an outside plugin could reach it."""
        if self._held is not None and not self._sums:
            tensors = self._held()
            self._sums = {name: _crc(tensor) for name, tensor in tensors.items()}
            self._code = dict(self._told())
            if self._live:
                self._copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def changed(self) -> list[str]:
        """The tensors that are not what they were; they are put back. What was not in memory before is let go of."""
        if self._held is None:
            return []
        now = self._held()
        if not now and not self._sums:
            return []
        found = [name for name, tensor in now.items() if name in self._sums and _crc(tensor) != self._sums[name]]
        found += [name for name in self._sums if name not in now] if now else []
        code = self._told() if now else {}
        found += self._other_code(code) if now else []
        if found or not now or now.keys() - self._sums.keys() or self._is_another(code):
            self._put_back(now)
        return sorted(found)

    def _is_another(self, code: Mapping[str, Any]) -> bool:
        """Whether someone let go of the model, and it was read again."""
        return bool(code.get("object") != self._code.get("object"))

    def _other_code(self, code: Mapping[str, Any]) -> list[str]:
        if self._is_another(code):
            return []
        return [name for name in code.keys() | self._code.keys() if code.get(name) != self._code.get(name)]

    def intact(self) -> bool:
        """Whether what is in memory is what it was; nothing is put back."""
        if self._held is None or not self._sums:
            return True
        now = self._held()
        if not now or self._other_code(self._told()):
            return not now
        return all(name in now and _crc(now[name]) == crc for name, crc in self._sums.items())

    def _put_back(self, now: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in now.items():
            if name in self._copies:
                tensor.data = self._copies[name].clone()
        if self._live and self._code:
            model: Any = self._model
            model.put_code(self._code)
        self._model.close()
        self.closed += 1
        self._sums = {}
        self._copies = {}
        self._code = {}


def _crc(tensor: torch.Tensor) -> int:
    import torch

    if tensor.is_meta:
        return 0
    flat: Any = tensor.detach().cpu().contiguous().reshape(-1)
    return int(zlib_ng.crc32(memoryview(flat.view(torch.uint8).numpy()))) if flat.numel() else 0
