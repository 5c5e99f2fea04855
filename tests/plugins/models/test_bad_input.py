"""Checkpoints that are not what they say: refused in a second and by name; what nobody needs may be missing."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

from gausslens import ModelError, ModelSpec, OpenModel
from gausslens.__main__ import main
from gausslens.runs.plan import PlanError
from gausslens.spreading.prepare import prepare
from gausslens_models.capture.bridge_engine import BridgeEngine
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.bridge import open_bridge
from gausslens_models.loading.config_and_tokenizer import LAYERS, refuse_absurd_sizes
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import CheckpointModel, open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

Directory = Callable[[str], Path]
Q = "model.layers.1.self_attn.q_proj.weight"


def files(path: Path, **how: Any) -> CheckpointModel:
    return open_weights(ModelSpec(str(path), WeightsParameters(), **how))


def run(path: Path, **how: Any) -> PretrainedModel:
    return open_pretrained(ModelSpec(str(path), TransformersParameters(), **how))


def bridge(path: Path) -> OpenModel:
    return open_bridge(ModelSpec(str(path), TransformersParameters()))


@pytest.fixture
def copy(directory: Directory, tmp_path: Path) -> Callable[..., Path]:
    """A copy of a tiny model, its config or its tensors changed."""

    def of(name: str, config: Mapping[str, Any] | None = None, **tensors: torch.Tensor) -> Path:
        path = tmp_path / name
        shutil.copytree(directory(name), path)
        told = json.loads((path / "config.json").read_text()) | (config or {})
        (path / "config.json").write_text(json.dumps(told))
        if tensors:
            held = load_file(path / "model.safetensors") | tensors
            save_file(held, path / "model.safetensors", {"format": "pt"})
        return path

    return of


@pytest.mark.parametrize("opens", [files, run, bridge])
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llama", {"num_hidden_layers": 10**9}),
        ("qwen2", {"num_hidden_layers": 10**9, "layer_types": None}),
        ("gemma2", {"num_hidden_layers": 10**12}),
        ("gpt2", {"n_layer": 10**9}),
        ("llama", {"hidden_size": 10**9}),
        ("llama", {"intermediate_size": 10**10}),
        ("bert", {"num_attention_heads": 10**9}),
        ("llama", {"vocab_size": 1e12}),
        ("llama", {"text_config": {"num_hidden_layers": 10**9}}),
    ],
)
def test_absurd_sizes_are_refused_in_a_second(
    name: str, config: dict[str, Any], opens: Callable[[Path], OpenModel], copy: Callable[..., Path]
) -> None:
    path = copy(name, config)
    began = time.monotonic()
    key = next(iter(config)) if "text_config" not in config else "num_hidden_layers"
    with pytest.raises(ModelError, match=rf"config\.json: {key} is .*no model has more than"):
        opens(path)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("opens", [files, run])
@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"num_hidden_layers": LAYERS}, "incomplete checkpoint"),
        ({"hidden_size": 2**20, "head_dim": 6}, "has shape"),
        ({"num_attention_heads": 2**16, "head_dim": 6}, "cannot be read"),
    ],
)
def test_sizes_that_could_be_but_are_not_those_of_the_file(
    config: dict[str, Any], told: str, opens: Callable[[Path], OpenModel], copy: Callable[..., Path]
) -> None:
    with pytest.raises(ModelError, match=told):
        opens(copy("llama", config))


def test_sizes_of_real_models_are_none_of_that(tmp_path: Path) -> None:
    """The largest of each kind that there is."""
    told = {"num_hidden_layers": 126, "hidden_size": 18432, "vocab_size": 262144, "max_position_embeddings": 10**7}
    (tmp_path / "config.json").write_text(json.dumps(told | {"rope_theta": 1e9, "n_positions": 10**8}))
    refuse_absurd_sizes(tmp_path / "config.json")


@pytest.mark.parametrize("opens", [files, run, bridge])
@pytest.mark.parametrize(
    ("name", "config", "told"),
    [
        (
            "llama",
            {"attention_bias": False},
            r"0\.self_attn\.q_proj\.bias.*LlamaForCausalLM.*\(attention_bias: false\)",
        ),
        ("llama", {"mlp_bias": False}, r"0\.mlp\.\w+_proj\.bias.*\(mlp_bias: false\)"),
        ("llama", {"model_type": "mistral"}, r"0\.self_attn\.q_proj\.bias.*MistralForCausalLM.*model_type"),
        ("gpt_neox", {"attention_bias": False}, r"0\.attention\.query_key_value\.bias.*\(attention_bias: false\)"),
    ],
)
def test_tensors_that_the_config_switches_off_are_refused(
    name: str, config: dict[str, Any], told: str, opens: Callable[[Path], OpenModel], copy: Callable[..., Path]
) -> None:
    """The model would compute without them, and files alone with them."""
    with pytest.raises(ModelError, match=rf"in the file that the model does not use: .*{told}"):
        opens(copy(name, config))


@pytest.mark.parametrize("opens", [files, run])
def test_tensors_that_the_config_switches_on_must_be_there(
    opens: Callable[[Path], OpenModel], directory: Directory, tmp_path: Path
) -> None:
    """Both ways alike: the file of Mistral has no biases, of which a Llama with biases would be made."""
    path = tmp_path / "llama"
    shutil.copytree(directory("mistral"), path)
    told = json.loads((path / "config.json").read_text())
    changed = {"model_type": "llama", "attention_bias": True, "architectures": ["LlamaForCausalLM"]}
    (path / "config.json").write_text(json.dumps(told | changed))
    with pytest.raises(ModelError, match=r"incomplete checkpoint: .*0\.self_attn\.q_proj\.bias.* missing, .*LlamaForC"):
        opens(path)


@pytest.mark.parametrize("opens", [files, run, bridge])
@pytest.mark.parametrize(
    ("name", "config", "told"),
    [
        ("llama", {"vocab_size": 70}, r"model\.embed_tokens\.weight \[61, 24\], not \[70, 24\], lm_head\.weight \[61"),
        ("llama", {"vocab_size": 50}, r"model\.embed_tokens\.weight \[61, 24\], not \[50, 24\]"),
        ("llama", {"intermediate_size": 44}, r"0\.mlp\.\w+\.weight \[\d+, \d+\], not \[.*44.*config\.json"),
        ("gpt2", {"n_positions": 32}, r"transformer\.wpe\.weight \[64, 24\], not \[32, 24\]"),
        ("bert-masked", {"max_position_embeddings": 512}, r"position_embeddings\.weight \[64, 24\], not \[512, 24\]"),
        ("mixtral", {"num_local_experts": 5}, r"\d tensors as model\.layers\.0\S*experts\.0\S+ \[\d, .*, not \[5, "),
    ],
)
def test_tensors_of_other_shapes_than_the_config_says_are_told_with_both(
    name: str, config: dict[str, Any], told: str, opens: Callable[[Path], OpenModel], copy: Callable[..., Path]
) -> None:
    with pytest.raises(ModelError, match=rf"other shapes than those of the model that its config says: .*{told}"):
        opens(copy(name, config))


@pytest.mark.parametrize("opens", [files, run, bridge])
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("llama", {"num_hidden_layers": 0}),
        ("llama", {"num_attention_heads": 0}),
        ("llama", {"num_attention_heads": -4}),
        ("llama", {"num_key_value_heads": 0}),
        ("llama", {"max_position_embeddings": 0}),
        ("bert", {"hidden_size": 0}),
        ("gpt2", {"n_head": 0}),
        ("gpt2", {"n_positions": 0}),
    ],
)
def test_sizes_of_nothing_are_refused_by_name(
    name: str, config: dict[str, Any], opens: Callable[[Path], OpenModel], copy: Callable[..., Path]
) -> None:
    ((key, value),) = config.items()
    with pytest.raises(ModelError, match=rf"config\.json: {key} is {value}: every model has at least 1"):
        opens(copy(name, config))


@pytest.mark.parametrize("loader", ["auto", "transformers", "transformer-lens", "weights"])
def test_a_directory_without_a_config_is_told_so(
    loader: str, copy: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy("llama")
    for file in path.iterdir():
        if file.name != "model.safetensors":
            file.unlink()
    assert main(["model", str(path), "--loader", loader]) == 1
    assert "no config.json in" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("opens", [files, run])
def test_a_pointer_of_git_lfs_is_told_as_such(
    opens: Callable[[Path], OpenModel], file: str, copy: Callable[..., Path]
) -> None:
    path = copy("llama")
    (path / "model.safetensors").unlink()
    (path / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 134515008\n")
    with pytest.raises(ModelError, match=rf"{file}: a pointer of git-lfs, .*git lfs pull"):
        opens(path)


@pytest.mark.parametrize("opens", [files, run])
def test_an_expert_that_is_missing_is_seen(opens: Callable[[Path], OpenModel], copy: Callable[..., Path]) -> None:
    """In every layer alike, so that all tensors of a layer have as many."""
    path = copy("mixtral")
    held = load_file(path / "model.safetensors")
    last = max(int(n.split(".experts.")[1].split(".")[0]) for n in held if ".experts." in n)
    save_file({n: t for n, t in held.items() if f".experts.{last}." not in n}, path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"{last} tensors as .*experts\.0\S* \[{last}, .*, not \[{last + 1}, "):
        opens(path)


def test_a_head_that_the_class_does_not_have_is_not_read(copy: Callable[..., Path]) -> None:
    path = copy("llama", {"architectures": ["LlamaModel"]})
    model = run(path)
    assert model.module is not None
    for one in (model, files(path)):
        assert "W_U" not in one.names(None)
        assert one.info.facts["unclaimed"] == ("lm_head.weight",)
        assert any("lm_head.weight is not read" in note for note in one.info.facts["notes"])
        assert one.tensor(None, "W_E").shape == (61, 24)
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []


@pytest.mark.parametrize(
    ("name", "config", "told"),
    [
        ("llama", {"hidden_act": "frobnicate"}, "build a LlamaForCausalLM .* KeyError: 'frobnicate'"),
        ("llama", {"rope_parameters": {"rope_type": "wobble", "rope_theta": 1e4}}, "build .* KeyError: 'wobble'"),
        ("mixtral", {"num_experts_per_tok": 9}, "run this model as float32: RuntimeError: selected index k"),
    ],
)
def test_what_transformers_cannot_do_is_told_in_its_words(
    name: str, config: dict[str, Any], told: str, copy: Callable[..., Path]
) -> None:
    path = copy(name, config)
    with pytest.raises(ModelError, match=rf"{name}: transformers cannot {told}.*config\.json"):
        TransformersEngine().prove(run(path))
    if "build" in told:
        with pytest.raises(ModelError, match=rf"{name}: transformers cannot {told}.*config\.json"):
            files(path)


def test_what_transformers_cannot_load_is_told_in_its_words(
    copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("there is no such tensor\nand more")

    model = run(copy("llama"))
    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", fails)
    with pytest.raises(
        ModelError, match="llama: transformers cannot load this model: RuntimeError: there is no such tens"
    ):
        model.module  # noqa: B018


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no memory left"), RuntimeError("DefaultCPUAllocator: can't allocate")]
)
def test_no_memory_is_no_fault_of_the_model(
    error: Exception, copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    model = run(copy("llama"))
    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", fails)
    with pytest.raises(type(error), match=r"memory|allocate"):
        model.module  # noqa: B018


@pytest.mark.parametrize("opens", [files, run, bridge])
@pytest.mark.parametrize("kind", [torch.int16, torch.int8, torch.uint8, torch.int64, torch.bool])
def test_integers_under_the_name_of_a_weight_are_refused(
    kind: torch.dtype, opens: Callable[[Path], OpenModel], copy: Callable[..., Path]
) -> None:
    path = copy("llama", **{Q: torch.ones(24, 24).to(kind)})
    with pytest.raises(ModelError, match=rf"stored as integers are not weights: {Q} \("):
        opens(path)


def test_integers_that_are_no_weights_are_left_alone(copy: Callable[..., Path]) -> None:
    path = copy("bert", **{"embeddings.position_ids": torch.arange(64)[None]})
    assert files(path).info.n_layers == 3


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_another_float_type_than_the_config_says_is_fine(kind: torch.dtype, copy: Callable[..., Path]) -> None:
    plain = copy("llama")
    held = {n: t.to(kind) for n, t in load_file(plain / "model.safetensors").items()}
    save_file(held, plain / "model.safetensors", {"format": "pt"})
    assert [f for f in TransformersEngine().prove(run(plain)) if not f.holds] == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_that_are_none_are_told_by_name(value: float, dtype: str, copy: Callable[..., Path]) -> None:
    weight = torch.randn(24, 24)
    weight[3, 5] = value
    path = copy("llama", **{Q: weight})
    told = rf"NaN or infinite: {Q} \(1 of 576\)"
    with pytest.raises(ModelError, match=told):
        files(path, dtype=dtype).tensor(1, "W_Q")
    assert files(path, dtype=dtype).tensor(0, "W_Q").isfinite().all()
    with pytest.raises(ModelError, match=told):
        TransformersEngine().prove(run(path, dtype=dtype))
    loaded = run(path, dtype=dtype)
    assert loaded.module is not None
    with pytest.raises(ModelError, match=told):
        loaded.tensor(1, "W_Q")
    live = open_pretrained(ModelSpec("live:LlamaForCausalLM", TransformersParameters(), model=loaded.module))
    with pytest.raises(ModelError, match=told):
        TransformersEngine().prove(live)
    with pytest.raises(ModelError, match=told):
        BridgeEngine().prove(bridge(path))


def test_large_but_finite_weights_are_no_such(copy: Callable[..., Path]) -> None:
    """Their sum is infinite, they are not."""
    path = copy("llama", **{Q: torch.full((24, 24), 3e38)})
    assert files(path).tensor(1, "W_Q").isfinite().all()


class TestAMissingPooler:
    """BERT checkpoints of sentence encoders have none: no site goes through it."""

    @pytest.fixture
    def without(self, directory: Directory, tmp_path: Path) -> Path:
        path = tmp_path / "bert"
        shutil.copytree(directory("bert"), path)
        held = {n: t for n, t in load_file(path / "model.safetensors").items() if not n.startswith("pooler.")}
        save_file(held, path / "model.safetensors", {"format": "pt"})
        return path

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
    def test_it_opens_and_is_proved(self, dtype: str, without: Path) -> None:
        model = run(without, dtype=dtype)
        findings = TransformersEngine().prove(model)
        assert [f for f in findings if not f.holds] == []
        assert "final hidden state" in {f.what for f in findings}
        for one in (model, files(without, dtype=dtype)):
            assert "W_pool" not in one.names(None)
            assert "W_E" in one.names(None)
            assert any("no pooler.dense.weight" in note for note in one.info.facts["notes"])

    def test_with_one_nothing_is_told(self, directory: Directory) -> None:
        assert run(directory("bert")).info.facts["notes"] == ()
        assert run(directory("bert-masked")).info.facts["notes"] == ()
        assert "W_pool" in run(directory("bert")).names(None)

    def test_the_plan_tells_it(self, without: Path) -> None:
        plan = prepare(
            {
                "name": "told",
                "model": {"path": str(without)},
                "prompts": {"source": "tokens", "ids": [[3, 4, 5]]},
                "analyses": [{"use": "model.attention"}],
            }
        )[3]
        assert any("no pooler" in note for note in plan.notes)

    def test_what_is_needed_is_refused_as_ever(self, without: Path) -> None:
        held = load_file(without / "model.safetensors")
        del held["embeddings.LayerNorm.weight"]
        save_file(held, without / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError, match=r"embeddings\.LayerNorm\.weight"):
            run(without)


def test_token_numbers_beyond_the_embedding_are_refused_at_plan(copy: Callable[..., Path]) -> None:
    """The tokenizer of another model, with more tokens than the embedding has rows."""
    path = copy("llama")
    words = tokenizers.models.WordLevel({"ant": 3, "bee": 61, "?": 0}, unk_token="?")
    whole = tokenizers.Tokenizer(words)
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="?").save_pretrained(path)
    study = {"name": "beyond", "model": {"path": str(path)}, "analyses": [{"use": "model.loss"}]}
    assert prepare(study | {"prompts": {"source": "text", "text": ["ant ant"]}})[3].steps
    with pytest.raises(PlanError, match="prompt 1 has the token 61; the embedding of llama has rows for 0 to 60"):
        prepare(study | {"prompts": {"source": "text", "text": ["ant ant", "ant bee"]}})


class TestLongRotaryTables:
    """longrope turns all positions by another table where the text is long: there gausslens refuses, by name."""

    @pytest.fixture(scope="class")
    def long(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("phi3")
        torch.manual_seed(0)
        rope = {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.1, 1.2],
            "long_factor": [4.0, 5.0, 6.0],
            "factor": 4.0,
            "original_max_position_embeddings": 40,
        }
        config = transformers.Phi3Config(
            vocab_size=61,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=160,
            original_max_position_embeddings=40,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            rope_parameters=rope,
        )
        model = transformers.Phi3ForCausalLM(config)
        for parameter in model.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape)
        model.save_pretrained(path)
        return path

    def planned(self, path: Path, length: int) -> Any:
        study = {
            "name": "long",
            "model": {"path": str(path)},
            "prompts": {"source": "tokens", "ids": [[3] * length]},
            "analyses": [{"use": "model.loss"}],
        }
        return prepare(study)[3]

    def test_up_to_the_original_length_it_is_proved(self, long: Path) -> None:
        model = run(long)
        assert model.info.max_positions == 40
        findings = TransformersEngine().prove(model)
        assert [f for f in findings if not f.holds] == []
        assert any(f.what == "q_rot of layer 1 from weights" for f in findings)
        assert self.planned(long, 40).steps

    def test_beyond_it_is_refused_at_plan(self, long: Path) -> None:
        with pytest.raises(PlanError, match=r"41 tokens, the model takes 40 \(beyond that its rotary table.*longrope"):
            self.planned(long, 41)

    def test_the_module_would_turn_otherwise_there(self, long: Path) -> None:
        """So it is no idle refusal."""
        rotary = run(long).module.model.rotary_emb
        x = torch.zeros(1, 41, 24)
        short, beyond = (rotary(x, torch.arange(n)[None])[0][0, :40] for n in (40, 41))
        assert float((short - beyond).abs().max()) > 0.1
