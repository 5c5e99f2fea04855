"""The parity proof: what this model computes, what is captured, and what its tensors say, held against each other.

The model runs where it is, on one device or several; what it gave is compared on the CPU, which has every type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gausslens import Finding, LayerWeights, site

from ..families.refused import bridge_takes
from ..loading.config_and_tokenizer import claims_bridge
from ..loading.eager_answer import Answer, proof_batches, proof_sources, unseen_windows
from ..maths.rounding import FACTOR, softmax_moved, working_type
from .engine import refuse_overflow, wanted_sites
from .formulas_of_layer import NEEDED, At, Left, Made, Sides, embedding_of, head_of, layer_of
from .forward_pass import Capture, Captured
from .vocabulary import sliced

if TYPE_CHECKING:
    from ..loading.pretrained import PretrainedModel

# Rows of logits that are made again of W_U: the last of each prompt.
HEAD_ROWS = 4


class Wide(LayerWeights):
    """The tensors of a layer on the CPU, in the type that they are judged in; each is read once."""

    def __init__(self, model: Any, layer: int | None, dtype: torch.dtype) -> None:
        super().__init__(model, layer)
        self._dtype, self._read = dtype, dict[str, torch.Tensor]()

    def __getitem__(self, name: str) -> Any:
        if self.layer is None:  # large, and read once
            rows = sliced(self._model, name)
            if rows is not None:
                return rows
            found = super().__getitem__(name).cpu()
            return found if name in ("W_E", "W_U") else found.to(self._dtype)
        if name not in self._read:
            self._read[name] = super().__getitem__(name).cpu().to(self._dtype)
        return self._read[name]


def prove(
    model: PretrainedModel, capture: type[Capture], reference: Answer | None, sites: Sequence[str] | None = None
) -> list[Finding]:
    """Short prompts, one of them padded, and a longer one where windows ask for it, with everything captured.

    Compared are logits (or the final hidden state) and patterns with the model's own eager attention; and in each
    layer, what the formulas make of our tensors with what was captured before it. ``sites`` are those that will be
    read: no others are proved.
    """
    proof = Proof(model, capture, reference, sites)
    with torch.no_grad():
        for number, (ids, mask) in enumerate(proof_batches(model)):
            proof.of_batch(number, ids, mask)
    short = "the prompts of the proof are shorter"
    proof.left |= {Left(f"a window of {width:,} tokens", (), short) for width in unseen_windows(model)}
    if not model.info.facts.position_is_known:
        no_table = "gausslens has no table of this family: that they are what their names say, TransformerLens says"
        others = [s for s in model.sites if s not in ("pattern", "logits") and proof._is_asked(s)]
        proof.left |= {Left(", ".join(others), tuple(others), no_table)} if others else set()
    return proof.findings()


class Proof:
    """What was found so far: of each comparison the worst place, as a part of what is allowed there."""

    def __init__(
        self, model: PretrainedModel, capture: type[Capture], reference: Answer | None, sites: Sequence[str] | None
    ) -> None:
        self.model, self.capture, self.reference = model, capture, reference
        self.asked = None if sites is None else frozenset(sites)
        self.wanted = wanted_sites(model, [s for s in NEEDED if s in model.sites and self._serves(s)], None)
        self.found: dict[str, Finding] = {}
        self.left: set[Left] = set()
        self._last: Mapping[str, torch.Tensor] | None = None

    def of_batch(self, number: int, ids: torch.Tensor, mask: torch.Tensor) -> None:
        """All comparisons on some prompts; a layer is let go of when it is done."""
        sources = proof_sources(self.model, len(ids))
        crossed = sources is not None and self.model.info.facts.crossed
        keys = (sources[1] if crossed and sources is not None else mask).cpu()
        there, here = mask, mask.cpu()

        def done(layer: int, captured: Captured) -> None:
            refuse_overflow(layer, captured.arrays)
            arrays = {name: array.cpu() for name, array in captured.arrays.items()}
            memory = capture.memory.cpu() if crossed and capture.memory is not None else None
            self._of_layer(layer, number, arrays, ids.cpu(), Sides(here, keys, memory))
            if layer == self.model.info.n_layers - 1:
                self._last = arrays

        headed = self.model.headed
        capture = self.capture(self.model, self.wanted, done)
        read = None if sources is None else (sources[0], sources[1].long())
        whole = capture.run(ids, there.long(), logits=headed, whole=True, sources=read)
        final = whole["logits" if headed else "final"] if headed or "final" in whole else None
        if final is None:
            return
        final = final.cpu()
        self._against_eager(number, final, here)
        end = "logits" if headed else "resid_post"
        if self._last is not None and "resid_post" in self._last and self._is_asked(end):
            self._of_head(self._last["resid_post"], final, here)

    def findings(self) -> list[Finding]:
        """All comparisons, then those that could not be made, with the reason."""
        left = sorted(self.left, key=lambda one: (one.what, one.reason))
        return [*self.found.values(), *(Finding(one.what, 0.0, 0.0, one.sites, one.reason) for one in left)]

    def _serves(self, name: str) -> bool:
        return self.asked is None or any(name in (s, *NEEDED.get(s, ())) for s in self.asked)

    def _is_asked(self, *names: str) -> bool:
        return self.asked is None or not self.asked.isdisjoint(names)

    def _of_layer(
        self, layer: int, number: int, arrays: Mapping[str, torch.Tensor], ids: torch.Tensor, sides: Sides
    ) -> None:
        model, dtype = self.model, working_type(self.model.dtype)
        if "pattern" in arrays and self.reference is not None and self._is_asked("pattern"):
            self._patterns(layer, number, arrays["pattern"], sides)
        if not model.info.facts.position_is_known:
            return
        wide = {name: array.to(dtype) for name, array in arrays.items()}
        weights = Wide(model, layer, dtype)
        rows = layer_of(At(model, layer, wide, weights, sides.to(dtype)))
        for made in rows:
            self._judge(made, f"{made.what} of layer {layer} from weights", arrays, sides)
        if layer == 0 and "resid_pre" in wide:
            for made in embedding_of(model, ids, Wide(model, None, dtype)):
                self._judge(made, f"{made.what} of layer 0 from weights", arrays, sides)

    def _judge(self, made: Made | Left, what: str, arrays: Mapping[str, torch.Tensor], sides: Sides) -> None:
        if not self._is_asked(*made.sites):
            return
        if isinstance(made, Left):
            self.left.add(made)
            return
        ours, theirs, bound = made.value, arrays[made.what], made.bound
        if site(made.what).square:  # [prompt, head, query, key]: rows of padding are nobody's numbers
            ours, theirs, bound = (a.transpose(1, 2) for a in (ours, theirs, bound))
        mask = sides.keys if site(made.what).of_keys and not site(made.what).square else sides.queries
        self._note(what, made.sites, ours[mask], theirs[mask], bound[mask])

    def _of_head(self, resid: torch.Tensor, final: torch.Tensor, mask: torch.Tensor) -> None:
        """Logits (the last rows of each prompt), or the final hidden state, of the stream after the last layer."""
        model, dtype = self.model, working_type(self.model.dtype)
        if not model.info.facts.position_is_known:
            return
        rows = mask & (mask.sum(1, keepdim=True) - mask.cumsum(1) < HEAD_ROWS)
        what = "logits from weights" if model.headed else "final hidden state from weights"
        sites = ("logits",) if model.headed else ("resid_post",)
        for made in head_of(model, resid[rows].to(dtype), Wide(model, None, dtype)):
            if isinstance(made, Left):
                self.left.add(made)
            else:
                some, value, bound = made
                self._note(what, sites, value, final[rows][:, some], bound)

    def _against_eager(self, number: int, final: torch.Tensor, mask: torch.Tensor) -> None:
        """Logits, or the final hidden state, against the model's own: where they differ, no site can be trusted."""
        if self.reference is None:
            return
        theirs, noise = (one.cpu() for one in self.reference.final_of(number))
        bound = (FACTOR * noise).expand_as(theirs)
        what = "logits" if self.model.headed else "final hidden state"
        self._note(what, (), final[mask], theirs, bound)

    def _patterns(self, layer: int, number: int, ours: torch.Tensor, sides: Sides) -> None:
        """Captured patterns against the model's own eager ones."""
        assert self.reference is not None
        having = [n for n in self.model.info.layers if "pattern" not in self.model.info.lacking.get(n, {})]
        theirs = self.reference.patterns_of(number, having.index(layer))
        for row, *found in theirs:
            pattern, moved = (one.cpu() for one in found)
            n, keys = int(sides.queries[row].sum()), int(sides.keys[row].sum())
            bound = softmax_moved(pattern, FACTOR * moved[:, None, None]) + FACTOR * moved[:, None, None] * pattern
            mine = ours[row, :, :n, :keys]
            self._note(f"pattern of layer {layer}", ("pattern",), mine, pattern, bound + 1e-6 * pattern.max())

    def _note(
        self, what: str, sites: tuple[str, ...], ours: torch.Tensor, theirs: torch.Tensor, bound: torch.Tensor
    ) -> None:
        found = difference(what, sites, ours, theirs, bound)
        before = self.found.get(what)
        if before is None or found.share > before.share:
            self.found[what] = found


def difference(
    what: str, sites: tuple[str, ...], ours: torch.Tensor, theirs: torch.Tensor, bound: torch.Tensor
) -> Finding:
    """The difference that is largest as a part of what is allowed there; infinite where they are not finite alike."""
    if ours.shape != theirs.shape:
        return Finding(what, float("inf"), 0.0, sites)
    wide = torch.promote_types(bound.dtype, theirs.dtype)
    apart = ours.to(wide) - theirs.to(wide)
    if not bool(torch.isfinite(apart.sum())):  # -inf of what may not be seen, or what should not be
        finite = theirs.isfinite()
        if not torch.equal(finite, ours.isfinite()) or bool(theirs.isnan().any()):
            return Finding(what, float("inf"), 0.0, sites)
        apart, bound = apart[finite], bound[finite]
    if not apart.numel():
        return Finding(what, 0.0, 0.0, sites)
    apart, bound = apart.abs().flatten(), bound.flatten()
    worst = int((apart / bound.clamp_min(torch.finfo(torch.float32).tiny)).argmax())
    return Finding(what, float(apart[worst]), float(bound[worst]), sites)


def other_ways(model: PretrainedModel, findings: Sequence[Finding]) -> list[str]:
    """What else can be tried where findings do not hold, of what may work for this model alone."""
    of_tables = any("from weights" in f.what for f in findings)
    like_rounding = max(f.share for f in findings) < 1000
    ways = []
    if like_rounding and model.spec.model is None and model.dtype != torch.float64:
        wider = "float64" if model.dtype == torch.float32 else "float32"
        ways.append(f"model: {{dtype: {wider}}}: the differences are small, and its own rounding may be why")
    of_patterns = any("pattern" in f.sites for f in findings)
    if of_patterns and model.spec.model is not None and model.config._attn_implementation != "eager":
        ways.append(
            'build the module with attn_implementation="eager": some families keep what they were built with, here '
            f"{model.config._attn_implementation}; or open it from a directory"
        )
    if not of_tables and model.spec.model is None and claims_bridge(model.spec.path):
        if getattr(model, "unknown", None) is None:
            ways.append("model: {loader: weights}: its tensors are read rightly; analyses of weights need no capture")
        ways += _other_engines(model)
    concerned = sorted({s for f in findings for s in f.sites})
    if concerned and all(f.sites for f in findings):
        ways.append(
            f"leave out what reads {', '.join(concerned)}: analyses of other sites run (not with edits, nor beside "
            "analyses of weights or those that run the model themselves, which depend on all)"
        )
    return ways


def _other_engines(model: PretrainedModel) -> list[str]:
    """The loader whose engine captures in another way, where it takes this model."""
    if hasattr(model, "unknown"):  # it is a bridge
        return [] if model.unknown else ["model: {loader: transformers}: captured without TransformerLens"]
    takes = model.headed and bridge_takes(model.config)
    return ["model: {loader: transformer-lens}: captured by TransformerLens"] if takes else []
