"""Descriptors: what a plugin contributes, as data.

A descriptor names its classes and functions as strings, ``"package.module:name"``, which are resolved on first use: so
listing plugins imports no mathematics. ``version`` is raised whenever the numbers change: results of the old one are
then computed again. Names are ``plugin.thing`` for analyses and edits, plain names for loaders, engines and sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Shape = Literal["stream", "weights", "forward", "derived"]
Differences = Literal["never", "also", "only"]


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """What all descriptors say: a name, a version of the numbers, one line of text, and the parameter model.

    ``formerly`` are the names that it had before, the first one first: run files that use them go on working. Keys,
    seeds and parts of a store have the first name, so that a new name alone computes nothing again.
    """

    name: str
    version: int
    summary: str
    parameters: str = "gausslens.parameters:NoParameters"
    formerly: tuple[str, ...] = ()

    @property
    def first_name(self) -> str:
        """The name that keys, seeds and stores have."""
        return self.formerly[0] if self.formerly else self.name

    @property
    def every_name(self) -> tuple[str, ...]:
        """Its name, and those that it had."""
        return (self.name, *self.formerly)


@dataclass(frozen=True, kw_only=True)
class Loader(Descriptor):
    """A way to open a model.

    ``parameters`` are its keys of ``model:`` beyond path, loader, dtype, device. ``claims(path: str) -> bool`` must be
    light: it looks at names and small files. Of the loaders that claim a path, ``auto`` takes the highest ``rank``,
    then the first by name. ``open(spec: ModelSpec) -> OpenModel`` reads config and tokenizer, weights only when
    asked.
    """

    claims: str
    open: str
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Engine(Descriptor):
    """A capture engine: ``engine`` names a class (CaptureEngine, engines.py) that serves models of these loaders."""

    engine: str
    serves: tuple[str, ...]
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class PromptSource(Descriptor):
    """A source of prompts: ``prompts(parameters, context: SourceContext) -> list[Prompt]``.

    ``random`` says that the prompts depend on the seed of the run. Where prompts come with what reads them (saved
    activations, say), ``model`` names a function of the parameters that returns the `model:` block, as a mapping or
    None, that stands for the one which a run file leaves out. ``fingerprint``: as of an analysis.
    """

    prompts: str
    random: bool = False
    model: str | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Edit(Descriptor):
    """A change to weights, layer by layer: ``edit(weights: LayerWeights, parameters, generators) -> {name: Tensor}``.

    ``touches`` names the tensors it may return; with a name outside the layers in it (W_E, W_U, W_pos), the edit is
    also called with ``weights.layer`` None. ``touches`` may instead be ``"package.module:function"`` of the parameters.
    A ``random`` edit draws from its generators, and must change each tensor it returns. ``keeps`` is the rung of its
    twins on the ladder of nulls (gausslens.maths.ladder), by what they share with the model: "before" (training:
    nothing), "gains", "scale", "entries", "spectrum", or a word of your own; or ``"package.module:function"`` of the
    parameters, which may give None. Without it the name of the variant stands there. ``check`` is
    ``"package.module:function"`` of (model, parameters), which raises a GausslensError where the edit cannot be made.
    ``inputs`` is ``"package.module:function"`` of (parameters, steps), which picks the results that the edit finds in
    ``weights.inputs``. ``fingerprint``: as of an analysis.
    """

    edit: str
    touches: tuple[str, ...] | str
    random: bool = False
    keeps: str | None = None
    check: str | None = None
    inputs: str | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Analysis(Descriptor):
    """Something computed: ``analysis`` names a class of the given shape (see analyses.py).

    random       draws numbers: the seed of the run is then part of the key
    row_blocks   wants patterns and scores in blocks of query rows (stream)
    column_blocks  can take logits some of the vocabulary at a time, where they do not fit into max_memory (stream)
    all_layers   wants the batches of all layers at once (stream)
    by_layer     makes of each layer what depends on no other: instances that saw other layers of the same prompts can
                 be merged, so that a model that is read a layer at a time is read once for all prompts (stream); what
                 ``join`` needs of a layer is all in what ``layer`` gave, so that processes may share layers (weights)
    bulk         writes large arrays through context.bulk (stream)
    texts        its result holds text of tokens, or depends on it: text and tokenizer are then part of the key
    scope        of a derived analysis: "variant" (once for each draw) or "run" (once)
    names        parameters that only name labels or variants of results that it reads, and are not told in its own:
                 they are not part of the key, for the keys of its inputs are
    exchangeable dimensions over which the null may be pooled for an empirical p, as ("head",)
    any_size     its numbers mean the same whatever the size of a model: a null of models of other sizes is compared
    differences  whether it takes the difference of two models' weights (weights): "never", for its numbers are of a
                 model alone, as are scores, gains and norms; "also", for matrices are all it reads; "only"
    crossed      knows attention between two stacks, whose keys are other tokens than its queries (stream, forward)
    prompts      prompts used where the run file gives none, as {"source": "text", "text": [...]}
    estimate     "package.module:function" of (parameters, info, tokens) -> Estimate of memory, disk and time
    settle       "package.module:function" of (parameters, info, tokens) -> parameters, in which what was left open has
                 the value that it means for this model and these prompts (None without any): the key has that value
    fingerprint  "package.module:function" of the parameters -> str, what the files or services hold that they name
                 otherwise than by ``Files``: part of the key
    knows        which of "variant" and "draw" it reads from its context: names are then part of the key
    """

    shape: Shape
    analysis: str
    random: bool = False
    row_blocks: bool = False
    column_blocks: bool = False
    all_layers: bool = False
    by_layer: bool = False
    bulk: bool = False
    texts: bool = False
    scope: Literal["variant", "run"] = "variant"
    names: tuple[str, ...] = ()
    exchangeable: tuple[str, ...] = ()
    any_size: bool = False
    differences: Differences = "never"
    crossed: bool = False
    prompts: Mapping[str, Any] | None = None
    estimate: str | None = None
    settle: str | None = None
    fingerprint: str | None = None
    knows: tuple[Literal["variant", "draw"], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReportSection(Descriptor):
    """A part of the report: ``section(results: Results) -> list[Figure]`` for the analyses it names.

    ``analyses`` are names of analyses; the section is drawn when the store holds a result of one of them. It returns
    figures as data (gausslens.figures), never HTML. ``order`` places it: lower is higher on the page. ``question`` is
    what it answers, in words that a reader has before knowing the analysis: its heading, where it is given.
    """

    section: str
    analyses: tuple[str, ...]
    order: int = 100
    question: str = ""


D = TypeVar("D")


@dataclass(frozen=True)
class Owner:
    """Who contributes a descriptor."""

    plugin: str
    distribution: str
    version: str


@dataclass(frozen=True)
class Owned(Generic[D]):
    """A descriptor and its owner."""

    descriptor: D
    owner: Owner
