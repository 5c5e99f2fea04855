"""Running a twin, or its base, for analyses of shape ``forward``: logits, sites, replacement and generation."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gausslens import Interventions, ModelError

from ..loading.eager_answer import proof_prompt, proof_sources
from ..loading.turns import turn_of
from .attention import with_our_attention
from .engine import wanted_sites
from .forward_pass import Captured, Sources, check_sources, encoded

if TYPE_CHECKING:
    from gausslens import Intervention, LayerWeights, ModelInfo, Prompt, Tokens, Twin

    from .engine import TransformersEngine

Replacing = Callable[..., torch.Tensor | None]
# Whether a model reads a row alike behind padding, for each set of tokens that stood there.
_BEHIND: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], bool]] = weakref.WeakKeyDictionary()


class TransformersRunner:
    """Runs a twin, or its base, on tokens."""

    def __init__(self, engine: TransformersEngine, twin: Twin) -> None:
        self.engine, self.twin = engine, twin
        self.model: Any = twin.base

    @property
    def info(self) -> ModelInfo:
        """The facts of the model."""
        info: ModelInfo = self.model.info
        return info

    @property
    def whole(self) -> TransformersRunner:
        """The runner of the whole model: itself."""
        return self

    def forward(
        self,
        tokens: np.ndarray,
        sites: Sequence[str] = (),
        replace: Replacing | None = None,
        base: bool = False,
        mask: np.ndarray | None = None,
        sources: tuple[np.ndarray, np.ndarray] | None = None,
        interventions: Sequence[Intervention] = (),
        grad: bool = False,
    ) -> Mapping[Any, torch.Tensor]:
        """Logits where no sites are asked; else {site of the model: array, (layer, site): array}.

        What a site holds is what the model goes on with, after ``interventions``. With ``grad`` the graph is kept from
        the embedding on, and what is captured lies on it. ``sources``, ids and mask, are what the encoder of a model of
        two stacks reads: ``**tokens.beside(prompts)``.
        """
        ids = torch.as_tensor(tokens, dtype=torch.long, device=self.model.device)
        self._check_tokens(ids)
        kept = torch.ones_like(ids) if mask is None else torch.as_tensor(mask).to(ids)
        read = None if sources is None else self._on_device(sources)
        if mask is not None:
            self._check_padding(ids, kept.bool())
        changes = self._changes(interventions, kept, read)
        return self._captured(ids, kept, read, base, sites, replace=replace, changes=changes, grad=grad)

    def _captured(
        self,
        ids: torch.Tensor,
        kept: torch.Tensor,
        read: Sources | None,
        base: bool,
        sites: Sequence[str] = (),
        **how: Any,
    ) -> Mapping[Any, torch.Tensor]:
        """One pass over tokens that are on the device; ``how`` is what a capture is told of changes and gradients."""
        asked = tuple(sites) or ("logits",)
        wanted = wanted_sites(self.model, asked, None)
        if how.get("grad"):
            self._refuse_by_layer("gradients")
        found: dict[Any, torch.Tensor] = {}

        def done(layer: int, captured: Captured) -> None:
            found.update({(layer, site): array for site, array in captured.arrays.items()})

        capture = self.engine.capture(self.model, wanted, done, eager=True, **how)
        with self._applied(base):
            found.update(capture.run(ids, kept, "logits" in asked, "embed" in asked, sources=read))
        return found

    def _check_tokens(self, ids: torch.Tensor) -> None:
        no_such = ids[(ids < 0) | (ids >= self.info.vocabulary)]
        if len(no_such):
            raise ModelError(
                f"{self.model.name} has no token {int(no_such[0])}: it has 0 to {self.info.vocabulary - 1}; what mask "
                "leaves out is one of these too"
            )

    def _check_padding(self, ids: torch.Tensor, kept: torch.Tensor) -> None:
        """Refuse padding before the tokens of a row where it would move them: learned positions count it."""
        before = (kept.cumsum(1) == 0) & kept.any(1, keepdim=True)
        if not bool(before.any()):
            return
        tokens = tuple(sorted(set(ids[before].tolist()))[:2])
        proved = _BEHIND.setdefault(self.model, {})
        if tokens not in proved:
            proved[tokens] = self._reads_behind(tokens)
        if not proved[tokens]:
            raise ModelError(
                f"{self.model.name}: a row begins with padding, behind which this model reads the same tokens "
                "otherwise: its positions count padding. Put padding at the end of rows, as tokens.padded does, or run "
                "each row alone"
            )

    def _reads_behind(self, tokens: Sequence[int]) -> bool:
        """Whether the stream of a short row begins alike with these tokens as padding behind it and before it."""
        model, found = self.model, dict[int, torch.Tensor]()
        if not getattr(model, "bears_padding", True):
            return False
        row = proof_prompt(model)[0][0]
        row = row[: max(1, len(row) // 2)]
        padding = torch.tensor(tokens).to(row)
        ids = torch.stack([torch.cat([row, padding]), torch.cat([padding, row])])
        mask = torch.ones_like(ids)
        mask[0, len(row) :] = mask[1, : len(padding)] = 0

        def done(layer: int, captured: Captured) -> None:
            found[layer] = captured.arrays["resid_pre"].double()

        sources = proof_sources(model, 2)
        read = None if sources is None else (sources[0], sources[1].long())
        with turn_of(model.module):
            self.engine.capture(model, {0: ("resid_pre",)}, done, eager=True).run(ids, mask, sources=read)
        behind, before = found[0][0, : len(row)], found[0][1, len(padding) :]
        return bool((behind - before).abs().max() <= 4 * torch.finfo(model.dtype).eps * behind.abs().max())

    def _refuse_by_layer(self, what: str) -> None:
        """Refuse what would need all weights at once, or all of them again for each token."""
        if self.model.exceeds:
            raise ModelError(
                f"{self.model.name}: {what} needs all weights in memory, and max_memory has them read a layer at a "
                "time: raise it above the size of the weights, or leave it out"
            )

    def _changes(
        self,
        given: Sequence[Intervention],
        mask: torch.Tensor,
        read: Sources | None,
        start: int = 0,
        prompts: Sequence[int] | None = None,
    ) -> Interventions | None:
        if not given:
            return None
        keys = read[1] if read is not None and self.info.facts.crossed else None
        changes = Interventions(
            given, self.info, self.model.sites, mask, keys, start, prompts, more=prompts is not None
        )
        if start == 0:
            from .intervention_proof import check_they_act

            check_they_act(self.model, self.engine.capture, changes.given)
        return changes

    def _on_device(self, sources: tuple[np.ndarray, np.ndarray]) -> Sources:
        ids, mask = (torch.as_tensor(np.asarray(a), dtype=torch.long, device=self.model.device) for a in sources)
        return ids, mask

    def weights(self, layer: int | None) -> LayerWeights:
        """The tensors of a layer as the edits leave them; layer None: those outside the layers."""
        return self.twin.weights(layer)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token numbers."""
        if self.model.tokenizer is None:
            raise ModelError(f"{self.model.name} has no tokenizer")
        return str(self.model.tokenizer.decode([int(i) for i in ids]))

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        """Prompts as the tokens that the model would see."""
        found: Tokens = self.model.tokenise(prompts)
        return found

    def generate(
        self,
        tokens: np.ndarray,
        most: int,
        temperature: float = 0.0,
        seed: int = 0,
        stop: Sequence[int] | None = None,
        stop_text: str = "",
        base: bool = False,
        replace: Replacing | None = None,
        mask: np.ndarray | None = None,
        sources: tuple[np.ndarray, np.ndarray] | None = None,
        interventions: Sequence[Intervention] = (),
    ) -> list[np.ndarray]:
        """The tokens that follow each prompt, at most ``most``: the likeliest, or drawn at a temperature by a seed.

        ``stop`` are tokens that end it (default: the model's own), ``stop_text`` is text that does; both are part of
        what is returned. ``mask`` says which tokens of the rows are there; positions count those alone. With
        ``replace`` every step runs over the whole text again, and with ``interventions`` where one is ``whole``, or at
        k_rot (of latent attention v too), of which something else is kept; elsewhere functions see new tokens alone.
        ``sources`` are as in ``forward``; the encoder runs once for each prompt.
        """
        if not ((self.info.causal or self.info.facts.crossed) and self.model.headed):
            raise ModelError(f"{self.model.name} does not generate: it has no causal language-model head")
        self._refuse_by_layer("generation")
        read = None if sources is None else self._on_device(sources)
        check_sources(self.model, read)
        ends = _ends(self.model.config) if stop is None else set(stop)
        rows = np.atleast_2d(np.asarray(tokens))
        self._check_tokens(torch.as_tensor(rows))
        kept = np.ones(rows.shape, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        made = []
        for number, (row, real) in enumerate(zip(rows, kept, strict=True)):
            draw = torch.Generator().manual_seed(seed + number)
            start = [int(i) for i in row[real]]
            own = None if read is None else (read[0][number][None], read[1][number][None])
            with contextlib.closing(self._steps(start, base, replace, own, interventions, number)) as logits:
                made.append(self._continued(logits, start, most, ends, stop_text, temperature, draw))
        return made

    def _continued(
        self,
        logits: Any,
        start: list[int],
        most: int,
        ends: set[int],
        stop_text: str,
        temperature: float,
        draw: torch.Generator,
    ) -> np.ndarray:
        found: list[int] = []
        room = (self.info.max_positions or len(start) + most) - len(start)
        row = next(logits)
        while len(found) < min(most, room):
            found.append(_picked(row, temperature, draw))
            if found[-1] in ends or len(found) == min(most, room) or (stop_text and stop_text in self.decode(found)):
                break
            row = logits.send(found[-1])
        return np.array(found, dtype=np.int64)

    def _steps(
        self,
        start: list[int],
        base: bool,
        replace: Replacing | None,
        read: Sources | None,
        interventions: Sequence[Intervention],
        number: int,
    ) -> Any:
        """The next token's logits; send the token that was picked to get the following ones."""
        again = {"k_rot", "v"} if self.model.layout.family.latent else {"k_rot"}
        whole = any(one.whole or one.site in again for one in interventions)
        if replace is None and self.engine.remembers and not whole:
            yield from self._resumed(start, base, read, interventions, number)
        text = list(start)
        while True:
            ids = torch.tensor([text], device=self.model.device)
            kept = torch.ones_like(ids)
            changes = self._changes(interventions, kept, read, prompts=(number,))
            found = self._captured(ids, kept, read, base, replace=replace, changes=changes)
            text.append((yield found["logits"][0, -1]))

    def _resumed(
        self, start: list[int], base: bool, read: Sources | None, interventions: Sequence[Intervention], number: int
    ) -> Any:
        """The same, with the keys and values of the tokens before kept."""
        module, device = self.model.module, self.model.device
        with self._applied(base), with_our_attention(module, self.model.layout.family.watched), torch.no_grad():
            ids, past, kept = list(start), None, True
            new = ids
            name, given = "input_ids", dict[str, Any]()
            if read is not None:
                name = "decoder_input_ids"
                given = {"encoder_outputs": (encoded(self.model, read),), "attention_mask": read[1]}
            while True:
                told = {"past_key_values": past, "use_cache": True} if kept else {"use_cache": False}
                fresh = torch.tensor([new], device=device)
                with self._intervening(interventions, fresh, len(ids) - len(new), read, number) as flow:
                    output = module(**{name: fresh}, **given, **told)
                    logits = flow(output.logits)
                past = getattr(output, "past_key_values", None)
                kept = past is not None  # some models keep what was before in themselves: they are asked for all of it
                ids.append((yield logits[0, -1]))
                new = ids[-1:] if kept else ids

    @contextlib.contextmanager
    def _intervening(
        self, given: Sequence[Intervention], ids: torch.Tensor, start: int, read: Sources | None, number: int
    ) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
        """Hooks for one step over tokens from position ``start`` on; what becomes of its logits."""
        changes = self._changes(given, torch.ones_like(ids), read, start, (number,))
        if changes is None:
            yield lambda logits: logits
            return
        capture = self.engine.capture(self.model, {}, lambda *_: None, changes=changes)
        capture.resumed = start > 0
        with capture.watching(ids.shape):
            yield lambda logits: capture.flow(None, "logits", logits)

    @contextlib.contextmanager
    def _applied(self, base: bool) -> Iterator[None]:
        every = list(range(self.info.n_layers))
        applied = contextlib.nullcontext() if base else self.engine.patches.applied(self.twin, every)
        with turn_of(self.model.module), applied:
            yield


def _picked(logits: torch.Tensor, temperature: float, draw: torch.Generator) -> int:
    if temperature <= 0:
        return int(logits.argmax())
    chances = torch.softmax(logits.detach().double().cpu() / temperature, dim=-1)
    return int(torch.multinomial(chances, 1, generator=draw))


def _ends(config: Any) -> set[int]:
    ends = getattr(config, "eos_token_id", None)
    return set(ends) if isinstance(ends, list | tuple) else set() if ends is None else {int(ends)}
