"""Loader `torch`: a plain torch module that the caller holds, read as a mapping says.

What a transformers model tells by its config, the mapping tells: see families/mapped.py. Everything else, from the
layout of tensors to the exchange of edited ones, is as for any live module.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gausslens import ModelError, ModelSpec, did_you_mean

from ..families.mapped import mapped_config, mapped_family, mapped_layout
from .code_of_module import digest_of_code, digest_of_hooks, source
from .config_and_tokenizer import LIVE, MAPPED
from .fingerprint import fingerprint
from .pretrained import Owners, PretrainedModel, owners_of
from .turns import turn_of

if TYPE_CHECKING:
    import torch

    from ..families.layout import Layout
    from ..families.slots import Tap
    from ..parameters import TorchParameters


class PlainModule(PretrainedModel):
    """A module that the caller holds, of any class, and the mapping that says where it has what."""

    def __init__(self, spec: ModelSpec) -> None:
        import torch

        if not isinstance(spec.model, torch.nn.Module):
            raise ModelError(f"{type(spec.model).__name__} is not a torch module: a mapping is for one")
        self.mapping: TorchParameters = spec.parameters  # type: ignore[assignment]
        self._fresh: tuple[int, dict[str, torch.Tensor]] | None = None
        super().__init__(spec, f"{LIVE}{spec.path.removeprefix(MAPPED).removeprefix(LIVE)}")
        self.dtype = next(spec.model.parameters()).dtype
        self._check_sites()

    @property
    def headed(self) -> bool:
        """Whether what it gives are logits."""
        return "W_U" in self.mapping.outside

    @cached_property
    def module_layout(self) -> Layout:
        """Where our tensors are: there are no files with other names."""
        return self.layout

    @property
    def heads(self) -> Mapping[str, Tap]:
        """Where q, k, v and z are seen, of which scores and patterns are made."""
        return self.layout.family.taps

    @cached_property
    def taps(self) -> dict[str, Tap]:
        """Where the other sites of a layer are seen."""
        return {site: tap for site, tap in super().taps.items() if site != "z" or not self.layout.family.watched}

    @property
    def embedding(self) -> Any:
        """The module whose output the stream starts from."""
        name = self.mapping.outside["W_E"]
        if not name.endswith(".weight"):
            raise ModelError(f"{self.name}: W_E is {name}, which belongs to no module that gives the site embed")
        return self.module.get_submodule(name.removesuffix(".weight"))

    @property
    def device(self) -> torch.device:
        """Where token numbers go in."""
        found: torch.device = next(self.module.parameters()).device
        return found

    def owners(self) -> Owners:
        """Which modules hold each parameter."""
        head = self.mapping.outside.get("W_U", "").split("[")[0].split(" ")[0].rpartition(".")[0]
        return owners_of(self.module, self.module.get_submodule(head) if head else None)

    def answer(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What the module gives for token numbers: logits, or its final hidden state, at every position."""
        import torch

        named = {name: ids if what == "ids" else mask for name, what in self.mapping.arguments.items()}
        found = self.module(ids, **named)
        if isinstance(found, tuple | list):
            found = found[0]
        found = getattr(found, "logits", getattr(found, "last_hidden_state", found))
        if not isinstance(found, torch.Tensor):
            raise ModelError(f"{self.name}: the module gives {type(found).__name__}, not logits")
        if found.ndim != 3 or found.shape[:2] != ids.shape:
            raise ModelError(
                f"{self.name}: the module gives {list(found.shape)} for token numbers {list(ids.shape)}: what is "
                "needed is [prompt, position, token]. Where a class gives the last position alone unless it has "
                "targets, the mapping says arguments: {targets: ids}"
            )
        return found

    def initial(self, layer: int | None, name: str, seed: int) -> torch.Tensor:
        """A fresh draw of a tensor: of the module that ``init`` makes under this seed."""
        import torch

        if self.mapping.init is None:
            raise ModelError(
                f"{self.name}: a plain torch module does not say how it was initialised: let the mapping name a "
                'function that makes a fresh one, as init: "__main__:fresh", or use reinit.gaussian'
            )
        if self._fresh is None or self._fresh[0] != seed:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed % 2**63)
                made = _function(self.mapping.init)()
            self._fresh = (seed, {n: p.detach() for n, p in made.named_parameters(remove_duplicate=False)})
        place = self.layout.places[layer][name]
        theirs = self._fresh[1].get(place.theirs)
        if theirs is None or tuple(theirs.shape) != self.layout.shapes[place.theirs]:
            other = "no" if theirs is None else f"{list(theirs.shape)} for"
            raise ModelError(
                f"{self.name}: what {self.mapping.init} makes has {other} {place.theirs}, the module has "
                f"{list(self.layout.shapes[place.theirs])}"
            )
        return self.layout.ours(place, theirs.to(self.device, self.dtype), self.dtype)

    def close(self) -> None:
        """Let go of what was made on the way."""
        super().close()
        self._fresh = None

    def _config(self) -> Any:
        self.family = mapped_family(f"{type(self.spec.model).__name__} (mapped)", self.mapping)
        self._mapped = mapped_layout(self.family, self.mapping, self._parameters(), self.name)
        tokenizer = self.spec.tokenizer
        return mapped_config(self.mapping, self._mapped, getattr(tokenizer, "eos_token_id", None))

    def _parameters(self) -> dict[str, torch.Tensor]:
        """Each parameter under all its names."""
        return dict(self.spec.model.named_parameters(remove_duplicate=False))

    def _layout(self) -> Layout:
        return self._mapped

    def _fingerprint(self) -> str:
        module = self.spec.model
        with turn_of(module):
            told = {"mapping": self.mapping.canonical(), "code": digest_of_code(module), **digest_of_hooks(module)}
            if self.mapping.init is not None:
                told["init"] = source(_function(self.mapping.init))
            held = [*module.named_parameters(), *module.named_buffers()]
            return fingerprint(told, sorted(held, key=lambda item: item[0]))

    def _check_sites(self) -> None:
        """Refuse taps at modules that are not there."""
        modules = dict(self.spec.model.named_modules())
        for layer in range(len(self.layout.places) - 1):
            for site, tap in self.family.taps.items():
                name = f"{self.family.layers}.{layer}" + (f".{tap.module}" if tap.module else "")
                if name not in modules:
                    raise ModelError(
                        f"{self.name}: there is no module {name}, at which the mapping sees {site}"
                        f"{did_you_mean(name, list(modules))}"
                    )


def open_module(spec: ModelSpec) -> PlainModule:
    """Take a plain module passed from Python with its mapping."""
    if spec.model is None:
        raise ModelError(f"{spec.path}: `loader: torch` is for a module passed from Python: gausslens.run(..., model=)")
    return PlainModule(spec)


def _function(name: str) -> Any:
    """The function that ``package.module:name`` stands for."""
    home, _, leaf = name.partition(":")
    try:
        return getattr(importlib.import_module(home), leaf)
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(f"mapping: init: {name} cannot be imported: {error}; write package.module:function") from error
