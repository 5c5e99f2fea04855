"""In a notebook: ``draw`` gives the figures of a store, ``load`` opens a model and runs it.

import gausslens

store = gausslens.open("store")
figures = gausslens.draw(store, label="stream")
figures[0]                      # shows itself
figures[0].plot().savefig("rank.pdf")
figures[3].plot(layer=2, head=1)
figures.save("figures", width="column")     # for a paper: PDF, and tables as CSV and LaTeX

model = gausslens.load("path/to/model")
twins = model.twins("reinit.rotate", draws=8)                   # random twins of it, each again a model
gausslens.versus(score_of(model), [score_of(twin) for twin in twins])   # a number of your own beside its null

found = model.run("The cat sat on the mat", sites=("pattern", "resid_post"))
found.pattern.sel(prompt=0, layer=2, head=1)    # [query, key], with the text of both tokens
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .contract.batches import Batch, Request
from .contract.engines import Intervention, several, whole_numbers
from .contract.errors import InputError, ModelError, did_you_mean
from .contract.model import LayerWeights, ModelInfo
from .contract.prompts import Part, Prompt, Tokens
from .contract.sites import Site, site
from .contract.twin import Twin, check_edit
from .terminal import html_table

if TYPE_CHECKING:
    import numpy as np
    import torch
    import xarray as xr

    from .contract.engines import CaptureEngine
    from .drawings import Figures
    from .plugins.host import Host
    from .runs.open import Opened
    from .runs.study import Variant


def versus(value: Any, draws: Any, pooled: Sequence[str] = ()) -> xr.Dataset:
    """A number or array of your own beside its null: the same of so many random twins, computed in the same way.

    ``value`` is a number, a numpy array or an xarray.DataArray; ``draws`` holds one such for each draw of the null, 5
    or more for p and q. Each cell is judged as `against:` of a run judges it (``gausslens.maths.nulls.compare``,
    docs/nulls.md): beside ``value`` stand ``value_null_mean``, ``value_z``, ``value_p``, ``value_q``, ``value_effect``
    and the others of a comparison, by the name of the DataArray where it has one. ``pooled`` names dimensions along
    which the null makes cells exchangeable, as heads that are drawn alike.
    """
    import xarray as xr

    from .runs.compare import against

    of = value if isinstance(value, xr.DataArray) else xr.DataArray(value)
    name = str(of.name or "value")
    each = [draw if isinstance(draw, xr.DataArray) else xr.DataArray(draw) for draw in draws]
    if len(each) < 2:
        raise InputError(f"a null needs at least 2 draws, there {'is 1' if each else 'are none'}")
    if unknown := [dim for dim in pooled if dim not in of.dims]:
        raise InputError(f"the value has no dimension {unknown[0]!r}{did_you_mean(unknown[0], map(str, of.dims))}")
    if of.dtype.kind not in "biuf":
        raise InputError(f"the value is of type {of.dtype}: give real numbers")
    found = against(xr.Dataset({name: of}), [xr.Dataset({name: draw}) for draw in each], pooled)
    if "not_compared" in found.attrs:
        raise InputError(f"a draw is not what the value is: {found.attrs['not_compared'].partition(': ')[2]}")
    return found


def load(
    path: Any,
    loader: str = "auto",
    dtype: str | None = None,
    device: str = "cpu",
    tokenizer: Any = None,
    mapping: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> Model:
    """Open a model from Python: a path as in a run file, or a live module (with its tokenizer).

    ``mapping`` says where a plain torch module has what (docs/models.md).

    ``load("path/to/model", loader="weights").weights(3).W_Q`` is [head, d_model, d_head] of layer 3.
    """
    from . import plugins, runfile
    from .runs.open import open_model
    from .spreading.prepare import live_name

    live = None if isinstance(path, str | os.PathLike) else path
    if live is None and mapping is not None:
        raise InputError("mapping= says where a live module has what: give the module in place of the path")
    block = {"path": f"live:{live_name(live, mapping)}" if live is not None else os.fspath(path), **(mapping or {})}
    host = plugins.load()
    call = runfile.read_model(block | {"loader": loader, "dtype": dtype, "device": device, **parameters}, host)
    return Model(open_model(call, host, live, tokenizer), host)


# A text, or several; or what they are as tokens.
Prompts = str | Prompt | Tokens | Iterable[str | Prompt]
# An edit by its name or as in a run file, or several.
Edits = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
# Bytes of activations that ``Model.run`` gives unless it is told otherwise.
LIMIT = 2e9


class Model:
    """An open model in Python: its facts, its tensors, its tokens, and what it computes of prompts."""

    def __init__(self, opened: Opened, host: Host, twin: Twin | None = None, what: str = "") -> None:
        self._opened, self._host = opened, host
        self._twin, self._what = Twin(opened.model) if twin is None else twin, what

    @property
    def info(self) -> ModelInfo:
        """What config and headers tell."""
        return self._opened.model.info

    def weights(self, layer: int | None = None) -> LayerWeights:
        """The tensors of a layer by name; those outside the layers without a number."""
        return self._twin.weights(layer)

    def twins(self, edits: Edits, draws: int = 8, seed: int = 0) -> Iterator[Model]:
        """Random twins of it, one after the other, each a model as this one: what a number of yours is held against.

        ``edits`` is the name of an edit, ``"reinit.rotate"``, one as in a run file, ``{"edit": "reinit.config",
        "embeddings": True}``, or a list of such; `gausslens plugins` lists them. Draw 3 is draw 3 of a run of that
        seed. A twin shares what is not edited with the model, and is gone when nothing refers to it.
        """
        made = self._variant(edits, draws)  # wrong edits are told at once
        return (self._edited(made, seed, draw, f"draw {draw} of ") for draw in range(draws))

    def edited(self, edits: Edits, seed: int = 0) -> Model:
        """The model with edits, as a variant without draws: ``model.edited({"edit": "spectrum.drop", "k": 1})``."""
        return self._edited(self._variant(edits, None), seed, None, "")

    def _edited(self, made: Variant, seed: int, draw: int | None, which: str) -> Model:
        calls = made.points[0].edits
        what = f"{which}{', '.join(call.edit.descriptor.name for call in calls)}"
        return Model(self._opened, self._host, Twin(self._opened.model, calls, seed, draw), what)

    def _variant(self, edits: Edits, draws: int | None) -> Variant:
        """The edits as a run file would have them, looked at before anything is drawn."""
        from . import runfile

        if self._twin.edits:
            raise InputError(f"this is {self._what} of {self.info.name} already: put all edits into one list")
        given = [edits] if isinstance(edits, str | Mapping) else list(edits)
        block = {"edits": [{"edit": one} if isinstance(one, str) else one for one in given], "draws": draws}
        made = runfile.read_variant(block, self._host, "twins" if draws is not None else "edited")
        if len(made.points) > 1:
            raise InputError("a sweep makes several models of one: name one value each")
        for call in made.points[0].edits:
            if call.edit.descriptor.inputs is not None:
                raise InputError(f"edit {call.edit.descriptor.name} reads results of a run: put it into a run file")
            check_edit(call, self._opened.model)
        return made

    def tokens(self, *texts: str) -> Tokens:
        """Texts as the tokens that the model would see."""
        return self.tokenise(texts)

    def tokenise(self, prompts: Prompts) -> Tokens:
        """Prompts as the tokens that the model would see: a text or several, or ``gausslens.Prompt``."""
        if isinstance(prompts, Tokens):
            return prompts
        given: Any = prompts
        alone = isinstance(given, str | bytes | Prompt) or not isinstance(given, Iterable)
        each = [given] if alone else list(given)
        wrong = [type(one).__name__ for one in each if not isinstance(one, str | Prompt)]
        if wrong:
            raise InputError(
                f"prompts are texts, gausslens.Prompt or Tokens, and not {wrong[0]}; of token numbers it is "
                "Prompt(ids=(...))"
            )
        known = range(self.info.vocabulary)
        no_such = [i for one in each if isinstance(one, Prompt) for i in one.ids or () if i not in known]
        if no_such:
            raise InputError(f"{self.info.name} has no token {no_such[0]}: it has 0 to {known[-1]}")
        return self._opened.model.tokenise([Prompt((Part(p),)) if isinstance(p, str) else p for p in each])

    def run(
        self,
        prompts: Prompts,
        sites: str | Sequence[str] = ("resid_post", "pattern"),
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        interventions: Sequence[Intervention] | None = None,
        limit: float = LIMIT,
    ) -> xr.Dataset:
        """The activations of prompts at these sites, a variable for each, as a dataset with the text of the tokens.

        Dimensions are those of ``gausslens.site(name).dims`` with ``layer`` before them; ``piece`` is the text of the
        token at each prompt and position, ``query_piece`` and ``key_piece`` that of queries and keys. Where prompts are
        of unequal length what lies beyond the end of one is NaN, as is a site in a layer that does not have it.
        ``interventions`` act on the way (framework/HOOKS.md). With them, be they none, ``()``, attention is computed in
        plain steps, so that what is compared is computed alike; without, as the model computes it, a layer at a time.
        More than ``limit`` bytes are refused.
        """
        running = self._opened.running
        if running is None:
            raise ModelError(f"{self.info.name}: no engine runs models of this loader: it has weights alone")
        names = self._named(running, [sites] if isinstance(sites, str) else list(sites))
        tokens, info, twin = self.tokenise(prompts), self._seen(layers, heads), self._twin
        if not len(tokens) or not max(tokens.lengths):
            raise InputError("there are no tokens in these prompts")
        if max(tokens.lengths) > (info.max_positions or math.inf):
            raise InputError(f"a prompt has {max(tokens.lengths)} tokens, {info.name} takes {info.max_positions}")
        room = _Room(info, tokens, [site(name) for name in names])
        room.refuse_above(limit, self.info if interventions is not None else None)
        if interventions is None:
            for shard in tokens.shards():
                running.run(twin, tokens, shard, Request(names, info.layers), room.take)
            return room.dataset()
        runner: Any = running.runner(twin)
        changes = several(interventions)
        for prompt, ids in enumerate(tokens.ids):
            how = {"interventions": [_told(one, prompt) for one in changes]} if changes else {}
            found = runner.forward(ids[None], sites=names, **tokens.beside([prompt]), **how)
            for key, array in found.items():
                layer, name = key if isinstance(key, tuple) else (None, key)
                room.put([prompt], layer, name, array)
        return room.dataset()

    def effect(
        self, prompts: Prompts, interventions: Sequence[Intervention], most: int = 10, limit: float = LIMIT
    ) -> Figures:
        """What interventions do to each prompt, as figures: the loss of its tokens, and the probabilities of the next.

        Of the tokens that may come next the ``most`` that change most. Numbers are in ``[i].figure``, and all logits in
        ``run(prompts, "logits", interventions=...)``.
        """
        from .drawings import Drawn, Figures
        from .figures.of_captures import effects_on_tokens

        tokens = self.tokenise(prompts)
        plain, changed = (self.run(tokens, "logits", interventions=each, limit=limit) for each in ((), interventions))
        runner: Any = self._opened.running.runner(Twin(self._opened.model))  # type: ignore[union-attr]
        made = effects_on_tokens(tokens, plain.logits.values, changed.logits.values, runner.decode, most)
        return Figures(Drawn(figure, "effect") for figure in made)

    def _seen(self, layers: Sequence[int] | None, heads: Sequence[int] | None) -> ModelInfo:
        """What is shown of the model; numbers of layers and heads may come as an array."""
        named = (
            None if each is None else whole_numbers(each, f"{what}=")
            for what, each in (("layers", layers), ("heads", heads))
        )
        return self.info.narrowed(*named)

    def _named(self, running: CaptureEngine, sites: Sequence[str]) -> tuple[str, ...]:
        """The sites that are asked for, each once; one that the model does not have is refused."""
        known = running.sites(self._opened.model)
        unknown = next((name for name in sites if name not in known), None)
        if unknown is not None:
            why = self.info.why_lacking(unknown)
            told = f" ({why})" if why else did_you_mean(unknown, known)
            raise InputError(f"{self.info.name} has no site {unknown!r}{told}")
        if not sites:
            raise InputError(f"sites= names none of {', '.join(known)}")
        return tuple(dict.fromkeys(sites))

    def __repr__(self) -> str:
        info = self.info
        shape = f"{info.n_layers} layers of {info.n_heads} heads, {info.n_parameters:,} parameters"
        return f"<{self._named_so()}: {info.family}, {shape}>"

    def _named_so(self) -> str:
        return f"{self._what} of {self.info.name}" if self._what else self.info.name

    def _repr_html_(self) -> str:
        info, running = self.info, self._opened.running
        sites = ", ".join(running.sites(self._opened.model)) if running is not None else "none: no engine runs it"
        rows = {
            "layers, heads": f"{info.n_layers}, {info.n_heads} over {info.n_kv_heads} key/value heads of {info.d_head}",
            "width": str(info.d_model),
            "vocabulary": f"{info.vocabulary:,}",
            "parameters": f"{info.n_parameters:,}, {info.dtype}",
            "sites": sites,
        }
        return html_table(f"{self._named_so()}: {info.family}", rows.items())


def _told(one: Intervention, prompt: int) -> Intervention:
    """The intervention in a pass of one prompt; its function is told which of the prompts that is."""
    if not isinstance(one, Intervention):
        return one  # the engine refuses it
    return replace(one, function=lambda tensor, where: one.function(tensor, replace(where, prompts=(prompt,))))


class _Room:
    """Where the activations of all prompts and layers are put, as they come."""

    def __init__(self, info: ModelInfo, tokens: Tokens, sites: Sequence[Site]) -> None:
        self._info, self._tokens, self._sites = info, tokens, sites
        self._longest = max(tokens.lengths)
        self._keys = max(tokens.keys.lengths)
        self._bytes = 8 if info.dtype == "float64" else 4  # numpy has no bfloat16
        self._arrays: dict[str, np.ndarray] = {}

    def refuse_above(self, limit: float, at_once: ModelInfo | None) -> None:
        """Before anything is computed: a study streams what does not fit. ``at_once``: all layers of a prompt are."""
        sizes = {each.name: self._bytes * math.prod(self._shape(each)) for each in self._sites}
        total = sum(sizes.values())
        if at_once is not None:
            each_layer = [math.prod(s.shape(at_once, 1, self._longest, self._keys)) for s in self._sites]
            total += self._bytes * at_once.n_layers * sum(each_layer)
        if total <= limit:
            return
        most = max(sizes, key=sizes.__getitem__)
        layers = len(self._info.layers)
        raise InputError(
            f"{total / 1e6:,.1f} MB of activations ({most}: {sizes[most] / 1e6:,.1f} MB in {layers} layers, for "
            f"{len(self._tokens)} prompts of up to {self._longest} tokens) are more than {limit / 1e6:,.1f} MB: name "
            "fewer sites, layers, heads or prompts, or raise limit=; a run file streams any number past its analyses"
        )

    def take(self, batch: Batch) -> None:
        """What a pass hands out of a layer."""
        for name, array in batch.arrays.items():
            self.put(batch.prompts, batch.layer, name, array)

    def put(self, prompts: Sequence[int] | np.ndarray, layer: int | None, name: str, array: torch.Tensor) -> None:
        """The array of a site in a layer, of these prompts padded to the longest of them."""
        import numpy as np

        each = site(name)
        if layer is not None and layer not in self._info.layers:
            return
        if name not in self._arrays:
            self._arrays[name] = np.full(self._shape(each), np.nan, dtype=f"float{8 * self._bytes}")
        into = self._arrays[name] if layer is None else self._arrays[name][self._info.layers.index(layer)]
        found = self._cut(each, array)
        for row, prompt in enumerate(prompts):
            cut: tuple[Any, ...] = tuple(self._there(dim, prompt) for dim in self._dims(each)[1 if each.whole else 2 :])
            into[(prompt, *cut)] = found[(row, *cut)]

    def _there(self, dim: str, prompt: int) -> slice:
        """What there is of a prompt along a dimension; the rest is padding."""
        of = {"position": self._tokens, "query": self._tokens, "key": self._tokens.keys}.get(dim)
        return slice(None) if of is None else slice(of.lengths[prompt])

    def _cut(self, each: Site, array: torch.Tensor) -> np.ndarray:
        """The heads in view, in numpy."""
        import numpy as np

        detached = array.detach().cpu()
        made = np.asarray(detached.float() if detached.element_size() == 2 else detached)
        heads = list(each.heads(self._info))
        axis = each.dims.index(each.heads_dim) if each.heads_dim is not None else None
        # A runner may have cut it already.
        return made if axis is None or made.shape[axis] == len(heads) else made.take(heads, axis)

    def _shape(self, each: Site) -> tuple[int, ...]:
        shape = each.shape(self._info, len(self._tokens), self._longest, self._keys)
        return shape if each.whole else (len(self._info.layers), *shape)

    def _dims(self, each: Site) -> tuple[str, ...]:
        """As the table of sites has them; keys that are other tokens than queries, and wider values, are named so."""
        crossed = each.of_keys and self._tokens.crossed
        other = ({"position": "key"} if crossed else {}) | ({"d_head": "d_value"} if self._wide(each) else {})
        dims = tuple(other.get(dim, dim) for dim in each.dims)
        return dims if each.whole else ("layer", *dims)

    def _wide(self, each: Site) -> bool:
        return each.of_values and self._info.d_value not in (None, self._info.d_head)

    def dataset(self) -> xr.Dataset:
        """All of it, with its coordinates."""
        import xarray as xr

        made = {
            each.name: (self._dims(each), self._arrays.pop(each.name), {"long_name": each.name, "units": "1"})
            for each in self._sites
            if each.name in self._arrays
        }
        dims = {dim for named, *_ in made.values() for dim in named}
        told: dict[str, Any] = {
            "layer": list(self._info.layers),
            "head": list(self._info.heads),
            "kv_head": list(self._info.kv_heads),
            "prompt": list(range(len(self._tokens))),
        }
        coordinates: dict[str, Any] = {name: values for name, values in told.items() if name in dims}
        coordinates["prompt_name"] = ("prompt", list(self._tokens.names))
        coordinates["length"] = ("prompt", list(self._tokens.lengths))
        for dim, of, text in (
            ("position", self._tokens, "piece"),
            ("query", self._tokens, "query_piece"),
            ("key", self._tokens.keys, "key_piece"),
        ):
            if dim in dims:
                pieces = _pieces(of)
                coordinates |= {dim: list(range(pieces.shape[1])), text: (("prompt", dim), pieces)}
        return xr.Dataset(made, coords=coordinates, attrs={"model": self._info.name})


def _pieces(tokens: Tokens) -> np.ndarray:
    """The text of each token [prompt, position]; nothing beyond the end of a prompt."""
    import numpy as np

    found = np.full((len(tokens), max(tokens.lengths)), "", dtype=object)
    for row, pieces in zip(found, tokens.pieces, strict=True):
        row[: len(pieces)] = pieces
    return found.astype(str)
