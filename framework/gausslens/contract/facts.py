"""What a family of models adds to the sizes: norm, position, scale and the rest, each with its type.

A loader tells them as a mapping, ``ModelInfo(facts={"norm": "rms", ...})``. What mathematics depends on is read through
the properties below: a fact that the loader did not tell is refused by its name, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from .errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..maths.effective_forms import Scoring
    from ..maths.rotary import Rotation
    from .model import HeadAxis, ModelInfo

Norm = Literal["rms", "layer"]
UNKNOWN = "unknown"
# Each fact that mathematics reads, and what it is in words; HOOKS.md lists them for authors of loaders.
WORDS = {
    "norm": "which norm stands before attention, 'rms' or 'layer'",
    "norm_epsilon": "what that norm adds to a variance",
    "norm_first": "whether it stands before attention, or behind it",
    "unnormed_layers": "the layers in which no norm stands before attention",
    "gains": "whether norms have gains among the weights",
    "biases": "the names of attention's biases, as ('b_Q', 'b_V')",
    "position": "how position enters: 'rotary', 'learned', 'sinusoidal', 'alibi', 'buckets', 'disentangled', 'none' or "
    "'unknown'",
    "alibi_slopes": "for each head what a score gains for each token that its key is further on",
    "distance_buckets": "how many buckets of distance there are, and from which distance on all are in the last",
    "rotary": "for each layer the frequencies and the scaling of its rotation, and whether it turns pairs",
    "query_norm": "whether q and k have norms of their own",
    "query_norm_over": "over what these norms go: 'head', each head by itself, or 'all' heads together",
    "query_norm_late": "whether these norms stand behind the rotation",
    "products": "for each layer {name: factors} of the tensors that are products of others",
    "latent_epsilon": "what the norms of latents add to a mean square",
    "scale": "for each layer what q . k is multiplied by",
    "soft_cap": "the soft cap of scores, None where there is none",
    "sliding_window": "for each layer how far back it sees, None where it sees everything",
    "query_growth": "for each layer (b, n, s) where q at t is multiplied by 1 + b log(1 + floor((t + s) / n)), or None",
    "clip": "between -c and c q, k and v are kept, None where they are not",
    "sinks": "whether a number for each head stands beside the scores in the softmax",
    "parallel": "whether attention and MLP read the same stream",
    "embedding_scale": "what rows of W_E are multiplied by where they enter the stream",
    "residual_scale": "what outputs of attention and MLP are multiplied by where they are added to the stream",
    "logit_scale": "what logits are multiplied by, before a final soft cap",
    "one_layer": "whether all layers have the same tensors, and one layer runs at each depth",
    "crossed": "whether keys and values are of another stack: attention from a decoder to its encoder",
    "difference": "whether it is the difference of two models, which the host makes: weights that run as no model",
    "head_axes": "which axis of a tensor is that of heads, where its name does not say it",
    "experts": "for each layer how many experts its MLP has, 0 where it is one MLP",
}
# What a loader need not tell, as most families are so.
USUAL: Mapping[str, Any] = {
    "unnormed_layers": (),
    "products": {},
    "query_norm_over": "head",
    "query_norm_late": False,
    "query_growth": None,
    "clip": None,
    "sinks": False,
    "parallel": False,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "one_layer": False,
    "crossed": False,
    "difference": False,
    "head_axes": {},
    "experts": None,
}


class Facts(Mapping[str, Any]):
    """The facts of one model: the mapping that its loader told, and a typed property for each that is computed with."""

    def __init__(self, told: Mapping[str, Any], model: str, d_head: int) -> None:
        self._told, self._model, self._d_head = dict(told), model, d_head

    def __getitem__(self, name: str) -> Any:
        return self._told[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)

    def __repr__(self) -> str:
        return f"Facts({self._told!r})"

    def need(self, name: str) -> Any:
        """A fact that must be there; ModelError names it where the loader did not tell it, or could not know it."""
        value = self._told.get(name, USUAL.get(name, UNKNOWN))
        if isinstance(value, str) and value == UNKNOWN:
            words = WORDS.get(name, "a fact of the family")
            if self._told.get("difference"):
                raise ModelError(
                    f"{self._model} is a difference of weights and has no {name!r} ({words}), which this needs: "
                    "compute it on variants that are models"
                )
            raise ModelError(
                f"{self._model}: its loader does not tell {name!r} ({words}), which "
                f"this needs; a loader tells it in ModelInfo(facts={{{name!r}: ...}})"
            )
        return value

    @property
    def norm(self) -> Norm:
        """Which norm stands before attention."""
        norm: Norm = self.need("norm")
        return norm

    @property
    def epsilon(self) -> float:
        """What that norm adds to a variance."""
        return float(self.need("norm_epsilon"))

    @property
    def norm_first(self) -> bool:
        """Whether the norm stands before attention (or behind it, as in BERT)."""
        return bool(self.need("norm_first"))

    @property
    def unnormed_layers(self) -> tuple[int, ...]:
        """The layers in which no norm stands before attention."""
        return tuple(self.need("unnormed_layers"))

    @property
    def alibi_slopes(self) -> tuple[float, ...]:
        """For each head what a score gains for each token that its key is further on."""
        return tuple(self.need("alibi_slopes"))

    @property
    def distance_buckets(self) -> tuple[int, int]:
        """How many buckets of distance there are, and from which distance on all are in the last."""
        buckets, farthest = self.need("distance_buckets")
        return int(buckets), int(farthest)

    @property
    def products(self) -> Mapping[int | None, Mapping[str, tuple[str, ...]]]:
        """For each layer {name: factors} of the tensors that are products of others."""
        products: Mapping[int | None, Mapping[str, tuple[str, ...]]] = self.need("products")
        return products

    @property
    def latent_epsilon(self) -> float:
        """What the norms of latents add to a mean square."""
        return float(self.need("latent_epsilon"))

    @property
    def gains(self) -> bool:
        """Whether norms have gains among the weights."""
        return bool(self.need("gains"))

    @property
    def biases(self) -> tuple[str, ...]:
        """The biases that attention has."""
        return tuple(self.need("biases"))

    @property
    def position(self) -> str:
        """How position enters."""
        return str(self.need("position"))

    @property
    def position_is_known(self) -> bool:
        """Whether the loader knows how position enters."""
        return bool(self._told.get("position", UNKNOWN) != UNKNOWN)

    @property
    def query_norm(self) -> bool:
        """Whether q and k have norms of their own, which stand between the weights and the scores."""
        return bool(self.need("query_norm"))

    @property
    def query_norm_over(self) -> str:
        """Over what these norms go: each "head" by itself, or "all" heads together."""
        return str(self.need("query_norm_over"))

    @property
    def query_norm_late(self) -> bool:
        """Whether these norms stand behind the rotation."""
        return bool(self.need("query_norm_late"))

    @property
    def clip(self) -> float | None:
        """c where q, k and v are kept between -c and c; None where they are not."""
        clip = self.need("clip")
        return None if clip is None else float(clip)

    @property
    def sinks(self) -> bool:
        """Whether a number for each head stands beside the scores in the softmax."""
        return bool(self.need("sinks"))

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP read the same stream."""
        return bool(self.need("parallel"))

    @property
    def embedding_scale(self) -> float:
        """What rows of W_E are multiplied by where they enter the stream."""
        return float(self.need("embedding_scale"))

    @property
    def residual_scale(self) -> float:
        """What outputs of attention and MLP are multiplied by where they are added to the stream."""
        return float(self.need("residual_scale"))

    @property
    def logit_scale(self) -> float:
        """What logits are multiplied by, before a final soft cap."""
        return float(self.need("logit_scale"))

    @property
    def crossed(self) -> bool:
        """Whether keys and values are of another stack: they read what the encoder gives, not the stream."""
        return bool(self.need("crossed"))

    @property
    def difference(self) -> bool:
        """Whether it is the difference of two models' weights, and no model."""
        return bool(self.need("difference"))

    @property
    def head_axes(self) -> Mapping[str, HeadAxis | None]:
        """{tensor: (axis, "head" or "kv_head")} of tensors with a head axis beyond W_Q, b_Q, W_O, W_K, W_V, b_K, b_V.

        None says of one of these that it has no such axis.
        """
        axes: Mapping[str, HeadAxis | None] = self.need("head_axes")
        return axes

    @property
    def one_layer(self) -> bool:
        """Whether all layers have the same tensors: an edit of layer 0 is one of each."""
        return bool(self.need("one_layer"))

    @property
    def soft_cap(self) -> float | None:
        """c of c tanh(score / c); None where scores are not capped."""
        cap = self.need("soft_cap")
        return None if cap is None else float(cap)

    def scale(self, layer: int) -> float:
        """What q . k is multiplied by in a layer."""
        return float(self.need("scale")[layer])

    def query_growth(self, layer: int) -> tuple[float, float, float] | None:
        """(b, n, s) where q at position t is multiplied by 1 + b log(1 + floor((t + s) / n)); None where it is not."""
        told = self.need("query_growth")
        return None if told is None or told[layer] is None else tuple(told[layer])

    def experts(self, layer: int) -> int:
        """How many experts the MLP of a layer has; 0 where it is one MLP."""
        told = self.need("experts")
        return 0 if told is None else int(told[layer])

    def window(self, layer: int) -> int | None:
        """How many tokens back a layer sees; None where it sees everything before it."""
        window = self.need("sliding_window")[layer]
        return None if window is None else int(window)

    def rotation(self, layer: int) -> Rotation:
        """How a layer turns q and k; without rotary position it does not."""
        from ..maths.rotary import Rotation

        if self.position != "rotary":
            return Rotation(self._d_head)
        told = self.need("rotary")[layer]
        pairs = bool(told.get("pairs", False))
        start = int(told.get("start", 0))
        return Rotation(self._d_head, tuple(told["frequencies"]), float(told["scaling"]), pairs, start)

    def scoring(self, layer: int) -> Scoring:
        """What a layer does between the stream and its scores, for ``maths.effective_forms.effective``."""
        from ..maths.effective_forms import Scoring

        return Scoring(
            *(self.norm, self.epsilon, self.norm_first, self.query_norm),
            *(self.rotation(layer), self.scale(layer), self.soft_cap),
            over_all=self.query_norm_over == "all",
            late=self.query_norm_late,
            clip=self.clip,
            growth=self.query_growth(layer),
            crossed=self.crossed,
        )

    @property
    def scoring_is_known(self) -> bool:
        """Whether the loader told all that ``scoring`` needs."""
        needed = {"norm", "norm_epsilon", "norm_first", "query_norm", "position", "scale", "soft_cap"}
        return all(self._told.get(name, UNKNOWN) != UNKNOWN for name in needed)

    @property
    def content_sites(self) -> tuple[str, str]:
        """The sites that tell q and k as the scores see them, but for position: behind their norms if they have any.

        ``content`` makes them so.
        """
        return ("q_rot", "k_rot") if self.position_is_known and self.query_norm else ("q", "k")

    def content(self, x: NDArray[Any], layer: int) -> NDArray[Any]:
        """q or k [prompt, position, head, d_head] of ``content_sites`` before position is applied: turned back."""
        return self.rotation(layer).undone(x) if self.content_sites == ("q_rot", "k_rot") else x


class FactsField:
    """The field of ModelInfo: a loader sets any mapping, readers get the typed Facts of that model."""

    @overload
    def __get__(self, info: None, owner: type) -> tuple[()]: ...
    @overload
    def __get__(self, info: ModelInfo, owner: type) -> Facts: ...
    def __get__(self, info: ModelInfo | None, owner: type) -> tuple[()] | Facts:
        # The class itself is asked for the default, which must be immutable: no facts.
        return () if info is None else Facts(vars(info)["_facts"], info.name, info.d_head)

    def __set__(self, info: ModelInfo, told: Mapping[str, Any] | tuple[()]) -> None:
        vars(info)["_facts"] = dict(told)
