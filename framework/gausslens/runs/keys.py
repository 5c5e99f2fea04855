"""Keys: SHA-256 of canonical JSON of all that the numbers of a step depend on, and of nothing else.

What was renamed is keyed by the first name that it had (``formerly``).
Not in a key: names of runs, variants and labels, comments, batch size, threads, device, versions of distributions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..contract.digests_and_seeds import canonical, digest
from ..contract.errors import ModelError
from ..contract.twin import touched

if TYPE_CHECKING:
    from ..contract.analyses import StepRef
    from ..contract.descriptors import Owned
    from ..contract.model import ModelInfo, OpenModel
    from ..contract.twin import EditCall
    from .shuffled_prompts import Reads
    from .study import ModelCall, Use

# The distribution whose loaders have in their fingerprint all that they tell.
OURS = "gausslens"

# Raised when the host changes what is computed for every analysis (sharding, merging, the comparison with a null).
HOST_VERSION = 1
# Raised when the numbers of comparisons with a null change.
COMPARISON_VERSION = 7

# Raised when errors over prompts are computed in another way.
ERRORS_VERSION = 1

Ingredients = Mapping[str, Any]


def key_of(ingredients: Ingredients) -> str:
    """The key of a step."""
    return digest(ingredients)


def is_random(edits: Sequence[EditCall]) -> bool:
    """Whether the twin depends on the seed of the run and on the draw."""
    return any(call.edit.descriptor.random for call in edits)


def of_model(call: ModelCall, info: ModelInfo) -> dict[str, Any]:
    """Which model: what its weights are, and how they were read. What files hold is in the fingerprint.

    The fingerprints of our own loaders are of config and weights, from which their facts are made; what other loaders
    tell of a model beside its weights counts as it is told.
    """
    paths = call.parameters.paths()
    told = {name: value for name, value in call.parameters.canonical().items() if name not in paths}
    loader = _used(call.loader, call.parameters.first_named(told))
    made = {"fingerprint": info.fingerprint, "dtype": info.dtype, "loader": loader}
    return made if call.loader.owner.distribution == OURS else made | {"facts": _facts(info)}


def _facts(info: ModelInfo) -> str:
    """A digest of what a loader tells of a model: facts, and how heads share keys; not its words for people."""
    facts = {name: fact for name, fact in info.facts.items() if name not in ("notes", "longest")}
    return digest(_plain([facts, info.causal, info.kv_of_head, info.lacking]))


def _plain(value: Any) -> Any:
    """Any value of a fact as JSON that is equal where it is, in any process."""
    if isinstance(value, Mapping):
        pairs = [[_plain(name), _plain(held)] for name, held in value.items()]
        return {"mapping": sorted(pairs, key=canonical)}
    if isinstance(value, set | frozenset):
        return {"set": sorted(map(_plain, value), key=canonical)}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if hasattr(value, "tolist"):  # numpy and torch
        return _plain(value.tolist())
    raise ModelError(
        f"a loader tells a fact that is a {type(value).__name__}, of which no key can be made: "
        "give numbers, text, lists or mappings"
    )


def of_use(use: Use, seed: int, place: StepRef) -> dict[str, Any]:
    """Which analysis, with every parameter; the seed of the run where it draws, names of its place where it knows."""
    descriptor = use.analysis.descriptor
    used = _used(use.analysis, use.parameters.keyed(without=descriptor.names))
    if use.layers is not None:
        used["layers"] = sorted(set(use.layers))
    if use.heads is not None:
        used["heads"] = sorted(set(use.heads))
    if descriptor.random:
        used["seed"] = seed
    if use.fingerprint is not None:
        used["fingerprint"] = use.fingerprint
    if descriptor.knows:
        used["knows"] = {name: getattr(place, name) for name in descriptor.knows}
    return used


def of_edits(
    edits: Sequence[EditCall], info: ModelInfo, seed: int, draw: int | None, read: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """Which edits, in order; the keys of what each reads; the seed of the run and the draw where one of them draws."""
    made: dict[str, Any] = {"edits": [_edit(call, info) for call in edits]}
    for edit, inputs in zip(made["edits"], read, strict=False):
        if inputs:
            edit["inputs"] = list(inputs)
    if is_random(edits):
        made |= {"seed": seed, "draw": draw}
    return made


def of_text(reads: Reads, model: OpenModel) -> dict[str, Any]:
    """The text of the prompts, and how token numbers are text: of a step whose result holds or depends on it."""
    return {"prompts": reads.text_digest, "tokenizer": getattr(model, "tokenizer_digest", None)}


def of_errors(groups: int) -> dict[str, Any]:
    """Errors over prompts, of a step that has them: how prompts are dealt decides the cut into shards, too."""
    return {"version": ERRORS_VERSION, "groups": groups}


def of_results(use: Use, seed: int, place: StepRef, inputs: Sequence[str]) -> dict[str, Any]:
    """A derived step: the analysis and the keys of the results it reads, in order."""
    return {"host": HOST_VERSION, "analysis": of_use(use, seed, place), "inputs": list(inputs)}


def of_comparison(of: str, null: Sequence[str], exchangeable: Sequence[str], as_sets: bool = False) -> dict[str, Any]:
    """A comparison with a null: the keys of both sides; ``as_sets``: heads are paired by rank."""
    made: dict[str, Any] = {
        "host": HOST_VERSION,
        "comparison": COMPARISON_VERSION,
        "of": of,
        "null": list(null),
        "exchangeable": list(exchangeable),
    }
    return made | {"heads": "by rank"} if as_sets else made


def _used(owned: Owned[Any], parameters: dict[str, Any]) -> dict[str, Any]:
    return {"name": owned.descriptor.first_name, "version": owned.descriptor.version, "parameters": parameters}


def _edit(call: EditCall, info: ModelInfo) -> dict[str, Any]:
    made = _used(call.edit, call.parameters.keyed()) | {"touches": sorted(touched(call, info))}
    if call.fingerprint is not None:
        made["fingerprint"] = call.fingerprint
    if call.layers is not None:
        made["layers"] = sorted(set(call.layers))
    if call.heads is not None:
        made["heads"] = sorted(set(call.heads))
    return made
