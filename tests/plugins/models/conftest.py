"""Tiny random models of every family, as directories: odd on purpose (grouped queries, head_dim not d_model over heads,
biases that are not zero, tied embeddings, fused q/k/v, sliding windows, soft caps).

A test that asks for ``which`` runs once for each of them, and for ten of tiny_decoders.py and tiny_mixtures.py (in the
long tier for all of these); one that asks for ``family_of_all`` once for each, in every tier.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_decoders import BRIDGED, DECODERS, GROUPED, SMALL, VOCABULARY
from tiny_encoders import ENCODERS
from tiny_hybrids import HYBRIDS
from tiny_latent import LATENT
from tiny_mixtures import MIXTURES
from tiny_relative import RELATIVE
from tiny_stacks import saved as saved_stacks

from gausslens import ModelSpec, Part, Prompt, Tokens, Twin
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import CheckpointModel, open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

# name: (config class, arguments, class with or without a language-model head)
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt2": ("GPT2Config", SMALL | {"n_inner": 40}, "GPT2LMHeadModel"),
    "gpt2-layer-scaled": (
        "GPT2Config",
        SMALL | {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False},
        "GPT2LMHeadModel",
    ),
    "gpt2-headless": ("GPT2Config", SMALL, "GPT2Model"),
    "llama": ("LlamaConfig", GROUPED | {"attention_bias": True, "mlp_bias": True}, "LlamaForCausalLM"),
    "llama-tied": (
        "LlamaConfig",
        GROUPED
        | {
            "head_dim": 10,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
        "LlamaForCausalLM",
    ),
    "mistral": ("MistralConfig", GROUPED | {"head_dim": 8, "sliding_window": 5}, "MistralForCausalLM"),
    "qwen2": (
        "Qwen2Config",
        GROUPED | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        "Qwen2ForCausalLM",
    ),
    "qwen3": ("Qwen3Config", GROUPED | {"head_dim": 10, "tie_word_embeddings": True}, "Qwen3ForCausalLM"),
    "gemma2": (
        "Gemma2Config",
        GROUPED | {"head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 4, "attn_logit_softcapping": 2.0},
        "Gemma2ForCausalLM",
    ),
    "gemma3": (
        "Gemma3TextConfig",
        GROUPED | {"head_dim": 10, "sliding_window": 4, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
        "Gemma3ForCausalLM",
    ),
    "phi3": (
        "Phi3Config",
        GROUPED | {"partial_rotary_factor": 0.5, "original_max_position_embeddings": 64},
        "Phi3ForCausalLM",
    ),
    "gpt_neox": ("GPTNeoXConfig", SMALL | {"rotary_pct": 0.5}, "GPTNeoXForCausalLM"),
    "gpt_neox-sequential": ("GPTNeoXConfig", SMALL | {"use_parallel_residual": False}, "GPTNeoXForCausalLM"),
    "bert": ("BertConfig", SMALL, "BertModel"),
    "bert-masked": ("BertConfig", SMALL, "BertForMaskedLM"),
    "opt": ("OPTConfig", SMALL | {"ffn_dim": 40, "word_embed_proj_dim": 24}, "OPTForCausalLM"),
    "opt-after": (
        "OPTConfig",
        SMALL | {"ffn_dim": 40, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
        "OPTForCausalLM",
    ),
    "lfm2": (
        "Lfm2Config",
        GROUPED | {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
        "Lfm2ForCausalLM",
    ),
}

FULL = os.environ.get("GAUSSLENS_FULL") == "1"
EVERY_TYPE = os.environ.get("GAUSSLENS_TYPES") == "all"
# The long tier takes every third besides, GAUSSLENS_TYPES=all all of them; the proof itself runs on all.
SAMPLE = (
    *("olmo2", "cohere2", "nanochat", "granite", "glm4", "gpt_bigcode", "phi", "mixtral", "gpt_oss", "qwen2_moe"),
)
MORE = DECODERS | MIXTURES
ALL = MODELS | MORE
# Those that lack a site, or are no decoders: test_encoders.py and its neighbours ask of them what they have.
OTHERS = ENCODERS | RELATIVE | LATENT | HYBRIDS | BRIDGED


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "which" in metafunc.fixturenames:
        # TransformerLens is asked for what plain transformers cannot do; the rest of the tables needs it for nothing.
        more = () if metafunc.module.__name__.endswith("test_bridge") else _more()
        metafunc.parametrize("which", dict.fromkeys([*MODELS, *more]))
    if "family_of_all" in metafunc.fixturenames:
        metafunc.parametrize("family_of_all", ALL)


def _more() -> list[str]:
    """The new types that tests of many run on."""
    if EVERY_TYPE:
        return list(MORE)
    return [*SAMPLE, *list(MORE)[::3]] if FULL else list(SAMPLE)


def _class_of(config_class: str) -> Any:
    """A config class; some are only known by their type."""
    found = getattr(transformers, config_class, None)
    return found or transformers.AutoConfig.for_model(config_class.removesuffix("Config").lower()).__class__


def build(name: str) -> Any:
    """A model whose every parameter is random: biases and gains too, so that none can be forgotten unseen."""
    config_class, arguments, model_class = (ALL | OTHERS)[name]
    config = _class_of(config_class)(**arguments)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(map(ord, name)))
        model = getattr(transformers, model_class)(config)
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            spread = 0.3 if parameter.ndim > 1 else 0.2
            parameter.data += spread * torch.randn(parameter.shape)
    return model.eval()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Fingerprints of tests go into a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny model, saved once."""
    saved: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in saved:
            saved[name] = tmp_path_factory.mktemp(name)
            build(name).save_pretrained(saved[name])
        return saved[name]

    return of


@pytest.fixture(scope="session")
def opened(directory: Callable[[str], Path]) -> Callable[[str], PretrainedModel]:
    """A tiny model opened by the loader `transformers`, fresh each time."""
    return lambda name: open_pretrained(ModelSpec(str(directory(name)), TransformersParameters()))


@pytest.fixture(scope="session")
def stacks_at(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny model of two stacks, saved once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = saved_stacks(name, tmp_path_factory.mktemp(name))
        return made[name]

    return of


@pytest.fixture(scope="session")
def open_stack(stacks_at: Callable[[str], Path]) -> Callable[..., PretrainedModel]:
    """One stack of a tiny model of two, fresh each time."""

    def of(name: str, stack: Any, dtype: str = "float32") -> PretrainedModel:
        return open_pretrained(ModelSpec(str(stacks_at(name)), TransformersParameters(stack=stack), dtype=dtype))

    return of


@pytest.fixture(scope="session")
def as_files(directory: Callable[[str], Path]) -> Callable[[str], CheckpointModel]:
    """A tiny model opened by the loader `weights`."""
    return lambda name: open_weights(ModelSpec(str(directory(name)), WeightsParameters()))


@pytest.fixture(scope="session")
def prompts() -> Tokens:
    """Three prompts of different lengths as token numbers."""
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, VOCABULARY, (n,), generator=draw).tolist() for n in (11, 7, 9)]
    from gausslens_models.prompts.tokenise import tokenise

    return tokenise(None, [Prompt(ids=tuple(row)) for row in rows], "tiny")


@pytest.fixture
def text_prompt() -> Prompt:
    """A prompt of two parts."""
    return Prompt((Part("The ant", segment="word"), Part(" sees the bee", segment="clue")))


@dataclass
class Written(Twin):
    """A twin whose overlay is written down, for tests of engines alone."""

    change: Callable[[str, torch.Tensor], torch.Tensor | None] = lambda name, tensor: None
    edits: Any = ("written",)
    made: dict[Any, dict[str, torch.Tensor]] = field(default_factory=dict)

    def overlay(self, layer: int | None) -> Mapping[str, torch.Tensor]:
        if layer not in self.made:
            found = {name: self.change(name, self.base.tensor(layer, name)) for name in self.base.names(layer)}
            self.made[layer] = {name: tensor for name, tensor in found.items() if tensor is not None}
        return self.made[layer]

    def adopt(self, layer: int | None, name: str, tensor: torch.Tensor) -> None:
        assert torch.equal(self.made[layer][name], tensor)
        self.made[layer][name] = tensor


@pytest.fixture(scope="session")
def written() -> type[Written]:
    """The class of twins whose overlay is written down."""
    return Written
