"""Saved maps as prompts, layers and heads: what axes of arrays are, how much of a map is real, what is wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens import InputError, did_you_mean

from .maths.map_faults import Padding, fault, fault_of_scores, scores_gap, softmax_gap, tolerance_of
from .stored_arrays import MAPS, Stored, arrays_of, files_of, of_one_group

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .parameters import MatricesParameters

    Floats = NDArray[np.float64]

LEADING = ("prompt", "layer", "head")
# What a file may hold beside the maps; k, v and k_rot have key/value heads.
BESIDE = ("q", "k", "v", "z", "q_rot", "k_rot", "scores")
OF_KV_HEADS = ("k", "v", "k_rot")
ABOUT = ("lengths", "mask", "tokens", "text")
_SHOWN = 8
# A softmax of q and k that is further from the maps than this is told.
_GAP = 1e-2


@dataclass(frozen=True)
class Sizes:
    """How much an array holds along each axis; ``rows`` and ``columns`` are its last two."""

    prompt: int
    layer: int
    head: int
    rows: int
    columns: int


@dataclass(frozen=True)
class Side:
    """What tokens a number is of: all, or queries or keys alone where these are other tokens."""

    called: str
    prefix: str = ""
    of_rows: bool = True
    of_keys: bool = True

    def size(self, maps: Sizes) -> int:
        """How many there are in each map."""
        return maps.rows if self.of_rows else maps.columns

    def real(self, place: Place) -> NDArray[np.int64]:
        """Those of a prompt that are real."""
        return place.real if self.of_rows else place.keys

    def cut(self, place: Place, tokens: range) -> Place:
        """The prompt with these of them."""
        kept = np.array(tokens, dtype=np.int64)
        return replace(place, real=kept if self.of_rows else place.real, keys=kept if self.of_keys else place.keys)


BOTH = (Side("tokens"),)
APART = (Side("queries", of_keys=False), Side("keys", "key_", of_rows=False))


class MapFile:
    """The arrays of one file (or of a directory of .npy files, one for each array) with what their axes are."""

    def __init__(self, path: Path, arrays: Mapping[str, Stored], options: MatricesParameters) -> None:
        self.path, self.crossed = path, options.crossed
        self.name = path.stem
        named = of_one_group(path, arrays, options.array)
        chosen = self._chosen(named, options.array and options.array.rpartition("/")[2])
        self.held: dict[str, Stored] = {"pattern": named[chosen]}
        self.held |= {site: named[site] for site in BESIDE if site in named and site != chosen}
        about = [f"{side.prefix}{name}" for side in (APART if self.crossed else BOTH) for name in ABOUT]
        self.about = {name: named[name] for name in about if name in named and name != chosen}
        # Words, or numbers of tokens, may be called text too; they do not say which tokens are text.
        self.about = {n: a for n, a in self.about.items() if not n.endswith("text") or _says_which(a)}
        read = {id(named[name]) for name in {*self.held, *self.about, chosen} & set(named)}
        self.unread = sorted(name for name, stored in arrays.items() if id(stored) not in read)
        self.axes = {site: self._axes(site, options.axes) for site in self.held}
        self.sizes = {site: self._sizes(site) for site in self.held}
        self._check_shapes()

    @property
    def maps(self) -> Sizes:
        """The sizes of the maps."""
        return self.sizes["pattern"]

    def take(self, site: str, prompt: int, layer: int, head: int | None = None) -> NDArray[Any]:
        """[head, row, column] of one site in one layer of one prompt; [row, column] of one head."""
        place = {"prompt": prompt, "layer": layer, "head": head}
        axes = self.axes[site]
        index = tuple(slice(None) if place[a] is None else slice(place[a], place[a] + 1) for a in axes)  # type: ignore[operator]
        part = self.held[site].take((*index, slice(None), slice(None)))
        order = [axes.index(a) for a in LEADING if a in axes]
        part = part.transpose(*order, len(axes), len(axes) + 1).reshape(-1, *part.shape[-2:])
        return part[0] if head is not None else part

    def _chosen(self, named: Mapping[str, Stored], wanted: str | None) -> str:
        """What the maps are called."""
        if wanted is not None:
            if wanted not in named:
                raise InputError(f"{self.path}: holds no array {wanted!r}{did_you_mean(wanted, named)}")
            return wanted
        found = [name for name in MAPS if name in named]
        if len(found) == 1 or (not found and len(named) == 1):
            return found[0] if found else next(iter(named))
        said = f"holds {', '.join(sorted(named))}"
        raise InputError(f"{self.path}: {said}: say which are the maps with `array:`, or call them pattern")

    def _axes(self, site: str, given: Sequence[str] | None) -> tuple[str, ...]:
        shape = self.held[site].shape
        leading = len(shape) - 2
        if not 0 <= leading <= 3:
            raise InputError(
                f"{self.path}: {site} has shape {shape}; its axes are some of prompt, layer, head, and two of "
                f"{'tokens' if site in ('pattern', 'scores') else 'position and width'}"
            )
        if given is not None and (site == "pattern" or leading == len(given)):
            if leading != len(given):
                raise InputError(
                    f"{self.path}: {site} has shape {shape}, {leading} axes before query and key, and `axes:` names "
                    f"{len(given)}: {', '.join(given) or 'none'}"
                )
            return tuple(given)
        return LEADING[3 - leading :]

    def _sizes(self, site: str) -> Sizes:
        shape, axes = self.held[site].shape, self.axes[site]
        size = {name: shape[axes.index(name)] if name in axes else 1 for name in LEADING}
        if 0 in shape:
            raise InputError(f"{self.path}: {site} has shape {shape}: it is empty")
        if self.held[site].dtype.startswith(("complex", "str", "<U", "|S", "|V", "[(", "datetime")):
            raise InputError(f"{self.path}: {site} is of dtype {self.held[site].dtype}; attention is real numbers")
        return Sizes(**size, rows=shape[-2], columns=shape[-1])

    def _check_shapes(self) -> None:
        """Refuse maps that are not square unless keys are other tokens, and arrays that do not go with them."""
        maps = self.maps
        if maps.rows != maps.columns and not self.crossed:
            raise InputError(
                f"{self.path}: pattern has shape {self.held['pattern'].shape}: maps of {maps.rows} queries by "
                f"{maps.columns} keys; attention of tokens to each other is square, and that to another stack is told "
                "by `crossed: true`"
            )
        for site, size in self.sizes.items():
            heads = size.head == maps.head or (site in OF_KV_HEADS and maps.head % size.head == 0)
            square = site not in ("pattern", "scores") or size.columns == maps.columns
            rows = maps.columns if site in OF_KV_HEADS else maps.rows
            if (size.prompt, size.layer, size.rows) != (maps.prompt, maps.layer, rows) or not (heads and square):
                raise InputError(
                    f"{self.path}: {site} has shape {self.held[site].shape}, which does not go with the maps, "
                    f"{self.held['pattern'].shape}: it should be [{', '.join((*self.axes[site], *_last(site)))}] "
                    f"with {maps.prompt} prompts, {maps.layer} layers, {maps.head} heads and {rows} "
                    f"{_counted(site, self.crossed)}"
                )
        for one, other in (("q", "k"), ("q_rot", "k_rot")):
            if {one, other} <= set(self.sizes) and self.sizes[one].columns != self.sizes[other].columns:
                shapes = f"{self.held[one].shape} and {self.held[other].shape}"
                raise InputError(f"{self.path}: {one} and {other} have shapes {shapes}: their widths differ")


def _counted(site: str, crossed: bool) -> str:
    """What the rows of a site are of."""
    return "tokens" if not crossed else "keys" if site in OF_KV_HEADS else "queries"


def _last(site: str) -> tuple[str, str]:
    return ("query", "key") if site in ("pattern", "scores") else ("position", "width")


@dataclass(frozen=True)
class Place:
    """One prompt: its file, its number there, what it is called, and the tokens and keys of it that are real."""

    file: MapFile
    number: int
    name: str
    real: NDArray[np.int64] = field(repr=False)
    keys: NDArray[np.int64] = field(repr=False)


class SavedMaps:
    """All maps of a path. Opening reads shapes; ``check`` reads each map once, one head at a time."""

    def __init__(self, path: Path, options: MatricesParameters) -> None:
        self.path, self.options = path, options
        self.sides = APART if options.crossed else BOTH
        self.files = [MapFile(name, arrays, options) for name, arrays in arrays_of(path)]
        self._check_alike()
        first = self.files[0]
        self.layers, self.heads = first.maps.layer, first.maps.head
        self.sites = tuple(first.held)
        kv = {first.sizes[site].head for site in OF_KV_HEADS if site in first.sizes} or {self.heads}
        if len(kv) > 1:
            raise InputError(
                f"{first.path}: k and v have {' and '.join(map(str, sorted(kv)))} heads: as many are needed"
            )
        self.kv_heads = kv.pop()
        self.widths = {site: first.sizes[site].columns for site in self.sites if site not in ("pattern", "scores")}
        self.places = [place for file in self.files for place in self._placed(file)]
        for side in self.sides:
            self._trim(side)
        self.causal = bool(options.causal) if options.causal is not None else self._looks_causal
        self.unlike: tuple[float, str] | None = None  # how far softmaxes of scores are from the maps at most, and where
        self._check_maps()

    @property
    def dtype(self) -> str:
        """What arrays are handed out as: doubles stay, all else is single precision, which holds it."""
        kept = self.files[0].held["pattern"].dtype
        return "float32" if kept in ("float32", "float16", "bfloat16", "bool") else "float64"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the files, in order."""
        found = hashlib.sha256()
        for path in files_of(self.path):
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()

    @cached_property
    def scale(self) -> float | None:
        """What q . k is multiplied by; None without queries."""
        width = self.widths.get("q_rot", self.widths.get("q"))
        return self.options.scale or (None if width is None else width**-0.5)

    def take(self, site: str, prompt: int, layer: int) -> NDArray[Any]:
        """A site [head, row, column] of a layer, of the real tokens of a prompt alone."""
        place = self.places[prompt]
        part = place.file.take(site, place.number, layer)[:, place.keys if site in OF_KV_HEADS else place.real]
        part = part[:, :, place.keys] if site in ("pattern", "scores") else part
        if site == "scores" and self.causal:  # some keep what was there before the mask, or a very low number
            part = np.where(np.tri(part.shape[1], part.shape[2], dtype=bool), part, -np.inf)
        return part

    def pieces(self, prompt: int, side: Side = BOTH[0]) -> tuple[str, ...]:
        """The text of each token: of the array tokens (of keys: key_tokens), else its number."""
        place = self.places[prompt]
        name, real = f"{side.prefix}tokens", side.real(place)
        if name not in place.file.about:
            return tuple(str(n) for n in range(len(real)))
        row = _row(place.file, side, "tokens", place.number)[real]
        return tuple(each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in row)

    def text(self, prompt: int, side: Side = BOTH[0]) -> NDArray[np.bool_]:
        """Which tokens are text, not special: as the array text (of keys: key_text) says, else all."""
        place = self.places[prompt]
        real = side.real(place)
        if f"{side.prefix}text" not in place.file.about:
            return np.ones(len(real), dtype=bool)
        return _row(place.file, side, "text", place.number)[real].astype(bool)

    def notes(self) -> tuple[str, ...]:
        """What a plan tells: arrays that are not read, tokens left out, queries and keys that do not make the maps."""
        told = []
        unread = sorted({name for file in self.files for name in file.unread})
        if unread:
            told.append(f"arrays that are not read: {', '.join(unread[:_SHOWN])}")
        whole = ((p, len(side.real(p)) == side.size(p.file.maps)) for p in self.places for side in self.sides)
        cut = {(str(place.file.path), place.number) for place, all_of_it in whole if not all_of_it}
        if cut:
            told.append(f"{len(cut)} of {len(self.places)} maps are cut to the tokens that are real")
        if self.unlike is not None and self.unlike[0] > _GAP:
            apart, where = self.unlike
            told.append(
                f"softmax(scores) is not the maps but differs by up to {apart:.2g} ({where}): are these what it read?"
            )
        names = ("q_rot", "k_rot") if "q_rot" in self.sites else ("q", "k")
        if set(names) <= set(self.sites) and (gap := self._gap(*names)) > _GAP:
            told.append(
                f"softmax({self.scale:.3g} {names[0]} . {names[1]}) is not the maps but differs by up to {gap:.2g} "
                "(prompt 0, layer 0, head 0): are these queries and keys as they meet, behind norms and position, and "
                "is `scale` right?"
            )
        return tuple(told)

    def _gap(self, query: str, key: str) -> float:
        assert self.scale is not None
        P, q, k = (np.asarray(self.take(site, 0, 0)[0], dtype=np.float64) for site in ("pattern", query, key))
        return softmax_gap(P, q, k, self.scale, self.causal)

    def _check_alike(self) -> None:
        """All files hold the same arrays of as many layers and heads."""
        first = self.files[0]
        for file in self.files[1:]:
            for site in sorted(set(first.held) | set(file.held)):
                if site not in first.held or site not in file.held:
                    has, lacks = (file, first) if site in file.held else (first, file)
                    raise InputError(f"{has.path}: holds {site}, which {lacks.path.name} does not")
                a, b = first.sizes[site], file.sizes[site]
                wide = site not in ("pattern", "scores")
                if (a.layer, a.head) != (b.layer, b.head) or (wide and a.columns != b.columns):
                    shapes = f"{file.held[site].shape}, in {first.path.name} {first.held[site].shape}"
                    raise InputError(
                        f"{file.path}: {site} has shape {shapes}: layers, heads and widths must be the same"
                    )

    def _placed(self, file: MapFile) -> Iterator[Place]:
        """The prompts of a file with all tokens, or those that its mask or lengths say are real."""
        for number in range(file.maps.prompt):
            several = len(self.files) > 1
            name = (
                f"{file.name}-{number}" if several and file.maps.prompt > 1 else file.name if several else str(number)
            )
            sides = self.sides
            real = [
                np.arange(side.size(file.maps)) if self._lengths(side) is not None else _told(file, side, number)
                for side in sides
            ]
            for side in sides:
                for what in ("tokens", "text"):
                    if f"{side.prefix}{what}" in file.about:
                        _row(file, side, what, number)
            yield Place(file, number, name, real[0], real[-1])

    def _lengths(self, side: Side) -> str | list[int] | None:
        """What the run file says of how many are real."""
        found: str | list[int] | None = getattr(self.options, f"{side.prefix}lengths")
        return found

    def _trim(self, side: Side) -> None:
        """Cut maps to the lengths of the run file; where nothing tells any, look for padding."""
        lengths = self._lengths(side)
        if isinstance(lengths, list):
            if len(lengths) != len(self.places):
                said = f"{len(lengths)} {side.prefix}lengths are given for {len(self.places)} prompts"
                raise InputError(f"{self.path}: {said}")
            for prompt, length in enumerate(lengths):
                place = self.places[prompt]
                if length > side.size(place.file.maps):
                    raise InputError(_too_long(place.file, side, place.number, length))
                self.places[prompt] = side.cut(place, range(length))
            return
        if lengths == "whole":
            return
        telling = {f"{side.prefix}lengths", f"{side.prefix}mask"}
        untold = [i for i, p in enumerate(self.places) if not telling & set(p.file.about) or lengths == "found"]
        found = {prompt: seen for prompt in untold if (seen := self._padding(side, self.places[prompt])) is not None}
        if found and lengths is None:
            raise InputError(self._padded(side, found))
        for prompt, (tokens, _) in found.items():
            self.places[prompt] = side.cut(self.places[prompt], tokens)

    def _padding(self, side: Side, place: Place) -> tuple[range, str] | None:
        padding = Padding()
        for _, _, P in self._each(place):
            padding.show(P)
        return padding.found(side.of_rows, side.of_keys)

    def _padded(self, side: Side, found: Mapping[int, tuple[range, str]]) -> str:
        """The refusal of maps that look padded, with what settles it."""
        prompt, (tokens, said) = next(iter(found.items()))
        place, name, length = self.places[prompt], f"{side.prefix}lengths", len(tokens)
        n = side.size(place.file.maps)
        real = f"{length} x {length} of {n} x {n}" if side in BOTH else f"{length} of {n} {side.called}"
        most = max(len(tokens) for tokens, _ in found.values())
        also = f", and so in {len(found) - 1} more of {len(self.places)} prompts" if len(found) > 1 else ""
        # Lengths are counted from the first token.
        counted = "" if tokens.start else f"`{name}: [{length}, ...]` for each prompt, an array {name} [prompt] or "
        return (
            f"{_of(place)}: {said} in every layer and head{also}: this looks like padding, {real} real, and numbers "
            f"over all of it would be of the padding. Say how much is real: `{name}: found` (here up to {most}), "
            f"{counted}{'an array ' if tokens.start else ''}{side.prefix}mask [prompt, token] in the file, or "
            f"`{name}: whole` if nothing is padding"
        )

    def _each(self, place: Place) -> Iterator[tuple[int, int, Floats]]:
        """Each map of a prompt in double precision, with its layer and head: its real tokens alone."""
        for layer in range(self.layers):
            for head in range(self.heads):
                P = np.asarray(place.file.take("pattern", place.number, layer, head), dtype=np.float64)
                whole = (len(place.real), len(place.keys)) == P.shape
                yield layer, head, P if whole else P[np.ix_(place.real, place.keys)]

    @cached_property
    def _looks_causal(self) -> bool:
        """Whether no map has anything above its diagonal; that of other tokens has none."""
        return not self.options.crossed and not any(
            np.triu(P, 1).any() for place in self.places for _, _, P in self._each(place)
        )

    def _check_maps(self) -> None:
        """Refuse maps that are no attention, and numbers beside them that are not finite, by their place."""
        for index, place in enumerate(self.places):
            tolerance = self.options.tolerance or tolerance_of(place.file.held["pattern"].dtype)
            for layer, head, P in self._each(place):
                wrong = fault(P, self.causal, tolerance, self.options.sinks)
                if wrong is not None:
                    row, said = wrong
                    raise InputError(
                        f"{_of(place)}, layer {layer}, head {head}, row {row}: {self._advised(place, said, tolerance)}"
                    )
            if "scores" in self.sites:
                self._check_scores(index, place)
            for site in self.widths:
                for layer in range(self.layers):
                    real = place.keys if site in OF_KV_HEADS else place.real
                    part = place.file.take(site, place.number, layer)[:, real]
                    if not np.isfinite(part).all():
                        head, row, _ = (int(i) for i in np.argwhere(~np.isfinite(part))[0])
                        raise InputError(
                            f"{_of(place)}, layer {layer}, head {head}: {site} of token {row} is not finite"
                        )

    def _check_scores(self, prompt: int, place: Place) -> None:
        """Refuse scores that are none by their place, and note where they are furthest from making the maps."""
        for layer in range(self.layers):
            parts = (np.asarray(self.take(site, prompt, layer), dtype=np.float64) for site in ("pattern", "scores"))
            for head, (P, S) in enumerate(zip(*parts, strict=True)):
                where = f"{_of(place)}, layer {layer}, head {head}"
                wrong = fault_of_scores(S)
                if wrong is not None:
                    raise InputError(f"{where}, row {wrong[0]}: {wrong[1]}")
                apart = 0.0 if self.options.sinks else scores_gap(P, S)
                if self.unlike is None or apart > self.unlike[0]:
                    self.unlike = apart, where

    def _advised(self, place: Place, said: str, tolerance: float) -> str:
        masks = [name for name in ("mask", "key_mask") if name in place.file.about]
        if masks and said.startswith(("sums", "holds nan")):
            return f"{said}, and {' and '.join(masks)} says that it is real: is that 1 at real tokens and 0 at padding?"
        if said.startswith("sums"):
            return (
                f"{said}, not to one (within {tolerance:.2g}); are these probabilities, and is all of it real "
                "(`lengths:`)? `sinks: true` lets rows sum to less, `tolerance:` takes coarser numbers"
            )
        return f"{said}; if it is padding, say how much is real with `lengths:`" if "nan" in said else said


def _of(place: Place) -> str:
    return f"{place.file.path}: prompt {place.number}"


def _too_long(file: MapFile, side: Side, number: int, length: Any) -> str:
    has = f"{side.size(file.maps)} {'rows' if side.of_rows else 'keys'}"
    return f"{file.path}: prompt {number}: its {_length(side)} is said to be {length}, its map has {has}"


def _length(side: Side) -> str:
    return "length" if side in BOTH else f"number of {side.called}"


def _row(file: MapFile, side: Side, what: str, number: int) -> NDArray[Any]:
    """The row of one prompt in an array [prompt, token], or [token] where there is one prompt."""
    name, prompts, n = f"{side.prefix}{what}", file.maps.prompt, side.size(file.maps)
    stored = file.about[name]
    if stored.shape not in ((prompts, n), *(((n,),) if prompts == 1 else ())):
        raise InputError(f"{file.path}: {name} has shape {stored.shape}; it should be [prompt, token], {(prompts, n)}")
    if len(stored.shape) == 1:
        return stored.whole
    row: NDArray[Any] = stored.take((slice(number, number + 1), slice(None)))[0]
    return row


def _says_which(stored: Stored) -> bool:
    """Whether an array is of truth values, or of zeros and ones."""
    whole = stored.dtype.lstrip("<>|=").startswith(("i", "u"))
    return stored.dtype == "bool" or (whole and bool(np.isin(stored.whole, (0, 1)).all()))


def _told(file: MapFile, side: Side, number: int) -> NDArray[np.int64]:
    """The real tokens of a prompt, as mask or lengths of the file tell; all where there are none."""
    n = side.size(file.maps)
    real = np.arange(n)
    mask, named = f"{side.prefix}mask", f"{side.prefix}lengths"
    if mask in file.about:
        row = _row(file, side, "mask", number)
        if not np.isin(row, (0, 1)).all():
            odd = row[~np.isin(row, (0, 1))].flat[0]
            raise InputError(
                f"{file.path}: prompt {number}: {mask} holds {odd:.6g}; it is 1 where a token is real and 0 where it "
                "is padding, not what is added to scores"
            )
        real = np.flatnonzero(row)
    if named in file.about:
        lengths = np.atleast_1d(file.about[named].whole)
        if lengths.shape != (file.maps.prompt,):
            raise InputError(f"{file.path}: {named} has shape {lengths.shape}; there are {file.maps.prompt} prompts")
        length = int(lengths[number])
        if not 1 <= length <= n or length != lengths[number]:
            raise InputError(_too_long(file, side, number, lengths[number]))
        if mask in file.about and len(real) != length:
            said = f"{mask} says {len(real)} {side.called} are real, {named} {length}"
            raise InputError(f"{file.path}: prompt {number}: {said}")
        real = real if mask in file.about else np.arange(length)
    if not len(real):
        raise InputError(f"{file.path}: prompt {number}: {mask} says that no token is real")
    return real
