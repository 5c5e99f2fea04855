"""Capture engines and runners: what runs a model, changes it on the way, and hands out what it computes; the proof."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

from ..guard import torch_for_tokens
from .errors import ModelError
from .sites import TABLE, site

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .batches import Request, Sink
    from .descriptors import Analysis
    from .model import LayerWeights, ModelInfo, OpenModel
    from .prompts import Prompt, Tokens
    from .twin import Twin


@dataclass(frozen=True)
class Where:
    """What the function of an intervention is handed: which numbers of the model its tensor holds.

    ``heads`` are those along its axis of heads (key/value heads at k, v, k_rot), none where it has no such axis;
    ``prompts`` the rows of the batch; ``positions`` those along its axis of positions, or of queries; ``mask``
    [prompt, position] says which of these tokens are there.
    """

    site: str
    layer: int | None
    heads: tuple[int, ...]
    prompts: tuple[int, ...]
    positions: tuple[int, ...]
    mask: torch.Tensor


@dataclass(frozen=True)
class Intervention:
    """A change of what flows through one site of one layer; None is the layer of sites of the whole model.

    ``function(tensor, where)`` is given the site's tensor, in the order of ``site(name).dims``, cut to these heads and
    positions (None: all), and returns one of the same shape, or None: unchanged. ``heads`` are numbers of the model: of
    key/value heads at k, v and k_rot, each of which serves several query heads. ``positions`` count from the first
    token of a row; of scores and patterns they are the queries. In generation a function sees new tokens alone, as
    what was before is kept; one that needs the whole text says ``whole``: every step then runs over all of it.
    """

    site: str
    layer: int | None
    function: Callable[[torch.Tensor, Where], torch.Tensor | None]
    heads: Sequence[int] | None = None
    positions: Sequence[int] | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        for what in ("heads", "positions"):
            named = getattr(self, what)
            if named is not None:
                object.__setattr__(self, what, whole_numbers(named, f"{_at(self)}: {what}"))
        if not _takes_two(self.function):
            raise ModelError(f"{_at(self)}: its function is called as function(tensor, where), and cannot be")


class Runner(Protocol):
    """Runs the model for a ``forward`` analysis, which sees the layers and heads in view (``info``).

    ``base=True`` is the model without the variant's edits. ``grad=True`` keeps the graph: gradients of logits by what
    was captured. The runner of a model of two stacks takes ``**tokens.beside(prompts)`` besides: ``sources``, (ids,
    mask) of what its encoder reads. ``tokenise`` makes tokens of an analysis's own prompts, where its descriptor says
    ``texts``: see ReadingRunner.

    ``replace(layer, scores, pattern, v)`` returns the pattern or the head outputs to use instead, or None: what an
    intervention at ``pattern`` or ``z`` does. It stays for a release, for what was written before there were these.

    ``tokenise`` makes tokens of an analysis's own prompts, where its descriptor says ``texts``.
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def whole(self) -> Runner: ...

    def forward(
        self,
        tokens: np.ndarray,
        sites: Sequence[str] = (),
        replace: Callable[..., torch.Tensor | None] | None = None,
        base: bool = False,
        mask: np.ndarray | None = None,
        sources: tuple[np.ndarray, np.ndarray] | None = None,
        interventions: Sequence[Intervention] = (),
        grad: bool = False,
    ) -> Mapping[Any, torch.Tensor]: ...

    def generate(self, tokens: np.ndarray, most: int, **how: Any) -> list[np.ndarray]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens: ...

    def weights(self, layer: int | None) -> LayerWeights: ...


class CaptureEngine(Protocol):
    """What an engine's class looks like; it is made without arguments.

    An engine may have a method ``prove(model: OpenModel, sites: Sequence[str] | None = None) -> Sequence[Finding]``
    besides: it holds what it captures (of these sites; None: all) against the model's own answer. The host asks for it
    once for each model, before the first capture of a run; ``sites`` may be left out of it. It may have
    ``remedies(model: OpenModel, findings: Sequence[Finding]) -> Sequence[str]``, too: what a user can do where findings
    do not hold.
    """

    def sites(self, model: OpenModel) -> tuple[str, ...]:
        """The sites that this engine can give for this model."""
        ...

    def run(self, twin: Twin, tokens: Tokens, shard: np.ndarray, request: Request, sink: Sink) -> None:
        """Run one shard (indices into tokens) and call ``sink`` once for each layer asked for."""
        ...

    def runner(self, twin: Twin) -> Runner:
        """The runner of ``forward`` analyses."""
        ...


@dataclass(frozen=True)
class Finding:
    """One comparison of a parity proof: what was compared, the worst difference, and what is allowed there.

    ``sites`` are those that it speaks of; none stands for all. ``left_out`` is the reason where the comparison could
    not be made: it then holds, and is told.
    """

    what: str
    difference: float
    tolerance: float
    sites: tuple[str, ...] = ()
    left_out: str = ""

    @property
    def holds(self) -> bool:
        """Whether they are equal within the tolerance; a difference that is not a number is none."""
        return self.difference <= self.tolerance

    @property
    def share(self) -> float:
        """The difference as a part of what is allowed; infinite where nothing is, or where it is no number."""
        if self.difference == 0:
            return 0.0
        found = self.difference / self.tolerance if self.tolerance else math.inf
        return math.inf if math.isnan(found) else found


class Interventions:
    """The interventions of one pass, checked; an engine asks at each site what flows on from there.

    ``mask`` [prompt, position] says which tokens are there, ``keys`` [prompt, key] where keys are of another stack.
    Of a pass that begins later in a text ``start`` is its first position; ``prompts`` are the rows where these are not
    0, 1, 2, ...; ``more`` says that more tokens follow, so that positions beyond these rows are for later.
    """

    def __init__(
        self,
        given: Sequence[Intervention],
        info: ModelInfo,
        sites: Sequence[str],
        mask: torch.Tensor,
        keys: torch.Tensor | None = None,
        start: int = 0,
        prompts: Sequence[int] | None = None,
        more: bool = False,
    ) -> None:
        self.given = several(given)
        self._mask, self._keys, self._start = mask.bool(), mask.bool() if keys is None else keys.bool(), start
        self._prompts = tuple(range(len(mask)) if prompts is None else prompts)
        self._of: dict[tuple[int | None, str], list[Intervention]] = {}
        for one in self.given:
            checked(one, info, sites)
            most = self._mask_of(one).shape[1]
            beyond = [n for n in one.positions or () if n >= most]
            if beyond and not more:
                raise ModelError(f"{_at(one)}: there are no positions {_listed(beyond)}: these rows have {most}")
            self._of.setdefault((one.layer, one.site), []).append(one)
        self._info = info

    def sites_of(self, layer: int | None) -> tuple[str, ...]:
        """The sites of a layer at which something is changed."""
        return tuple(name for of, name in self._of if of == layer)

    def __call__(self, layer: int | None, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What flows on: the tensor itself where nothing is changed here."""
        for one in self._of.get((layer, name), ()):
            tensor = self._changed(one, tensor)
        return tensor

    def _mask_of(self, one: Intervention) -> torch.Tensor:
        """Which of the tokens along its positions are there: those of k and v may be of another stack."""
        row = TABLE[one.site]
        return self._keys if row.of_keys and not row.square else self._mask

    def _changed(self, one: Intervention, tensor: torch.Tensor) -> torch.Tensor:
        row, mask = TABLE[one.site], self._mask_of(one)
        axis = row.dims.index("query" if row.square else "position")
        last = self._start + mask.shape[1]
        asked = range(self._start, last) if one.positions is None else one.positions
        positions = tuple(int(n) for n in asked if self._start <= n < last)
        if not positions:
            return tensor
        every = row.heads(self._info) if row.heads_dim else ()
        heads = every if one.heads is None else tuple(int(h) for h in one.heads)
        places: dict[int, list[int]] = {}
        if one.positions is not None:
            places[axis] = [n - self._start for n in positions]
        if row.heads_dim and one.heads is not None:
            places[row.dims.index(row.heads_dim)] = [every.index(h) for h in heads]
        seen = mask[:, [n - self._start for n in positions]].clone()
        where = Where(one.site, one.layer, heads, self._prompts, positions, seen)
        return _put(tensor, list(places.items()), lambda part: _answer(one, part.clone(), where))


def several(given: Iterable[Intervention]) -> list[Intervention]:
    """Interventions as a list, which can be read again at each prompt and token."""
    if isinstance(given, Intervention):
        raise ModelError("interventions are several: write [Intervention(...)], in brackets")
    return list(given)


def whole_numbers(named: Any, what: str) -> tuple[int, ...]:
    """Heads or positions as numbers; a mask would be taken for the numbers 0 and 1."""
    each = getattr(named, "tolist", lambda: named)()
    try:
        numbers = list(each)
        if not any(isinstance(number, bool | str) for number in numbers):
            return tuple(index(number) for number in numbers)
    except TypeError:
        pass
    raise ModelError(f"{what} are whole numbers in a list, as [0, 3]; of a mask they are numpy.flatnonzero(mask)")


def _takes_two(function: Any) -> bool:
    if not callable(function):
        return False
    try:
        signature(function).bind(None, None)
    except ValueError:  # of C, without a signature
        return True
    except TypeError:
        return False
    return True


def checked(one: Intervention, info: ModelInfo, sites: Sequence[str]) -> None:
    """Refuse an intervention at a site, layer, head or position that there is none of: it would change nothing."""
    if not isinstance(one, Intervention):
        raise ModelError(f"interventions are gausslens.Intervention(site, layer, function), not {type(one).__name__}")
    row, at = site(one.site), _at(one)
    if one.site not in sites:
        why = info.why_lacking(one.site)
        raise ModelError(f"{at}: {info.name} has no such site{f' ({why})' if why else ''}; it has {', '.join(sites)}")
    if row.whole != (one.layer is None):
        said = "is of the whole model: its layer is None" if row.whole else "is of a layer: say which, as layer=0"
        raise ModelError(f"{at}: the site {said}")
    if one.layer is not None and one.layer not in info.layers:
        raise ModelError(f"{at}: {info.name} has no such layer in view; it has {_listed(info.layers)}")
    lacking = info.lacking.get(one.layer, {}).get(one.site) if one.layer is not None else None
    if lacking:
        raise ModelError(f"{at}: {lacking}")
    if one.heads is not None and row.heads_dim is None:
        raise ModelError(f"{at}: the site has no heads: leave heads out")
    for what, named in (("heads", one.heads), ("positions", one.positions)):
        numbers = list(named or ())
        if named is not None and (not numbers or len(set(numbers)) < len(numbers)):
            raise ModelError(f"{at}: {what} are {numbers}: name one or more, each once; all of them without {what}")
    known = row.heads(info)
    unknown = [h for h in one.heads or () if h not in known]
    if unknown:
        kind = "key/value heads" if row.heads_dim == "kv_head" else "heads"
        raise ModelError(f"{at}: there are no {kind} {_listed(unknown)} in view; there are {_listed(known)}")
    if any(n < 0 for n in one.positions or ()):
        raise ModelError(f"{at}: positions count from the first token of a row, from 0")


def _at(one: Intervention) -> str:
    return f"intervention at {one.site}" + ("" if one.layer is None else f" of layer {one.layer}")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:16])) + (" ..." if len(numbers) > 16 else "")


def _put(
    tensor: torch.Tensor,
    places: Sequence[tuple[int, Sequence[int]]],
    change: Callable[[torch.Tensor], torch.Tensor | None],
) -> torch.Tensor:
    """The tensor with what ``change`` makes of these places along these axes; the same one where it makes nothing."""
    if not places:
        made = change(tensor)
        return tensor if made is None else made
    import torch

    (axis, numbers), *others = places
    index = torch.as_tensor(list(numbers), device=tensor.device)
    part = tensor.index_select(axis, index)
    made = _put(part, others, change)
    return tensor if made is part else tensor.index_copy(axis, index, made)


def _answer(one: Intervention, given: torch.Tensor, where: Where) -> torch.Tensor | None:
    """What the function returns, if that can take the place of what it was given."""
    import torch

    before = given._version
    answer = one.function(given, where)
    if answer is None:
        if given._version != before:
            raise ModelError(f"{_at(one)}: its function changed the tensor in place and returned None: return it")
        return None
    if not isinstance(answer, torch.Tensor):
        raise ModelError(f"{_at(one)}: its function returned {type(answer).__name__}: return a tensor, or None")
    if answer.layout != torch.strided or answer.is_meta:
        kind = "one without values (meta)" if answer.is_meta else f"a tensor of layout {answer.layout}"
        raise ModelError(f"{_at(one)}: its function returned {kind}: return a dense tensor, or None")
    if answer.shape != given.shape or not answer.is_floating_point():
        raise ModelError(
            f"{_at(one)}: its function was given {given.dtype} {list(given.shape)} ({', '.join(TABLE[one.site].dims)}) "
            f"and returned {answer.dtype} {list(answer.shape)}: the shape must stay, and numbers be floating"
        )
    return answer.to(given)


class NarrowedRunner:
    """A runner of which the layers and heads in view are seen; ``whole`` is the runner of the whole model.

    It takes and hands out numbers of the model: of sites with heads those in view, of layers those in view. Tokens of
    prompts of an analysis's own follow from its parameters, which are in its key, and from the tokenizer, which is
    there only where its descriptor says ``texts=True``: elsewhere ``refused`` is why it may make none.
    """

    def __init__(self, runner: Any, twin: Twin, info: ModelInfo, refused: str | None = None) -> None:
        self._runner: Runner = runner
        self.info = info
        self._twin = twin
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        """What else an engine's runner can do, it does for the whole model."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._runner, name)

    @property
    def whole(self) -> NarrowedRunner:
        """The runner of the whole model."""
        return NarrowedRunner(self._runner, self._twin, self._twin.info, self._refused)

    def forward(
        self,
        tokens: np.ndarray,
        sites: Sequence[str] = (),
        replace: Callable[..., torch.Tensor | None] | None = None,
        base: bool = False,
        mask: np.ndarray | None = None,
        **how: Any,
    ) -> Mapping[Any, torch.Tensor]:
        """As the engine's runner, of what is in view."""
        import numpy as np

        given = self._given(how, replace)
        with torch_for_tokens(np.size(tokens)):
            found = self._runner.forward(tokens, sites, base=base, mask=mask, **given)
        return {key: self._cut(key, array) for key, array in found.items() if self._seen(key)}

    def generate(self, tokens: np.ndarray, most: int, **how: Any) -> list[np.ndarray]:
        """As the engine's runner; interventions act in view alone."""
        return self._runner.generate(tokens, most, **self._given(how, how.pop("replace", None)))

    def weights(self, layer: int | None) -> LayerWeights:
        """The tensors of a layer as the edits leave them, those of the heads in view."""
        return self._twin.weights(layer, self.info)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token numbers."""
        return self._runner.decode(ids)

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        """Prompts of an analysis's own as the tokens that the model would see."""
        if self._refused is not None:
            raise ModelError(self._refused)
        return self._twin.base.tokenise(prompts)

    def _given(self, how: Mapping[str, Any], old: Callable[..., torch.Tensor | None] | None) -> dict[str, Any]:
        """What the engine's runner is given; an engine of before is not told of what it does not know."""
        given = dict(how)
        changes = [self._narrowed(one) for one in several(given.pop("interventions", ()))]
        if changes:
            self._check_intervenes()
            given["interventions"] = changes
        if old is not None:
            given["replace"] = self._replacing(old)
        return given

    def _check_intervenes(self) -> None:
        known = signature(self._runner.forward).parameters
        if "interventions" not in known and all(p.kind is not p.VAR_KEYWORD for p in known.values()):
            raise ModelError(
                f"{self.info.name}: the capture engine that runs it was written before there were interventions: its "
                "runner takes none"
            )

    def _narrowed(self, one: Intervention) -> Intervention:
        checked(one, self.info, tuple(TABLE) if one.site in TABLE else (one.site,))
        row = TABLE[one.site]
        if one.heads is not None or row.heads_dim is None or row.heads(self.info) == row.heads(self._twin.info):
            return one
        return replace(one, heads=row.heads(self.info))

    def _replacing(self, old: Callable[..., torch.Tensor | None]) -> Callable[..., torch.Tensor | None]:
        """``replace`` sees the layers and heads in view; what it returns takes their places."""

        heads, kv_heads = list(self.info.heads), list(self.info.kv_heads)

        def replacing(layer: int, scores: torch.Tensor, pattern: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
            if layer not in self.info.layers:
                return None
            if len(heads) == self._twin.info.n_heads:
                return old(layer, scores, pattern, v)
            seen = pattern[:, heads]
            given = old(layer, scores[:, heads], seen, v[:, :, kv_heads])
            if given is None:
                return None
            if given.shape != seen.shape:
                raise ModelError(
                    f"replace gave {list(given.shape)} in layer {layer}: where heads {_listed(heads)} are in view a "
                    f"pattern is {list(seen.shape)}; head outputs are replaced by an intervention at z"
                )
            made = pattern.clone()
            made[:, heads] = given.to(made)
            return made

        return replacing

    def _seen(self, key: Any) -> bool:
        return not isinstance(key, tuple) or key[0] in self.info.layers

    def _cut(self, key: Any, array: torch.Tensor) -> torch.Tensor:
        row = TABLE.get(key[1] if isinstance(key, tuple) else key)
        if row is None or row.heads_dim is None:
            return array
        heads, every = row.heads(self.info), row.heads(self._twin.info)
        if heads == every:
            return array
        import torch

        places = torch.as_tensor([every.index(h) for h in heads], device=array.device)
        return array.index_select(row.dims.index(row.heads_dim), places)


def no_texts(analysis: Analysis) -> str | None:
    """Why a forward analysis may make no tokens of prompts of its own; None where it may."""
    if analysis.texts:
        return None
    return (
        f"{analysis.name} makes tokens of prompts of its own, which depend on the tokenizer: its descriptor must say "
        "texts=True, so that its key does"
    )
