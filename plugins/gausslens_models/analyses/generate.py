"""model.generate: what a model writes after each prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Context, Runner, Tokens, variable

if TYPE_CHECKING:
    from ..parameters import GenerateParameters


class Generate:
    """Writes prompt by prompt, so that nothing depends on what is asked for beside it."""

    def __init__(self, parameters: GenerateParameters, context: Context) -> None:
        self.parameters = parameters
        self.context = context

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """Continuations of all prompts, cut before the stop text."""
        p = self.parameters
        written = [
            [self._one(runner, prompts, prompt, f"{prompt}.{sample}") for sample in range(p.samples)]
            for prompt in range(len(prompts))
        ]
        dims = ("prompt", "sample")
        text = np.array([[said for said, _ in row] for row in written], dtype=object)
        count = np.array([[n for _, n in row] for row in written], dtype=np.int64)
        asked = np.array([_asked(prompts, prompt) for prompt in range(len(prompts))], dtype=object)
        return xr.Dataset(
            {
                "text": variable(dims, text, "what the model wrote"),
                "tokens": variable(dims, count, "tokens written", "token"),
                "after": variable("prompt", asked, "the prompt"),
            },
            coords={"prompt": list(prompts.names), "sample": np.arange(p.samples)},
        )

    def _one(self, runner: Runner, prompts: Tokens, prompt: int, name: str) -> tuple[str, int]:
        p = self.parameters
        how: dict[str, Any] = prompts.beside([prompt]) | ({"stop_text": p.stop} if p.stop else {})
        ids = prompts.begun(prompt)
        if p.temperature:
            seed = int(self.context.generator(name).integers(2**62))
            how |= {"temperature": p.temperature, "seed": seed}
        (new,) = runner.generate(ids[None], p.tokens, **how)
        special = set(runner.info.facts.get("special_ids", ()))
        plain = [int(i) for i in new if int(i) not in special]
        said = runner.decode(plain)
        return (said.partition(p.stop)[0] if p.stop else said), len(plain)


def _asked(prompts: Tokens, prompt: int) -> str:
    """The prompt as text (of a pair its source); of token numbers without text, their pieces."""
    prompts = prompts if prompts.sources is None else prompts.sources
    return prompts.rendered[prompt] or "".join(prompts.pieces[prompt])
