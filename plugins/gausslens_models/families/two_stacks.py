"""Models of two stacks, an encoder and a decoder that reads it: T5's kin and BART's. Data, three rows a type.

A layer of a decoder has two attentions. Row "decoder" is the first, over the target itself; row "cross" is the second,
whose queries are of the target and whose keys and values are of what the encoder gives: for it a layer begins with what
that attention finds of the stream. What belongs to another row is nobody's.
"""

from __future__ import annotations

from dataclasses import replace

from .slots import (
    NO_ROTATION,
    Family,
    Slot,
    Tap,
    attention,
    attention_taps,
    gated_mlp,
    mlp,
    mlp_taps,
    norm,
)

_NO_HEAD = {"logits": "the encoder has no head: what is predicted is seen with `stack: decoder` or `stack: cross`"}
_UNTURNED = {"q_rot": NO_ROTATION, "k_rot": NO_ROTATION}
_BETWEEN = {"resid_mid": "attention to the source is added between: `stack: cross` proves it"}
_NORMED_FIRST = {"embed": "it is normed before positions are added"}
_BEFORE_MLP = Tap("final_layer_norm", "in")
_AFTER_SELF = {"embed": "attention of the target to itself stands between the embedding and this"}


def _of_decoder(outside: dict[str, Slot]) -> dict[str, Slot]:
    """What stands outside an encoder, as its decoder has it."""
    return {ours: replace(slot, tensor=slot.tensor.replace("encoder.", "decoder.")) for ours, slot in outside.items()}


def _bart_layer(at: str, ln1: str) -> dict[str, Slot]:
    """The tensors of a layer of BART's kin, around one of its attentions."""
    names = [f"{at}.{letter}_proj" for letter in ("q", "k", "v", "out")]
    return (
        attention(names[0], names[1], names[2], names[3])
        | mlp("fc1", "fc2")
        | norm("ln1", ln1, bias=True)
        | norm("ln2", "final_layer_norm", bias=True)
    )


def _bart_taps(at: str, middle: Tap) -> dict[str, Tap]:
    return {
        **attention_taps(f"{at}.q_proj", f"{at}.k_proj", f"{at}.v_proj", at),
        "resid_mid": middle,
        **mlp_taps("fc1", "fc2", "fc2"),
    }


def _bart_encoder(
    name: str,
    norm_first: bool,
    positions: int | None,
    waves: tuple[int | str, int] | None = None,
    embed_norm: bool = False,
    final_norm: bool = False,
    start: str = "decoder_start_token_id",
) -> Family:
    """The row of an encoder. ``positions`` are the rows of W_pos that are nobody's, None where positions are waves."""
    outside = {"W_E": Slot("shared.weight|encoder.embed_tokens.weight")}
    outside |= {} if positions is None else {"W_pos": Slot("encoder.embed_positions.weight", skip=positions)}
    outside |= norm("ln_embed", "encoder.layernorm_embedding", bias=True) if embed_norm else {}
    outside |= norm("ln_final", "encoder.layer_norm", bias=True) if final_norm else {}
    # Positions that are waves lie in some files all the same.
    unread = ("embed_tokens", *(("embed_positions",) if positions is None else ()))
    return Family(
        name=f"{name}-encoder",
        model_types=(name,),
        layers="encoder.layers",
        attention="self_attn",
        tensors=_bart_layer("self_attn", "self_attn_layer_norm"),
        taps=_bart_taps("self_attn", _BEFORE_MLP if norm_first else Tap("self_attn_layer_norm")),
        outside=outside,
        ignored=("decoder.", "lm_head", "final_logits_bias", *unread),
        lacking=_UNTURNED | _NO_HEAD,
        position="learned" if waves is None else "sinusoidal",
        waves=waves,
        multipliers={"embedding_scale": ("d_model", 0.5, "scale_embedding")},
        norm="layer",
        norm_first=norm_first,
        epsilon_of_config=False,
        causal=False,
        stack="encoder",
        view={"num_hidden_layers": "encoder_layers", "num_attention_heads": "encoder_attention_heads"},
        start=start,
    )


def _bart_decoder(encoder: Family, unproved: dict[str, str]) -> Family:
    head = {"W_U": Slot("lm_head.weight", "in_out"), "b_U": Slot("final_logits_bias", "row")}
    return replace(
        encoder,
        name=encoder.name.replace("-encoder", "-decoder"),
        layers="decoder.layers",
        taps=_bart_taps("self_attn", _BEFORE_MLP if encoder.norm_first else Tap("encoder_attn_layer_norm")),
        outside=_of_decoder(encoder.outside) | head,
        optional=("W_U", "b_U"),
        ignored=("encoder.", "encoder_attn", *encoder.ignored[3:]),
        lacking=_UNTURNED,
        unproved=_BETWEEN | unproved,
        causal=True,
        stack="decoder",
        view={"num_hidden_layers": "decoder_layers", "num_attention_heads": "decoder_attention_heads"},
    )


def _bart_cross(decoder: Family) -> Family:
    first = decoder.norm_first
    return replace(
        decoder,
        name=decoder.name.replace("-decoder", "-cross"),
        attention="encoder_attn",
        tensors=_bart_layer("encoder_attn", "encoder_attn_layer_norm"),
        taps=_bart_taps("encoder_attn", _BEFORE_MLP if first else Tap("encoder_attn_layer_norm"))
        | {"resid_pre": Tap("encoder_attn_layer_norm", "in") if first else Tap("self_attn_layer_norm")},
        ignored=("encoder.", "self_attn", *decoder.ignored[2:]),
        unproved=_AFTER_SELF,
        position="none",
        waves=None,
        causal=False,
        stack="cross",
    )


def bart_rows(encoder: Family, unproved: dict[str, str] | None = None) -> tuple[Family, Family, Family]:
    """Three rows of that of an encoder; ``unproved`` are sites of the decoder."""
    decoder = _bart_decoder(encoder, unproved or {})
    return encoder, decoder, _bart_cross(decoder)


def _t5_layer(at: str, feed: str) -> dict[str, Slot]:
    """The tensors of a block of T5: its layers are an attention or an MLP each, with a norm before it."""
    first, name = at.rpartition(".")[0], at
    return (
        attention(f"{name}.q", f"{name}.k", f"{name}.v", f"{name}.o")
        | gated_mlp(f"{feed}.DenseReluDense.wi_0", f"{feed}.DenseReluDense.wi_1", f"{feed}.DenseReluDense.wo")
        | {"W_in": Slot(f"{feed}.DenseReluDense.wi.weight|{feed}.DenseReluDense.wi_1.weight", "in_out")}
        | norm("ln1", f"{first}.layer_norm")
        | norm("ln2", f"{feed}.layer_norm")
    )


def _t5_taps(at: str, feed: str) -> dict[str, Tap]:
    return {
        **attention_taps(f"{at}.q", f"{at}.k", f"{at}.v", at),
        "resid_mid": Tap(f"{feed}.layer_norm", "in"),
        **mlp_taps(f"{feed}.DenseReluDense.wi", f"{feed}.DenseReluDense.wo", f"{feed}.DenseReluDense"),
    }


_BIASES = tuple(f"b_{part}" for part in ("Q", "K", "V", "O", "in", "gate", "out"))
_T5_SELF, _T5_CROSS = "layer.0.SelfAttention", "layer.1.EncDecAttention"
_T5_BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"


def _t5_encoder(name: str, types: tuple[str, ...], each: bool = False) -> Family:
    """Numbers by distance are in the first block and serve all, or with ``each`` in every block."""
    distance = {"W_distance": Slot(_T5_BIAS if each else f"encoder.block.0.{_T5_BIAS}")}
    outside = {"W_E": Slot("shared.weight|encoder.embed_tokens.weight")}
    return Family(
        name=f"{name}-encoder",
        model_types=types,
        layers="encoder.block",
        attention=_T5_SELF,
        tensors=_t5_layer(_T5_SELF, "layer.1") | (distance if each else {}),
        taps=_t5_taps(_T5_SELF, "layer.1"),
        outside=outside | norm("ln_final", "encoder.final_layer_norm") | ({} if each else distance),
        optional=(*_BIASES, "W_gate"),
        ignored=("decoder.", "lm_head", "embed_tokens"),
        lacking=_UNTURNED | _NO_HEAD,
        when=(("is_gated_act", True, {"mlp_pre": Tap("layer.1.DenseReluDense.wi_0")}, {}),),
        position="buckets",
        scale=1.0,
        causal=False,
        stack="encoder",
        view={"num_hidden_layers": "num_layers"},
        start="decoder_start_token_id",
    )


def _t5_decoder(encoder: Family, scaled: str) -> Family:
    """``scaled`` is the key of the config that switches on the scaling of what the head reads."""
    own = {ours: slot for ours, slot in encoder.tensors.items() if ours == "W_distance"}
    return replace(
        encoder,
        name=encoder.name.replace("-encoder", "-decoder"),
        layers="decoder.block",
        tensors=_t5_layer(_T5_SELF, "layer.2") | own,
        taps=_t5_taps(_T5_SELF, "layer.2"),
        outside=_of_decoder(encoder.outside) | {"W_U": Slot("lm_head.weight", "in_out")},
        optional=(*encoder.optional, "W_U"),
        ignored=("encoder.", "layer.1.", "embed_tokens"),
        lacking=_UNTURNED,
        when=(("is_gated_act", True, {"mlp_pre": Tap("layer.2.DenseReluDense.wi_0")}, {}),),
        multipliers={"logit_scale": ("d_model", -0.5, scaled)},
        unproved=_BETWEEN,
        causal=True,
        stack="decoder",
        view={"num_hidden_layers": "num_decoder_layers"},
    )


def _t5_cross(decoder: Family) -> Family:
    return replace(
        decoder,
        name=decoder.name.replace("-decoder", "-cross"),
        attention=_T5_CROSS,
        tensors=_t5_layer(_T5_CROSS, "layer.2"),
        taps=_t5_taps(_T5_CROSS, "layer.2") | {"resid_pre": Tap("layer.1.layer_norm", "in")},
        outside={ours: slot for ours, slot in decoder.outside.items() if ours != "W_distance"},
        ignored=("encoder.", "layer.0.", "EncDecAttention.relative_attention_bias", "embed_tokens"),
        unproved=_AFTER_SELF,
        position="none",
        causal=False,
        stack="cross",
    )


def t5_rows(encoder: Family, scaled: str = "scale_decoder_outputs") -> tuple[Family, Family, Family]:
    """Three rows of that of an encoder."""
    decoder = _t5_decoder(encoder, scaled)
    return encoder, decoder, _t5_cross(decoder)


TWO_STACKS = (
    *t5_rows(_t5_encoder("t5", ("t5", "mt5"))),
    *t5_rows(_t5_encoder("umt5", ("umt5",), each=True), scaled="tie_word_embeddings"),
    *bart_rows(_bart_encoder("bart", norm_first=False, positions=2, embed_norm=True)),
    *bart_rows(_bart_encoder("plbart", norm_first=False, positions=2, embed_norm=True, start="last")),
    *bart_rows(_bart_encoder("mbart", norm_first=True, positions=2, embed_norm=True, final_norm=True, start="last")),
    *bart_rows(_bart_encoder("pegasus", norm_first=True, positions=None, waves=(0, 0), final_norm=True)),
    *bart_rows(_bart_encoder("marian", norm_first=False, positions=None, waves=(0, 0))),
    *bart_rows(_bart_encoder("m2m_100", norm_first=True, positions=None, waves=("pad_token_id", 1), final_norm=True)),
    *bart_rows(_bart_encoder("blenderbot", norm_first=True, positions=0, final_norm=True)),
    *bart_rows(_bart_encoder("blenderbot-small", norm_first=False, positions=0, embed_norm=True), _NORMED_FIRST),
)
