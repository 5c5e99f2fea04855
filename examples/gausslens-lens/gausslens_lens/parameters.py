"""What a run file may choose."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from gausslens import Parameters

SiteName = Literal["resid_pre", "resid_mid", "attn_out", "mlp_out", "q", "k", "v", "z"]


class Pair(Parameters):
    """Two prompts of as many tokens, and the tokens that answer them."""

    clean: str = Field(description="The prompt of which the right answer is known.")
    corrupted: str = Field(description="The same with something changed; as many tokens.")
    answer: str = Field(description="What follows the clean prompt, with its space; its first token counts.")
    wrong: str = Field(description="What follows the corrupted prompt.")


class Swap(Parameters):
    """A rule: one text, in which a word is swapped."""

    text: str = Field(description="A text with {} where the word stands.")
    words: dict[str, str] = Field(
        min_length=2, description="Words, and what follows the text with each, with its space."
    )

    @model_validator(mode="after")
    def _has_a_place(self) -> Swap:
        if "{}" not in self.text:
            raise ValueError("text has no {} for the word")
        return self


class Induction(Parameters):
    """A rule: random tokens, again up to one of them; corrupted, that one is another the first time."""

    length: int = Field(8, ge=2, description="How many tokens are repeated.")
    pairs: int = Field(16, ge=1, description="How many pairs are drawn, from the tokens that the prompts hold.")
    seed: int = Field(0, ge=0, description="Of the draw: steps with the same prompts and rule have the same pairs.")


class PairsParameters(Parameters):
    """Where pairs of a clean and a corrupted prompt come from: one of three."""

    pairs: tuple[Pair, ...] = Field((), description="Pairs, written out.")
    swap: Swap | None = Field(None, description="A text in which a word is swapped: each pair of two of the words.")
    induction: Induction | None = Field(None, description="Random tokens that are repeated.")

    @model_validator(mode="after")
    def _one_of_them(self) -> PairsParameters:
        if sum((bool(self.pairs), self.swap is not None, self.induction is not None)) > 1:
            raise ValueError("give one of pairs, swap and induction")
        return self

    @property
    def given(self) -> bool:
        """Whether there are any."""
        return bool(self.pairs) or self.swap is not None or self.induction is not None


class PatchedParameters(PairsParameters):
    """What patching and attribution share. Without pairs, these are drawn by the rule `induction`."""

    sites: tuple[SiteName, ...] = Field(
        ("resid_pre", "z"), min_length=1, description="What is put from one run into the other."
    )
    metric: Literal["logit-difference", "kl"] = Field(
        "logit-difference",
        description="What is measured at the last token: the logit of the answer less that of the wrong one, or minus "
        "the KL divergence from the clean distribution.",
    )
    direction: Literal["denoise", "noise"] = Field(
        "denoise", description="denoise: from the clean run into the corrupted one; noise: the other way."
    )
    each_position: bool = Field(False, description="Heads position by position too, not at all positions at once.")


class PatchingParameters(PatchedParameters):
    """Parameters of lens.patching."""

    top: int = Field(4, ge=1, description="So many heads, those of the largest effect, are patched together.")
    random_sets: int = Field(
        20, ge=2, description="So many random sets of as many heads of the same layers beside them."
    )


class AttributionParameters(PatchedParameters):
    """Parameters of lens.attribution."""


class AgreementParameters(Parameters):
    """Parameters of lens.agreement."""

    patching: str = Field("lens.patching", description="The label of a lens.patching step.")
    attribution: str = Field("lens.attribution", description="The label of a lens.attribution step.")


class DirectParameters(PairsParameters):
    """Parameters of lens.direct. Without pairs, the prompts of the run and the token that follows each of theirs."""


class TunedParameters(Parameters):
    """Parameters of lens.tuned."""

    passes: int = Field(4, ge=1, description="How often it sees the prompts.")
    rate: float = Field(1e-3, gt=0, description="The first step of Adam; it falls to 0 along a straight line.")
    tokens: int = Field(256, ge=1, description="So many tokens of each shard are trained on.")


class TunedLossParameters(Parameters):
    """Parameters of lens.tuned-loss."""

    of: str = Field("lens.tuned", description="The label of a lens.tuned step.")
