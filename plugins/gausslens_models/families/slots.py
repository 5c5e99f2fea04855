"""How a family of models is written down: slots for tensors, taps for sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, SITES


@dataclass(frozen=True)
class Slot:
    """Where a tensor of ours lies in the checkpoint; "a|b" where files and modules name it differently.

    ``form`` is how it is cut into heads or turned (layout.FORMS), or "row" for the one row of a matrix. ``part`` picks
    one of several that are fused: "q", "k", "v" behind each other, "q|", "k|", "v|" interleaved head by head, "q*",
    "k*", "v*" group by group (the queries of a key/value head before it), "q4", "k4", "v4" in four parts of query,
    value, key each, "0/2", "1/2" halves, "0::2", "1::2" every other. ``turned`` says that the checkpoint stores [in,
    out] (Conv1D) where a linear layer stores [out, in]. ``plus`` is added to what is stored; the first ``skip`` rows
    are nobody's, of ``behind`` those up to the row whose number this key of the config tells. A tensor of experts has
    their axis first.
    """

    tensor: str
    form: str = "as is"
    part: str = ""
    turned: bool = False
    plus: float = 0.0
    skip: int = 0
    behind: str = ""


@dataclass(frozen=True)
class Tap:
    """Where a site is seen: the input ("in") or the output ("out") of a module of the layer, and its part if fused.

    The module "" is the layer itself. ``item`` picks one of several outputs; ``plus`` is a parameter that the model
    adds afterwards. Of a module that is called several times ``first`` takes the first call. ``copied`` is what
    the model writes over afterwards. ``shared`` is what all heads have in common, behind their own part.
    """

    module: str
    end: str = "out"
    part: str = ""
    item: int = 0
    plus: str = ""
    first: bool = False
    copied: bool = False
    shared: Tap | None = None


# Why plain transformers lacks sites of some families, and of which TransformerLens shows the scores.
UNWATCHED = "this family computes it where nothing can see it"
BRIDGED = f"{UNWATCHED} but TransformerLens: `loader: transformer-lens` shows it"

# What is left where tensors are none that a table can say.
BY_BRIDGE = "`loader: transformer-lens` may show its patterns, without weights"
NO_LOADER = "no loader opens it"

# The stream around a layer, of every family.
STREAM = {"resid_pre": Tap("", "in"), "resid_post": Tap("")}


@dataclass(frozen=True)
class Other:
    """Layers of another kind, in a family that mixes kinds: their tensors, and why they lack what attention has."""

    tensors: dict[str, Slot]
    reason: str


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts in place of the MLP of a layer: its tensors, those that may be absent, where it is seen.

    The layers whose tensors are these are found by their names: families mix them with layers that have one MLP.
    """

    tensors: dict[str, Slot]
    optional: tuple[str, ...] = ()


ATTENTION_BIASES = ("b_Q", "b_K", "b_V", "b_O")
NO_ROTATION = "position is not applied to q and k in this family"
PARALLEL = "attention and MLP read the same stream: there is nothing between them"
MLP_TENSORS = ("W_in", "W_gate", "W_out", "b_in", "b_gate", "b_out")
OF_EXPERTS = "the MLP of this layer is a mixture of experts: each token goes through some of them"


class View:
    """A config, some of whose keys are read under other names."""

    def __init__(self, config: Any, names: Mapping[str, str]) -> None:
        self._config, self._names = config, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, self._names.get(name, name))


@dataclass(frozen=True)
class Family:
    """A family: where its layers, tensors and sites are.

    ``optional`` tensors may be absent from a whole checkpoint. ``ignored`` are parts of names that hold nothing of
    ours (buffers, heads of other tasks). ``lacking`` gives reasons for sites that no layer has; ``when`` rows apply
    where the config has that value: (key, value, taps, lacking). ``others`` are layers without attention, by what the
    config calls them in ``layer_types``; ``mixture`` is the MLP of the layers that have experts.

    What the mathematics of a family adds, as facts.py reads it: ``pairs`` rotates neighbours (2 i, 2 i + 1), not
    halves; ``backwards`` by negative angles; ``unrotated`` says which layers are not rotated: the key of a list with 0
    for them, or what ``layer_types`` calls them; ``scale`` is what q . k is multiplied by, or the config's key of it;
    ``multipliers`` are {fact: (key, power)} or {fact: (key, power, key that switches it on)}. ``query_norm`` says over
    what norms of q and k go: "head", each head by itself, or "all" heads together. A model has them where their gains
    are among its tensors, or where the key ``query_norm_bare`` of the config says that it has some without;
    ``query_norm_late``: after the rotation, in layers that rotate. ``parallel`` says whether attention and MLP read the
    same stream, or which key of the config says so. ``unproved`` are sites that no formula of ours makes, and why: a
    reason, or (key, reason) where the config switches it on.

    ``positions`` are rows (key, value, position) that go before ``position``. ``stored`` are tensors of a layer that
    files hold fused, and modules apart. ``watched`` says whether its attention calls a function that can be registered;
    if not, sites are what taps show, and ``bridged`` whether TransformerLens shows the scores. ``refused`` are rows
    (key, value, reason) of configs that cannot be served, ``weights_alone`` of such that cannot run; the value True
    stands for any that is set, a range for those in it. ``unnormed`` layers have no norm before attention.
    ``query_scaled`` says that q is scaled before it is turned, and handed over so. ``epsilon`` holds where the config
    tells none, or one that the norms do not use (``epsilon_of_config``). ``shared`` says that one stored layer serves
    every depth. ``latent`` attention turns the last dimensions of a head: "pairs", "halves", or the config's key that
    says which (pairs are then handed over as halves).

    Of a model of two stacks each has a row: ``stack`` says which ("encoder", "decoder", or "cross": attention from the
    one to the other), ``view`` which key of the config holds a size of this stack, ``waves`` what its positions are
    made of that no weight holds: the first one, or the key of the config of the one before it, and how much fewer
    steps than half the width their frequencies have. ``start`` is what targets begin with: the config's
    decoder_start_token_id, or their own last token.
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
    bridged: bool = False
    refused: tuple[tuple[str, object, str], ...] = ()
    weights_alone: tuple[tuple[str, object, str], ...] = ()
    stored: dict[str, Slot] = field(default_factory=dict)
    positions: tuple[tuple[str, object, str], ...] = ()
    unnormed: tuple[int, ...] = ()
    query_scaled: bool = False
    latent: str = ""
    unproved: Mapping[str, str | tuple[str, str]] = field(default_factory=dict)
    shared: bool = False
    epsilon: float = 1e-5
    epsilon_of_config: bool = True
    norm: str = "rms"
    norm_first: bool = True
    causal: bool = True
    mixture: Mixture | None = None
    pairs: bool = False
    unrotated: str = ""
    scale: str | float = ""
    multipliers: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    query_norm: str = "head"
    query_norm_bare: str = ""
    query_norm_late: bool = False
    backwards: bool = False
    parallel: bool | str = False
    read_as: str = ""  # the table of another family that a model is read by, as nobody listed its type
    stack: str = ""
    view: Mapping[str, str] = field(default_factory=dict)
    waves: tuple[int | str, int] | None = None
    start: str = ""

    def viewed(self, config: Any) -> Any:
        """The config as this row reads it: of one stack of two, its own sizes under the usual keys."""
        return View(config, self.view) if self.view else config

    def kind(self, config: Any, layer: int) -> str:
        """The kind of a layer where it has no attention, else nothing."""
        kinds = getattr(config, "layer_types", None) if self.others else None
        return kinds[layer] if kinds is not None and kinds[layer] in self.others else ""

    def reason(self, rows: tuple[tuple[str, object, str], ...], config: Any) -> str:
        """The reason of the first of these rows (refused or weights_alone) that the config meets, else nothing."""
        for key, value, reason in rows:
            found = config
            for name in key.split("."):
                found = getattr(found, name, None)
            if found == value or (value is True and bool(found)) or (isinstance(value, range) and found in value):
                return f"{self.name} with {key}={found!r} {reason}"
        return ""

    def stored_layer(self, layer: int) -> int:
        """The number by which the tensors of a layer are stored."""
        return 0 if self.shared else layer

    def position_in(self, config: Any) -> str:
        """How position enters, as this config has it."""
        return next((p for key, value, p in self.positions if getattr(config, key, None) == value), self.position)

    def sites_of_attention(self) -> tuple[str, ...]:
        """The sites that a layer without attention lacks: those of heads, and what is seen at modules of attention."""
        at = {name for name, tap in self.taps.items() if f"{tap.module}.".startswith(f"{self.attention}.")}
        return tuple(name for name in SITES if name in HEAD_AXIS or name in KV_HEAD_AXIS or name in at)

    def as_stored(self, names: Iterable[str]) -> Family:
        """The table of these names: with tensors as files hold them, where one of theirs is among the names."""
        fused = tuple(f".{slot.tensor}" for slot in self.stored.values())
        return replace(self, tensors=self.tensors | self.stored) if any(n.endswith(fused) for n in names) else self

    def slots(self, kind: str, mixed: bool = False) -> dict[str, Slot]:
        """The tensors of a layer of this kind; ``mixed`` with experts in place of the MLP."""
        found = self.others[kind].tensors if kind else self.tensors
        if not mixed or self.mixture is None:
            return found
        return {name: slot for name, slot in found.items() if name not in MLP_TENSORS} | self.mixture.tensors

    def may_lack(self, ours: str, mixed: bool) -> bool:
        """Whether a whole checkpoint may be without this tensor."""
        of_experts = mixed and self.mixture is not None and ours in self.mixture.tensors
        return ours in (self.mixture.optional if of_experts and self.mixture is not None else self.optional)

    def is_mixed(self, names: Iterable[str]) -> bool:
        """Whether a layer with these tensors is one of experts."""
        if self.mixture is None:
            return False
        own = {s.tensor for s in self.mixture.tensors.values()} - {s.tensor for s in self.tensors.values()}
        return any(name.partition("#")[0] in own for name in names)


def unwatched(attention: str, output: str) -> dict[str, Tap]:
    """What a module of attention hands on, where it calls no function that can be registered."""
    return {"pattern": Tap(attention, item=1), "z": Tap(output, "in")}


def attention_taps(q: str, k: str, v: str, o: str) -> dict[str, Tap]:
    """Where attention of four modules is seen; what it adds is the output of ``o``."""
    return {"q": Tap(q), "k": Tap(k), "v": Tap(v), "attn_out": Tap(o)}


def fused_taps(qkv: str, o: str, interleaved: str = "") -> dict[str, Tap]:
    """Where attention with q, k and v in one matrix is seen."""
    return {letter: Tap(qkv, part=letter + interleaved) for letter in "qkv"} | {"attn_out": Tap(o)}


def mlp_taps(pre: str, down: str, out: str, part: str = "") -> dict[str, Tap]:
    """Where an MLP is seen: what enters its activation, what ``down`` reads, and what it adds."""
    return {"mlp_pre": Tap(pre, part=part), "mlp_post": Tap(down, "in"), "mlp_out": Tap(out)}


def norm(ours: str, theirs: str, plus: float = 0.0, bias: bool = False) -> dict[str, Slot]:
    """The gain of a norm, and its bias."""
    gain, added = ("|".join(f"{name}.{part}" for name in theirs.split("|")) for part in ("weight", "bias"))
    return {f"{ours}.w": Slot(gain, plus=plus)} | ({f"{ours}.b": Slot(added)} if bias else {})


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


def gated_mlp(gate: str, up: str, down: str) -> dict[str, Slot]:
    """An MLP whose up projection is multiplied by an activated gate."""
    return mlp(up, down) | {"W_gate": Slot(f"{gate}.weight", "in_out"), "b_gate": Slot(f"{gate}.bias")}


def fused_gate(gate_up: str, down: str) -> dict[str, Slot]:
    """A gated MLP with gate and up behind each other in one matrix."""
    return {
        "W_gate": Slot(f"{gate_up}.weight", "in_out", "0/2"),
        "W_in": Slot(f"{gate_up}.weight", "in_out", "1/2"),
        "W_out": Slot(f"{down}.weight", "in_out"),
    }


def experts(
    router: str,
    at: str = "mlp.experts",
    shared: str = "",
    shared_router: str = "",
    bias: str = "",
    turned: bool = False,
) -> Mixture:
    """Experts fused as transformers holds them, gate and up behind each other; a router, and experts of every token."""
    found = {
        "W_router": Slot(f"{router}.weight", "in_out"),
        "W_gate": Slot(f"{at}.gate_up_proj", "in_out", "0/2", turned=turned),
        "W_in": Slot(f"{at}.gate_up_proj", "in_out", "1/2", turned=turned),
        "W_out": Slot(f"{at}.down_proj", "in_out", turned=turned),
    }
    optional: tuple[str, ...] = ()
    if bias:
        found["b_choice"] = Slot(bias)
        optional = ("b_choice",)
    if shared:
        own = gated_mlp(f"{shared}.gate_proj", f"{shared}.up_proj", f"{shared}.down_proj")
        found |= {name[:2] + "shared_" + name[2:]: slot for name, slot in own.items()}
        optional += tuple(name for name in found if "shared_" in name)
    if shared_router:
        found["W_shared_router"] = Slot(f"{shared_router}.weight", "in_out")
    return Mixture(found, optional)
