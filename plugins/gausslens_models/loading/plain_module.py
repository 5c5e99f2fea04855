"""Loader `torch`: a plain torch module that the caller holds or another loader makes, read as a mapping says.

What a transformers model tells by its config, the mapping tells: see families/mapped.py. Everything else, from the
layout of tensors to the exchange of edited ones, is as for any live module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gausslens import GausslensError, ModelError, ModelSpec, did_you_mean

from ..families.mapped import mapped_config, mapped_family, mapped_layout, seen_where_called
from .code_of_module import digest_of_code, digest_of_hooks, source
from .config_and_tokenizer import LIVE, MAPPED, torch_dtype
from .fingerprint import fingerprint
from .pretrained import Owners, PretrainedModel, owners_of
from .turns import turn_of

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from gausslens import Finding, Twin

    from ..families.layout import Layout
    from ..families.slots import Family, Tap
    from ..parameters import TorchParameters

# How many comparisons an error shows, the worst first.
SHOWN = 8


class PlainModule(PretrainedModel):
    """A module that the caller holds, of any class, and the mapping that says where it has what."""

    family: Family

    def __init__(self, spec: ModelSpec) -> None:
        import torch

        self.mapping: TorchParameters = spec.parameters  # type: ignore[assignment]
        self._fresh: tuple[int, dict[str, torch.Tensor]] | None = None
        self.unproved: tuple[str, ...] = ()
        made = spec.open_as
        live = f"{LIVE}{spec.path.removeprefix(MAPPED).removeprefix(LIVE)}"
        if made is None and not isinstance(spec.model, torch.nn.Module):
            raise ModelError(f"{type(spec.model).__name__} is not a torch module: a mapping is for one")
        super().__init__(spec, live if made is None else made.name)
        self.dtype = next(self.module.parameters()).dtype
        self._check_sites()
        self.family = seen_where_called(self.family, self.mapping, self.name, self._called())
        self.layout = dataclasses.replace(self.layout, family=self.family)

    @property
    def module(self) -> Any:
        """The module that the caller holds; or, made when first asked for, that of another loader."""
        if self._module is None:
            self._module = self._made()
        return self._module

    @property
    def takes_mask(self) -> bool:
        """Whether the module is told which tokens are there."""
        return "mask" in self.mapping.arguments.values()

    @property
    def bears_padding(self) -> bool:
        """Whether padding behind a prompt changes nothing before it."""
        return self.takes_mask or self.mapping.facts.causal

    @property
    def headed(self) -> bool:
        """Whether what it gives are logits."""
        return "W_U" in self.mapping.outside

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that came with the module, or None."""
        return self.spec.tokenizer

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

        from ..capture.forward_pass import LastLayerDone

        named = {name: ids if what == "ids" else mask for name, what in self.mapping.arguments.items()}
        try:
            given = self.module(ids, **named)
        except (GausslensError, MemoryError, torch.OutOfMemoryError, LastLayerDone):
            raise
        except Exception as error:
            said = (str(error).strip().splitlines() or [""])[0][:300]
            raise ModelError(
                f"{self.name}: the module fails on token numbers {list(ids.shape)}{self._told(error, ids, named)}: "
                f"{type(error).__name__}: {said}"
            ) from error
        found = _taken(given)
        if not isinstance(found, torch.Tensor):
            raise ModelError(
                f"{self.name}: the module gives {_described(given)}: what is taken as its logits is a tensor, the "
                "first of a tuple or list, or what a table or an object has as logits or last_hidden_state"
            )
        if found.ndim != 3 or found.shape[:2] != ids.shape:
            raise ModelError(
                f"{self.name}: the module gives {list(found.shape)} for token numbers {list(ids.shape)}: what is "
                "needed is [prompt, position, token]. Where a class gives the last position alone unless it has "
                "targets, the mapping says arguments: {targets: ids}"
            )
        return found

    def _told(self, error: Exception, ids: torch.Tensor, named: Mapping[str, Any]) -> str:
        """What it was given beside token numbers, and how large these were where they may be too large."""
        beside = f" and {', '.join(named)} (arguments of the mapping)" if named else ""
        if not isinstance(error, IndexError):
            return beside
        name = self.mapping.outside["W_E"]
        return f" up to {int(ids.max())} (the mapping's W_E is {name}, of {self.config.vocab_size} rows){beside}"

    def initial(self, layer: int | None, name: str, seed: int) -> torch.Tensor:
        """A fresh draw of a tensor: of the module that ``init`` makes under this seed."""
        import torch

        fresh = self._initial_module()
        if self._fresh is None or self._fresh[0] != seed:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed % 2**63)
                made = fresh()
            self._fresh = (seed, {n: p.detach() for n, p in made.named_parameters(remove_duplicate=False)})
        place = self.layout.places[layer][name]
        theirs = self._fresh[1].get(place.theirs)
        if theirs is None or tuple(theirs.shape) != self.layout.shapes[place.theirs]:
            other = "no" if theirs is None else f"{list(theirs.shape)} for"
            raise ModelError(
                f"{self.name}: what {self.mapping.init or 'initial'} makes has {other} {place.theirs}, the module has "
                f"{list(self.layout.shapes[place.theirs])}"
            )
        return self.layout.ours(place, theirs.to(self.device, self.dtype), self.dtype)

    def _initial_module(self) -> Callable[[], Any]:
        """What makes a module with fresh weights."""
        made = self.spec.open_as
        if made is not None and made.initial is not None:
            return made.initial
        if self.mapping.init is not None:
            found: Callable[[], Any] = _function(self.mapping.init)
            return found
        if made is not None:
            raise ModelError(f"{self.name}: its loader does not say how it was initialised: use reinit.gaussian")
        raise ModelError(
            f"{self.name}: a plain torch module does not say how it was initialised: let the mapping name a "
            'function that makes a fresh one, as init: "__main__:fresh", or use reinit.gaussian'
        )

    def told(self) -> tuple[str, ...]:
        """What the mapping leaves out, and what of it nothing proves."""
        ignored = [name for name in self.layout.unclaimed if any(part in name for part in self.mapping.ignored)]
        left = f"{len(ignored)} tensors are none of ours, as the mapping says (ignored): {', '.join(ignored[:8])}"
        shown = f"{', '.join(self.unproved)} are not proved: no module shows what they make, and only their shapes fit"
        return (*super().told(), *([left] if ignored else []), *([shown] if self.unproved else []))

    def tell(self, findings: Sequence[Finding]) -> None:
        """Note the tensors that are in no comparison."""
        names = {name for layer in (None, *self.info.layers) for name in self.names(layer)}
        self.unproved = unproved(names, findings, self.mapping.facts.norm_first)
        self.info = dataclasses.replace(self.info, facts={**self.info.facts, "notes": self.told()})

    def save(self, directory: Path, twin: Twin) -> str:
        """Written by the loader that made the module, and compared; refused where nothing could open it."""
        import torch

        from ..capture.patching import Patches

        made = self.spec.open_as
        if made is None:
            raise ModelError(
                f"{self.name}: a plain torch module has no config, so that transformers could not open what is written"
            )
        if made.save is None:
            raise ModelError(f"{self.name} cannot be written as a checkpoint: its loader has no save")
        with turn_of(self.module), Patches().applied(twin, list(self.info.layers)):
            mine = dict(self.module.state_dict())
        again = made.save(directory, mine)
        found = again.module().state_dict()
        wrong = next((n for n in mine if n not in found or not torch.equal(found[n].to(mine[n]), mine[n])), None)
        if wrong is not None or len(found) != len(mine):
            other = sorted(set(found) - set(mine))
            raise ModelError(
                f"{self.name}: this twin cannot be written: read again, {wrong or other[0]} is another"
                f"{' (it is tied to another tensor, of which the twin has no edit)' if wrong in self._tied() else ''}"
            )
        return again.fingerprint

    def _tied(self) -> set[str]:
        """Parameters that are one under several names."""
        names: dict[int, list[str]] = {}
        for name, held in self._parameters().items():
            names.setdefault(id(held), []).append(name)
        return {name for same in names.values() if len(same) > 1 for name in same}

    def close(self) -> None:
        """Let go of what was made on the way."""
        super().close()
        self._fresh = None

    def _config(self) -> Any:
        self.family = mapped_family(f"{type(self.module).__name__} (mapped)", self.mapping)
        self._mapped = mapped_layout(self.family, self.mapping, self._parameters(), self.name)
        tokenizer = self.spec.tokenizer
        return mapped_config(self.mapping, self._mapped, getattr(tokenizer, "eos_token_id", None))

    def _parameters(self) -> dict[str, torch.Tensor]:
        """Each parameter under all its names."""
        return dict(self.module.named_parameters(remove_duplicate=False))

    def _made(self) -> Any:
        """The module that another loader makes, on the device and in the type that are wanted."""
        import torch

        assert self.spec.open_as is not None
        module = self.spec.open_as.module()
        if not isinstance(module, torch.nn.Module):
            raise ModelError(f"{self.spec.path}: what its loader makes is no torch module: {type(module).__name__}")
        return module.to(self.spec.device, torch_dtype(self.spec)).eval().requires_grad_(False)

    def _checkpoint(self) -> None:
        """There are no files that say what the parameters of a module are called."""

    def _layout(self) -> Layout:
        return self._mapped

    def _fingerprint(self) -> str:
        if self.spec.open_as is not None:
            return self.spec.open_as.fingerprint
        module = self.spec.model
        with turn_of(module):
            told = {"mapping": self.mapping.canonical(), "code": digest_of_code(module), **digest_of_hooks(module)}
            if self.mapping.init is not None:
                told["init"] = source(_function(self.mapping.init))
            held = [*module.named_parameters(), *module.named_buffers()]
            return fingerprint(told, sorted(held, key=lambda item: item[0]))

    def _called(self) -> set[str]:
        """The modules that a pass of a few tokens calls, by all their names."""
        import torch

        from ..capture.attention import evaluating

        length = min(4, self.config.max_position_embeddings or 4)
        ids = (torch.arange(length, device=self.device) % self.config.vocab_size)[None]
        seen: set[int] = set()
        with contextlib.ExitStack() as stack, torch.no_grad():
            stack.enter_context(turn_of(self.module))
            stack.enter_context(evaluating(self.module))
            for module in self.module.modules():
                stack.callback(module.register_forward_pre_hook(lambda m, _: seen.add(id(m))).remove)
            self.answer(ids, torch.ones_like(ids))
        return {name for name, module in self.module.named_modules(remove_duplicate=False) if id(module) in seen}

    def _check_sites(self) -> None:
        """Refuse taps at modules that are not there."""
        modules = dict(self.module.named_modules())
        for layer in range(len(self.layout.places) - 1):
            for site, tap in self.family.taps.items():
                name = f"{self.family.layers}.{layer}" + (f".{tap.module}" if tap.module else "")
                if name not in modules:
                    raise ModelError(
                        f"{self.name}: there is no module {name}, at which the mapping sees {site}"
                        f"{did_you_mean(name, list(modules))}"
                    )


def _taken(given: Any) -> Any:
    """Logits, or the final hidden state, of what a module gives."""
    if isinstance(given, Mapping):
        return given.get("logits", given.get("last_hidden_state"))
    if isinstance(given, tuple | list):
        return given[0] if given else None
    return getattr(given, "logits", getattr(given, "last_hidden_state", given))


def _described(given: Any) -> str:
    if isinstance(given, Mapping):
        return f"a table of {', '.join(map(str, given)) or 'nothing'}"
    if isinstance(given, tuple | list):
        return f"({', '.join(type(each).__name__ for each in given)})"
    return type(given).__name__


def open_module(spec: ModelSpec) -> PlainModule:
    """Take a plain module, from Python or another loader, once its mapping is proved to say what it computes."""
    from ..capture.plain_capture import PlainEngine

    if spec.model is None and spec.open_as is None:
        raise ModelError(f"{spec.path}: `loader: torch` is for a module passed from Python: gausslens.run(..., model=)")
    model = PlainModule(spec)
    findings = PlainEngine().prove(model)
    wrong = sorted((f for f in findings if not f.holds), key=lambda f: f.share, reverse=True)
    if wrong:
        lines = [f"  {f.what}: differs by {f.difference:.2g}, allowed is {f.tolerance:.2g}" for f in wrong[:SHOWN]]
        more = [f"  and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        if digest_of_hooks(model.module):
            more.append("  forward hooks hang on it, or its forward was put in place of the class's: are they meant?")
        first = f"{model.name}: the module does not compute what its mapping says: {len(wrong)} of {len(findings)} "
        raise ModelError("\n".join([first + "comparisons differ, the worst first:", *lines, *more]))
    model.tell(findings)
    if spec.open_as is not None:
        model.close()  # it is made again when it is needed: many may be opened for one study
    return model


def unproved(names: Collection[str], findings: Sequence[Finding], norm_first: bool) -> tuple[str, ...]:
    """Those of our tensors that stand in no comparison which was made."""
    proved = [f.what for f in findings if f.what.endswith(" from weights") and not f.left_out]
    made = {what.removesuffix(" from weights").split(" of ")[0] for what in proved}
    gated, end = "W_gate" in names, "logits" if "W_U" in names else "final hidden state"
    shown = {
        **{f"{kind}_{n}": site for kind in "Wb" for n, site in (("Q", "q"), ("K", "k"), ("V", "v"), ("O", "attn_out"))},
        **{f"{kind}_in": "mlp_post" if gated else "mlp_pre" for kind in "Wb"},
        **{f"{kind}_{n}": site for kind in "Wb" for n, site in (("gate", "mlp_pre"), ("out", "mlp_out"))},
        **{f"ln1.{kind}": "q" if norm_first else "resid_mid" for kind in "wb"},
        **{f"ln2.{kind}": "mlp_pre" if norm_first else "resid_post" for kind in "wb"},
        **{f"{n}_norm.{kind}": "z" for kind in "wb" for n in "qk"},
        **dict.fromkeys(("W_E", "W_pos", "ln_embed.w", "ln_embed.b"), "resid_pre"),
        **dict.fromkeys(("W_U", "b_U", "ln_final.w", "ln_final.b"), end),
    }
    return tuple(name for name, site in shown.items() if name in names and site not in made)


def _function(name: str) -> Any:
    """The function that ``package.module:name`` stands for."""
    home, _, leaf = name.partition(":")
    try:
        return getattr(importlib.import_module(home), leaf)
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(f"mapping: init: {name} cannot be imported: {error}; write package.module:function") from error
