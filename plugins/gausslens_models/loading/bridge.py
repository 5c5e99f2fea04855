"""Loader `transformer-lens`: a model behind a TransformerBridge, for families that plain transformers cannot watch.

The bridge wraps the transformers model and replaces its modules; where q, k and v are fused it holds copies of them. So
tensors come from the files, or from the module as it was before, and what the bridge has copied cannot be edited.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gausslens import SITES, ModelError, ModelInfo, ModelSpec, site

from ..families import refused
from ..families.layout import Layout, Place, Sizes, family_of
from ..families.slots import BRIDGED, UNWATCHED, Family
from .config_and_tokenizer import LIVE, quiet_transformers
from .eager_answer import Answer, eager_answer, proof_prompt
from .pretrained import Owners, PretrainedModel, owners_of
from .turns import turn_of

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from gausslens import Twin

_WRAPPED = "._original_component"
# Where a bridge shows a site: names below blocks.<layer>, the first that it has. resid_mid is found apart.
HOOKS: Mapping[str, tuple[str, ...]] = {
    "resid_pre": ("hook_in",),
    "q": ("attn.q.hook_out",),
    "k": ("attn.k.hook_out",),
    "v": ("attn.v.hook_out",),
    "q_rot": ("attn.hook_rot_q",),
    "k_rot": ("attn.hook_rot_k",),
    "scores": ("attn.hook_attn_scores",),
    "pattern": ("attn.hook_pattern",),
    "z": ("attn.o.hook_in",),
    "attn_out": ("ln1_post.hook_out", "attn.o.hook_out"),
    "mlp_pre": ("mlp.gate.hook_out", "mlp.in.hook_out"),
    "mlp_post": ("mlp.out.hook_in",),
    "mlp_out": ("ln2_post.hook_out", "mlp.out.hook_out", "mlp.hook_out"),
    "resid_post": ("hook_out",),
}


def open_bridge(spec: ModelSpec) -> BridgedModel:
    """Open a directory through TransformerLens, or take a live bridge passed from Python."""
    if spec.path.startswith(LIVE) and spec.model is None:
        raise ModelError(f"{spec.path} stands for a bridge passed from Python: give it as model=")
    return BridgedModel(spec)


class BridgedModel(PretrainedModel):
    """A model that runs through a TransformerBridge, booted when first needed."""

    attention = "eager"  # some families choose their attention for good when they are built

    def __init__(self, spec: ModelSpec) -> None:
        self._bridge: Any = None
        self._owners = Owners({}, None)
        self.copied = False
        self.unknown: ModelError | None = None
        self.reference: Answer | None = None
        super().__init__(spec)

    @property
    def bridge(self) -> Any:
        """The TransformerBridge. The plain module's own answer for the proof is kept before it is wrapped."""
        if self._bridge is None and self.spec.model is not None:
            self._bridge = self.spec.model
            self._owners = _named_plainly(owners_of(self._bridge.original_model))
        elif self._bridge is None:
            module = self.module
            self._owners = owners_of(module)
            before = {id(p) for p in module.parameters()}
            if self.unknown is None:
                self.module_layout  # noqa: B018 - names as they are before the bridge changes them
            self.reference = eager_answer(self)
            self._bridge = _booted(self, module)
            self.copied = any(id(p) not in before for p in self._bridge.parameters())
        return self._bridge

    @property
    def headed(self) -> bool:
        """Whether there is a language-model head: TransformerLens wraps no model without."""
        return self.spec.model is not None or super().headed

    def model_class(self) -> Any:
        """The class of the checkpoint; families without a table are built as what they say they are."""
        if self.unknown is None:
            return super().model_class()
        import transformers

        named = (getattr(self.config, "architectures", None) or [""])[0]
        found = getattr(transformers, named, None)
        if found is None:
            raise ModelError(f"{self.name}: transformers has no class {named or '(config.json names none)'}")
        return found

    @property
    def device(self) -> torch.device:
        """Where token numbers go in."""
        import torch

        live = self.spec.model
        return torch.device(self.spec.device) if live is None else next(live.original_model.parameters()).device

    @cached_property
    def info(self) -> ModelInfo:
        """The facts; what plain transformers cannot watch is not lacking here: hooks show it, or not."""
        found = super().info
        seen = {
            layer: {site: why for site, why in reasons.items() if why not in (UNWATCHED, BRIDGED)}
            for layer, reasons in found.lacking.items()
        }
        found = replace(found, lacking={layer: reasons for layer, reasons in seen.items() if reasons})
        if self.unknown is None:
            return found
        parameters = {id(p): p.numel() for p in (getattr(*held[0]) for held in self.owners().holding.values())}
        return replace(found, d_mlp=self.bridge.cfg.d_mlp or 0, n_parameters=sum(parameters.values()))

    @cached_property
    def hooks(self) -> dict[str, str]:
        """The hook of each site that this bridge has, by trying: a hook that stays silent is none."""
        return probed(self)

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites that were seen to fire."""
        return tuple(name for name in SITES if name in self.hooks or site(name).whole)

    def names(self, layer: int | None) -> tuple[str, ...]:
        """The tensors of a layer; families without a table run here, but have no tensors to name."""
        if self.unknown is not None:
            raise self.unknown
        return super().names(layer)

    def owners(self) -> Owners:
        """Which modules held each parameter before they were wrapped."""
        self.bridge  # noqa: B018 - booted now
        return self._owners

    def parameter(self, name: str) -> torch.Tensor:
        """A parameter by the name it had before it was wrapped."""
        module, leaf = self.owners().holding[name][0]
        with turn_of(self.module):
            found: torch.Tensor = getattr(module, leaf).detach()
        return found

    def check_editable(self, place: Place, name: str) -> None:
        """Refuse edits of what the bridge has copied: they would change nothing, in silence."""
        if self.copied and place.slot.part:
            raise ModelError(
                f"{self.name}: TransformerLens computes with copies of {place.theirs}: an edit of {name} would change "
                "nothing; open the model with `loader: transformers`"
            )

    def save(self, directory: Path, twin: Twin) -> str:  # noqa: ARG002
        """Refused: the modules are wrapped, under other names than a file has."""
        raise ModelError(f"{self.name}: open it with `loader: transformers`, which can write it; a bridge cannot")

    def close(self) -> None:
        """Let go of the bridge and the module."""
        super().close()
        self._bridge = None

    def _config(self) -> Any:
        return self.spec.model.original_model.config if self.spec.model is not None else super()._config()

    def _layout(self) -> Layout:
        try:
            stored = self.checkpoint.tensors if self.checkpoint is not None else ()
            family_of(self.config, self.spec.path, stored, bridged=True)
        except ModelError as error:
            self.unknown = error
            self._check_bridged()
            return outline(self.config, self.bridge.cfg)
        return super()._layout()

    def _check_bridged(self) -> None:
        """Refuse what is no stack of layers over tokens, or what TransformerLens does not name, before it is built."""
        model_type = self.config.model_type
        if getattr(self.config, "is_encoder_decoder", False):
            raise ModelError(f"{self.name}: {model_type} has two stacks of layers; one is what can be run here")
        if not hasattr(self.config, "vocab_size"):
            raise ModelError(
                f"{self.name}: {model_type} reads other things than tokens, and they are all that is run here"
            )
        if self.spec.model is None and not refused.is_named(self.model_class().__name__):
            raise ModelError(f"TransformerLens names no {self.model_class().__name__}; {self.unknown}")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Each parameter under its first name, as it was before it was wrapped."""
        if self.spec.model is None:
            return super()._shapes()
        seen: dict[int, str] = {}
        owners = self.owners()
        for name, held in owners.holding.items():
            seen.setdefault(id(getattr(*held[0])), name)
        return {name: tuple(self.parameter(name).shape) for name in seen.values()}


def outline(config: Any, cfg: Any) -> Layout:
    """The sizes of a family without a table, as TransformerLens knows them; no tensors."""
    unknown = Family(config.model_type, (config.model_type,), "", "", {}, {}, {}, position="unknown", norm="unknown")
    sizes = Sizes(cfg.n_heads, cfg.n_key_value_heads or cfg.n_heads, cfg.d_head, cfg.d_model)
    return Layout(unknown, sizes, {layer: {} for layer in (None, *range(cfg.n_layers))}, {})


def probed(model: BridgedModel) -> dict[str, str]:
    """{site: hook} of the hooks that fire with the right shape in a layer; scores only if they are scores."""
    import torch

    lacking = model.info.lacking
    if "blocks.0.hook_in" not in model.bridge.hook_dict:
        raise ModelError(f"{model.name}: TransformerLens shows no single stack of layers of {model.info.family}")
    block = f"blocks.{min(model.info.layers, key=lambda n: ('pattern' in lacking.get(n, {}), n))}."
    wanted = {name: [n for n in names if block + n in model.bridge.hook_dict] for name, names in HOOKS.items()}
    middle = _middle(model)
    wanted["resid_mid"] = [n for n in middle if block + n in model.bridge.hook_dict]
    seen: dict[str, Any] = {}
    hooks = [
        (block + name, lambda tensor, hook: seen.update({hook.name.removeprefix(block): tensor.detach()}))
        for names in wanted.values()
        for name in names[:1]
    ]
    ids, mask = proof_prompt(model)
    ids, mask = ids[:1], mask[:1]
    with torch.no_grad(), warnings.catch_warnings(), model.bridge.hooks(fwd_hooks=hooks):
        warnings.simplefilter("ignore")
        model.bridge(ids, attention_mask=mask.long(), return_type="logits")
    found = {}
    for name, names in wanted.items():
        array = seen.get(names[0]) if names else None
        if array is not None and tuple(array.shape) == site(name).shape(model.info, *ids.shape):
            found[name] = names[0]
    if "scores" in found:
        scores, pattern = seen[found["scores"]].float(), seen[HOOKS["pattern"][0]].float()
        if not torch.allclose(scores.softmax(-1), pattern, atol=1e-4):
            del found["scores"]
    return found


def _middle(model: BridgedModel) -> tuple[str, ...]:
    """Where the stream lies between attention and MLP: nowhere if they are parallel."""
    lacking = model.info.lacking.get(0, {})
    if "resid_mid" in lacking or getattr(model.bridge.cfg, "parallel_attn_mlp", False):
        return ()
    # Of a family without a table nobody knows where its norms stand: what its second norm reads is taken.
    first = not model.info.facts.position_is_known or model.info.facts.norm_first
    return ("ln2.hook_in",) if first else ("ln1.hook_out",)


def _booted(model: BridgedModel, module: Any) -> Any:
    with quiet_transformers(), refused.as_before():
        from transformer_lens.model_bridge import TransformerBridge

        module.set_attn_implementation("eager")
        settings = {"dtype": model.dtype, "device": model.spec.device, "tokenizer": _no_tokenizer()}
        try:
            return TransformerBridge.boot_transformers(model.spec.path, hf_model=module, **settings)
        except Exception as error:
            # It ends one of its messages with all that it knows, on several screens.
            why = re.sub(r"\s*Available architectures: .*", "", str(error), flags=re.DOTALL)
            other = "open it with `loader: transformers`" if model.unknown is None else str(model.unknown)
            raise ModelError(
                f"{model.name}: TransformerLens cannot wrap {type(module).__name__} "
                f"({type(error).__name__}: {why}); {other}"
            ) from error


def _no_tokenizer() -> Any:
    """A tokenizer of nothing: a bridge wants one (and would load it anew), and gets token numbers only."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    empty = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))  # noqa: S106 - a token, not a password
    return PreTrainedTokenizerFast(tokenizer_object=empty, unk_token="?", pad_token="?")  # noqa: S106


def _named_plainly(owners: Owners) -> Owners:
    return Owners({name.replace(_WRAPPED, ""): held for name, held in owners.holding.items()}, owners.head)
