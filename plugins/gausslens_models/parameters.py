"""Parameters of the loaders, prompt sources and analyses of this plugin."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gausslens import Files, Parameters, did_you_mean

BASE = (
    "the model that an adapter is for: a directory, or builtin:NAME or hub:OWNER/NAME; by default what its config names"
)

STACK = (
    "of a model with an encoder and a decoder, which attention is studied: that of the encoder, of the decoder (of the "
    "target to itself), or cross (of the target to the source)"
)

# What a mapping may name: tensors of a layer, and those outside.
_OF_LAYERS = (
    *("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "q_norm.w", "q_norm.b", "k_norm.w", "k_norm.b"),
    *("W_in", "W_gate", "W_out", "b_in", "b_gate", "b_out"),
    *("ln1.w", "ln1.b", "ln2.w", "ln2.b", "ln1_post.w", "ln1_post.b", "ln2_post.w", "ln2_post.b"),
)
_NOT_OURS = "; what is none of these (experts, a router) is named in `ignored`"
_OUTSIDE = ("W_E", "W_pos", "W_U", "b_U", "ln_embed.w", "ln_embed.b", "ln_final.w", "ln_final.b")
_TAPPED = (*("resid_pre", "q", "k", "v", "z", "attn_out", "resid_mid", "mlp_pre", "mlp_post", "mlp_out", "resid_post"),)


class BridgeParameters(Parameters):
    """Keys of `model:` for the loader that builds a model with transformers for TransformerLens."""

    trust_remote_code: bool = Field(
        False, description="run Python code that comes with the model: only if you trust it"
    )
    device_map: str | None = Field(None, description="spread the model over devices: auto, balanced or sequential")
    gguf_file: str | None = Field(None, description="the GGUF file in the directory, which transformers dequantises")


class TransformersParameters(BridgeParameters):
    """Keys of `model:` for the loader that builds a model with transformers."""

    base: Annotated[str | None, Files()] = Field(None, description=BASE)
    stack: Literal["encoder", "decoder", "cross"] | None = Field(None, description=STACK)


class WeightsParameters(Parameters):
    """Keys of `model:` for the loader that reads weights without building a model."""

    base: Annotated[str | None, Files()] = Field(None, description=BASE)
    stack: Literal["encoder", "decoder", "cross"] | None = Field(None, description=STACK)


class LoraParameters(Parameters):
    """A LoRA adapter that is merged into the model."""

    path: Annotated[str, Files("adapter_config.json", "adapter_model.*")] = Field(
        description="the directory of the adapter, relative to the run file"
    )


class ModuleFacts(Parameters):
    """What a plain torch module computes with its tensors; what is not said here is the default, and proved."""

    norm: Literal["rms", "layer"] = Field(description="which norms it has")
    position: Literal["rotary", "learned", "sinusoidal", "none"] = Field(description="how position enters")
    activation: str = Field(description="of the MLP, as transformers calls it: gelu, gelu_new, relu, silu, ...")
    norm_epsilon: float = Field(1e-5, ge=0, description="what norms add to a variance")
    norm_first: bool = Field(True, description="norms stand before attention and MLP; false: behind them")
    causal: bool = Field(True, description="a token sees itself and what is before it; false: all")
    parallel: bool = Field(False, description="attention and MLP read the same stream")
    scale: float | None = Field(None, description="what q . k is multiplied by; d_head ** -0.5 where it is not said")
    soft_cap: float | None = Field(None, gt=0, description="c where scores are c tanh(scores / c)")
    final_soft_cap: float | None = Field(None, gt=0, description="the same of logits")
    sliding_window: int | None = Field(None, ge=1, description="how many tokens a query sees, its own counted")
    rotary_theta: float = Field(10000.0, gt=0, description="the base of rotary frequencies")
    rotary_dims: int | None = Field(None, ge=2, description="how many dimensions of a head turn; all by default")
    rotary_pairs: bool = Field(False, description="neighbours turn (2 i, 2 i + 1); false: the halves of a head")
    query_norm: bool = Field(False, description="q and k are normed though their norms have no gains")
    query_norm_over: Literal["head", "all"] = Field("head", description="over what norms of q and k go")
    query_norm_late: bool = Field(False, description="norms of q and k stand behind the rotation")
    embedding_scale: float = Field(1.0, description="what rows of W_E are multiplied by")
    residual_scale: float = Field(1.0, description="what attention and MLP are multiplied by where they are added")
    logit_scale: float = Field(1.0, description="what logits are multiplied by")


class TorchParameters(Parameters):
    """Keys of `model:`, or of `mapping=` in Python, that say where a plain torch module has what."""

    n_heads: int = Field(ge=1, description="heads of a layer")
    n_kv_heads: int | None = Field(None, ge=1, description="key/value heads, where they are fewer")
    d_model: int | None = Field(None, ge=1, description="width of the stream; the columns of W_E by default")
    d_head: int | None = Field(None, ge=1, description="width of a head, where it is not d_model / n_heads")
    d_mlp: int | None = Field(None, ge=1, description="width of the MLP, to be compared with its tensors")
    max_positions: int | None = Field(None, ge=1, description="the longest text; rows of W_pos by default")
    layers: str = Field(description="the name of the list of layers: transformer.h")
    tensors: dict[str, str] = Field(
        description="of each layer {ours: theirs}, below the name of a layer: W_Q: attn.c_attn.weight[q]"
    )
    outside: dict[str, str] = Field(description="outside the layers {ours: theirs}: W_E: transformer.wte.weight")
    ignored: list[str] = Field(
        [], description="parts of names of tensors that are none of ours (experts, a router): [mlp.experts]"
    )
    stored: Literal["out_in", "in_out"] = Field(
        "out_in", description="how matrices of layers are stored: [out, in] as nn.Linear does, or [in, out] as Conv1D"
    )
    facts: ModuleFacts = Field(description="what is computed with them")
    sites: dict[str, str] = Field(
        {}, description="where a site is seen, if not at the module of its tensor: resid_mid: ln_2 input"
    )
    arguments: dict[str, Literal["ids", "mask"]] = Field(
        {}, description="what the module is given besides token numbers: {attention_mask: mask}, {targets: ids}"
    )
    init: str | None = Field(
        None, description="package.module:function (__main__:function) that makes a fresh module, for reinit.config"
    )

    @field_validator("tensors")
    @classmethod
    def _of_layers(cls, value: dict[str, str]) -> dict[str, str]:
        return _named(value, _OF_LAYERS, ("W_Q", "W_K", "W_V", "W_O"), "tensor of a layer", _NOT_OURS)

    @field_validator("outside")
    @classmethod
    def _of_outside(cls, value: dict[str, str]) -> dict[str, str]:
        return _named(value, _OUTSIDE, ("W_E",), "tensor outside the layers")

    @field_validator("sites")
    @classmethod
    def _of_sites(cls, value: dict[str, str]) -> dict[str, str]:
        return _named(value, _TAPPED, (), "site that a mapping can name")


def _named(
    value: dict[str, str], known: tuple[str, ...], needed: tuple[str, ...], what: str, others: str = ""
) -> dict[str, str]:
    unknown = next((name for name in value if name not in known), None)
    if unknown is not None:
        raise ValueError(f"{unknown} is no {what}{did_you_mean(unknown, known)}; they are {', '.join(known)}{others}")
    missing = next((name for name in needed if name not in value), None)
    if missing is not None:
        raise ValueError(f"{missing} is missing")
    return value


class BuiltinParameters(Parameters):
    """Keys of `model:` for built-in models: there are none."""


class TextParameters(Parameters):
    """Prompts written in the run file."""

    text: list[str] = Field(description="one prompt each", min_length=1)
    role: Literal["", "system", "user", "assistant"] = Field(
        "", description="send each as a chat message of this role, through the model's chat template"
    )


class FileParameters(Parameters):
    """Prompts from a file of lines (.txt), of JSON objects (.jsonl, .json), or a table (.csv, .parquet, ...)."""

    path: str = Field(description="the file, relative to the run file")
    field: str = Field("text", description="which key or column holds the text, where it is no file of lines")
    chunk: int | None = Field(
        None, ge=2, description="join all texts and cut them into prompts of this many tokens, special ones included"
    )
    max_tokens: int | None = Field(
        None, ge=1, description="keep this many tokens: of each prompt, or with `chunk` of the whole file"
    )
    limit: int | None = Field(None, ge=1, description="take this many texts from the start of the file")


class ColumnsParameters(Parameters):
    """Prompts from the rows of a table: a file, or a directory of its shards as `datasets` saves them."""

    path: str = Field(
        description="the table, relative to the run file: .parquet, .arrow, .feather, .jsonl, .json, .csv, .tsv, or a "
        "directory of one of these"
    )
    field: str = Field("text", description="which column holds the text")
    fields: list[str] = Field([], description="instead: several columns, each a segment of its name, in this order")
    between: str = Field("\n", description="what stands behind the text of each column but the last")
    name: str | None = Field(None, description="the column that prompts are called by; by default they are numbered")
    split: str | None = Field(None, description="which split of a directory that holds several")
    offset: int = Field(0, ge=0, description="leave out this many texts from the start")
    sample: int | None = Field(None, ge=1, description="take this many texts at random, by the seed, in their order")
    limit: int | None = Field(None, ge=1, description="take this many texts, the first of those")
    max_tokens: int | None = Field(None, ge=1, description="keep this many tokens of each prompt")

    @property
    def columns(self) -> list[str]:
        """The columns of text."""
        return self.fields or [self.field]

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.fields and "field" in self.model_fields_set:
            raise ValueError("give field or fields, not both")
        if len(set(self.fields)) < len(self.fields):
            raise ValueError("a column is named twice in fields")
        return self


class Pair(Parameters):
    """A text for an encoder, and what the decoder writes of it."""

    source: str = Field(description="what the encoder reads")
    target: str = Field("", description="what the decoder reads, to write it; empty: it begins")


class PairsParameters(Parameters):
    """Prompts in pairs, for models of two stacks: written here, from a file, or both."""

    pairs: list[Pair] = Field([], description="{source: ..., target: ...} each")
    path: str | None = Field(None, description="a file of two columns (.csv, .tsv) or keys (.jsonl, .json)")
    fields: tuple[str, str] = Field(("source", "target"), description="which columns or keys hold source and target")
    limit: int | None = Field(None, ge=1, description="take this many pairs from the start of the file")

    @model_validator(mode="after")
    def _given(self) -> Self:
        if not self.pairs and self.path is None:
            raise ValueError("pairs of your own (pairs), or a file (path)")
        return self


class TokensParameters(Parameters):
    """Prompts as token numbers, passed to the model as they are: add BOS yourself if the model wants it."""

    ids: list[list[int]] = Field(description="one list of token numbers for each prompt", min_length=1)


class RepeatedRandomParameters(Parameters):
    """Uniformly random tokens, then the same again: what induction heads are found by."""

    prompts: int = Field(8, ge=1, description="how many prompts")
    length: int = Field(32, ge=1, description="tokens before they repeat")
    repeats: int = Field(2, ge=1, description="how often the tokens stand in the prompt")


class FewShotParameters(Parameters):
    """An instruction, example pairs of word and clue, and a target: a word that the model is to give a clue."""

    words: str | None = Field(
        None,
        description="a word list: animals, food, professions or tools, or a .yaml file of `word: clue` lines, relative "
        "to the run file; animals where there are no `clues`",
    )
    clues: dict[str, str] = Field({}, description="pairs of your own, word: clue; where a list is named, added to it")
    examples: str | None = Field(None, description="take the examples from this list instead (named as `words` is)")
    shots: int = Field(3, ge=0, description="how many examples stand before the target; the seed draws them")
    targets: list[str] = Field([], description="words to ask for, one prompt each; without any, all words of the list")
    answers: bool = Field(False, description="the target's own clue follows it, as segment `answer`: to measure loss")
    instruction: str = Field("Write a short clue for each word.", description="what stands first; may be empty")
    template: str = Field(
        "{word}: {clue}\n", description="how a pair is written; the target ends after what follows {word}"
    )
    chat: Literal["auto", "yes", "no"] = Field(
        "auto", description="as chat messages, user and assistant in turn; auto: where the model has a chat template"
    )


class CaptureParameters(Parameters):
    """Raw activations into the store."""

    sites: list[str] = Field(description="which sites", min_length=1)
    dtype: Literal["float32", "float64", "float16", "bfloat16"] | None = Field(
        None,
        description="as what numbers are kept; the 2-byte types take half the disk (float16: 3 digits up to 65504, "
        "bfloat16: 2 digits and no limit); by default float32, or float64 where the model computes in it",
    )
    most_gigabytes: float = Field(4.0, gt=0, description="refuse to write more than this")

    @field_validator("sites")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        twice = [site for site in value if value.count(site) > 1]
        if twice:
            raise ValueError(f"{twice[0]} is named twice")
        return value


class LossParameters(Parameters):
    """How well the model predicts each token of the prompts."""

    segments: list[str] = Field(
        [], description="count only tokens of these segments, with * as wildcard: [answer, example.*.clue]; [] is all"
    )


class SeedsParameters(Parameters):
    """Which trainings differ in what: three variants whose draws are models, or one that is swept over both seeds."""

    of: str = Field(description="the label of the result whose numbers are looked at")
    data: str | None = Field(None, description="the variant whose draws differ in the seed of the data alone")
    initialisation: str | None = Field(None, description="the variant whose draws differ in the initialisation alone")
    both: str | None = Field(None, description="the variant whose draws differ in both")
    crossed: str | None = Field(
        None, description="instead: the variant that is swept over both seeds, that of the data first"
    )

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        groups = [self.data, self.initialisation, self.both]
        if (self.crossed is None) == (None in groups) or (self.crossed is not None and any(groups)):
            raise ValueError("give data, initialisation and both, or crossed alone")
        return self


class GenerateParameters(Parameters):
    """What the model writes after each prompt."""

    tokens: int = Field(24, ge=1, description="the most tokens to write")
    stop: str = Field("\n", description="stop before this text; empty: only at the end-of-text token")
    temperature: float = Field(0.0, ge=0, description="0: always the likeliest token; else sampled, by the seed")
    samples: int = Field(1, ge=1, description="how many continuations of each prompt")


class AttentionMapParameters(Parameters):
    """Where the heads look, as maps between tokens or words and in numbers by head."""

    level: Literal["token", "word"] = Field(
        "token", description="word: attention to the tokens of a word is summed, from them averaged; rows sum to 1"
    )
    maps: Literal["auto", "mean", "weighted", "heads", "none"] = Field(
        "auto",
        description="keep maps averaged over heads, averaged with the size of each head's W_O (Frobenius) as weight, "
        "of each head, or only the numbers by head; auto is mean where those maps take at most 16 MB, else none",
    )
    rows: Literal["mean", "sum"] = Field(
        "mean",
        description="sum: maps of words have in a row the sum over the word's tokens in place of their mean, so that "
        "it sums to their number; numbers by head are of means",
    )
    parts: list[str] = Field(
        [],
        description="segments that belong together, in order: [example.*, target] is a part for each example and one "
        "for the target; adds attention to the own part and to those before it",
    )
    queries: list[str] = Field([], description="rows of these segments only, with * as wildcard: [target]; [] is all")
    keys: list[str] = Field([], description="columns of the maps from these segments only; [] is all")
    most_gigabytes: float = Field(
        4.0, gt=0, exclude=True, description="refuse to keep more maps than this; no result depends on it"
    )

    @model_validator(mode="after")
    def _of_words(self) -> Self:
        if self.rows == "sum" and self.level == "token":
            raise ValueError("rows: sum is of words, whose tokens it sums: say level: word")
        return self

    def canonical(self) -> dict[str, Any]:
        """As plain data; without what is as it was before there was a choice, for keys of then are keys of now."""
        plain = super().canonical()
        return {name: held for name, held in plain.items() if (name, held) not in (("rows", "mean"), ("parts", []))}


class EmbeddingsParameters(Parameters):
    """The embedding of the vocabulary, and the neighbours there of the tokens of the prompts."""

    nearest: int = Field(8, ge=1, description="how many nearest tokens")
    draws: int = Field(64, ge=2, description="random vectors of the same length to compare softmax entropies with")
