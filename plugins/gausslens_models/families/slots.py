"""How a family of models is written down: slots for tensors, taps for sites."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, SITES


@dataclass(frozen=True)
class Slot:
    """Where a tensor of ours lies in the checkpoint; "a|b" where files and modules name it differently.

    ``form`` is how it is cut into heads or turned (layout.FORMS). ``part`` picks one of several that are fused: "q",
    "k", "v" behind each other, "q|", "k|", "v|" interleaved head by head, "0/2", "1/2" halves. ``turned`` says that the
    checkpoint stores [in, out] (Conv1D) where a linear layer stores [out, in]. ``plus`` is added to what is stored; the
    first ``skip`` rows are nobody's.
    """

    tensor: str
    form: str = "as is"
    part: str = ""
    turned: bool = False
    plus: float = 0.0
    skip: int = 0


@dataclass(frozen=True)
class Tap:
    """Where a site is seen: the input ("in") or the output ("out") of a module of the layer, and its part if fused.

    The module "" is the layer itself. ``item`` picks one of several outputs; ``plus`` is a parameter that the model
    adds afterwards. Of a module that is called several times ``first`` takes the first call.
    """

    module: str
    end: str = "out"
    part: str = ""
    item: int = 0
    plus: str = ""
    first: bool = False


# Why an engine lacks sites of some families.
UNWATCHED = (
    "this family computes it where nothing can see it; where TransformerLens can, `loader: transformer-lens` does"
)

# The stream around a layer, of every family.
STREAM = {"resid_pre": Tap("", "in"), "resid_post": Tap("")}


@dataclass(frozen=True)
class Other:
    """Layers of another kind, in a family that mixes kinds: their tensors, and why they lack what attention has."""

    tensors: dict[str, Slot]
    reason: str


@dataclass(frozen=True)
class Family:
    """A family: where its layers, tensors and sites are.

    ``optional`` tensors may be absent from a whole checkpoint. ``ignored`` are parts of names that hold nothing of
    ours (buffers, heads of other tasks). ``lacking`` gives reasons for sites that no layer has; ``when`` rows apply
    where the config has that value: (key, value, taps, lacking). ``others`` are layers without attention, by what the
    config calls them in ``layer_types``. ``positions`` are rows (key, value, position) that go before ``position``.
    ``stored`` and ``stored_layers`` are the tensors of a layer and its prefix where files differ from modules.
    ``watched`` says whether its attention calls a function that can be registered; if not, sites are what taps show.
    ``refused`` are rows (key, value, reason) of configs that cannot be served. ``unnormed`` layers have no norm before
    attention. ``query_scaled`` says that q is scaled before it is turned, and handed over so. ``epsilon`` holds where
    the config tells none.
    """

    name: str
    model_types: tuple[str, ...]
    layers: str
    attention: str
    tensors: dict[str, Slot]
    taps: dict[str, Tap]
    outside: dict[str, Slot]
    optional: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)
    lacking: dict[str, str] = field(default_factory=dict)
    when: tuple[tuple[str, object, dict[str, Tap], dict[str, str]], ...] = ()
    others: dict[str, Other] = field(default_factory=dict)
    position: str = "rotary"
    watched: bool = True
    refused: tuple[tuple[str, object, str], ...] = ()
    stored_layers: str = ""
    stored: dict[str, Slot] = field(default_factory=dict)
    positions: tuple[tuple[str, object, str], ...] = ()
    unnormed: tuple[int, ...] = ()
    query_scaled: bool = False
    epsilon: float = 1e-5
    norm: str = "rms"
    norm_first: bool = True
    causal: bool = True

    def kind(self, config: Any, layer: int) -> str:
        """The kind of a layer where it has no attention, else nothing."""
        kinds = getattr(config, "layer_types", None) if self.others else None
        return kinds[layer] if kinds is not None and kinds[layer] in self.others else ""

    def position_in(self, config: Any) -> str:
        """How position enters, as this config has it."""
        return next((p for key, value, p in self.positions if getattr(config, key, None) == value), self.position)

    def sites_of_attention(self) -> tuple[str, ...]:
        """The sites that a layer without attention lacks: those of heads, and what is seen at modules of attention."""
        at = {name for name, tap in self.taps.items() if f"{tap.module}.".startswith(f"{self.attention}.")}
        return tuple(name for name in SITES if name in HEAD_AXIS or name in KV_HEAD_AXIS or name in at)

    def as_stored(self, names: Iterable[str]) -> Family:
        """The table of these names: that of files, where a layer of theirs is among them, else that of modules."""
        first = re.compile(rf"(^|\.){re.escape(self.stored_layers)}\.0\.")
        if self.stored and any(first.search(name) for name in names):
            tensors = {name: self.stored[name] for name in self.tensors if name in self.stored}
            return replace(self, layers=self.stored_layers, tensors=tensors, stored={})
        return self

    def slots(self, kind: str) -> dict[str, Slot]:
        """The tensors of a layer of this kind."""
        return self.others[kind].tensors if kind else self.tensors


def norm(ours: str, theirs: str, plus: float = 0.0, bias: bool = False) -> dict[str, Slot]:
    """The gain of a norm, and its bias."""
    slots = {f"{ours}.w": Slot(f"{theirs}.weight", plus=plus)}
    return slots | ({f"{ours}.b": Slot(f"{theirs}.bias")} if bias else {})


def attention(q: str, k: str, v: str, o: str) -> dict[str, Slot]:
    """Attention as four linear layers."""
    return {
        "W_Q": Slot(f"{q}.weight", "query"),
        "W_K": Slot(f"{k}.weight", "key_value"),
        "W_V": Slot(f"{v}.weight", "key_value"),
        "W_O": Slot(f"{o}.weight", "output"),
        "b_Q": Slot(f"{q}.bias", "query"),
        "b_K": Slot(f"{k}.bias", "key_value"),
        "b_V": Slot(f"{v}.bias", "key_value"),
        "b_O": Slot(f"{o}.bias"),
    }


def fused(qkv: str, o: str, interleaved: str = "", turned: bool = False) -> dict[str, Slot]:
    """Attention with q, k and v in one matrix."""
    slots = {}
    for letter, form in (("Q", "query"), ("K", "key_value"), ("V", "key_value")):
        part = letter.lower() + interleaved
        slots[f"W_{letter}"] = Slot(f"{qkv}.weight", form, part, turned)
        slots[f"b_{letter}"] = Slot(f"{qkv}.bias", form, part)
    return slots | {"W_O": Slot(f"{o}.weight", "output", turned=turned), "b_O": Slot(f"{o}.bias")}


def mlp(up: str, down: str, turned: bool = False) -> dict[str, Slot]:
    """An MLP of two linear layers."""
    return {
        "W_in": Slot(f"{up}.weight", "in_out", turned=turned),
        "b_in": Slot(f"{up}.bias"),
        "W_out": Slot(f"{down}.weight", "in_out", turned=turned),
        "b_out": Slot(f"{down}.bias"),
    }
