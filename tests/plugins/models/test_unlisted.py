"""A type that no table names is read by its structure, if what it computes proves the reading; else it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from tiny_decoders import GROUPED, SLIDING, WIDE
from tiny_mixtures import LOCAL, NAMED, ROUTED

from gausslens import ModelError, ModelSpec
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.families import layout
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

Opens = Callable[[str], PretrainedModel]
Directory = Callable[[str], Path]
# Of each type the row that it must be read by once its own is gone: not always the first whose names fit.
READ = {"seed_oss": "llama", "ernie4_5": "helium", "olmo2": "flex_olmo", "dots1": "glm4_moe", "minimax_m2": "olmoe"}
# Types that no row can read: docs/models.md has the reasons.
REFUSED = {
    "afmoe": ("AfmoeConfig", WIDE | NAMED, "AfmoeForCausalLM"),
    "beam": ("BeamConfig", WIDE | NAMED, "BeamForCausalLM"),
    "laguna": ("LagunaConfig", WIDE | NAMED, "LagunaForCausalLM"),
    "granite_swa": ("GraniteSWAConfig", GROUPED | SLIDING, "GraniteSWAForCausalLM"),
    "granitemoe_swa": ("GraniteMoeSWAConfig", GROUPED | LOCAL | SLIDING, "GraniteMoeSWAForCausalLM"),
    "diffllama": ("DiffLlamaConfig", GROUPED, "DiffLlamaForCausalLM"),
    "doge": ("DogeConfig", GROUPED, "DogeForCausalLM"),
    "jetmoe": ("JetMoeConfig", GROUPED | LOCAL | {"kv_channels": 6}, "JetMoeForCausalLM"),
    "mimo_v2_flash": ("MiMoV2FlashConfig", WIDE | ROUTED, "MiMoV2FlashForCausalLM"),
}


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch, opened: Opens) -> Callable[[str], None]:
    """Takes a type out of all tables."""

    def take(name: str) -> None:
        known = [
            replace(family, model_types=tuple(t for t in family.model_types if t != name))
            for family in layout.FAMILIES
            if family.name != name
        ]
        monkeypatch.setattr(layout, "FAMILIES", tuple(known))

    return take


@pytest.mark.parametrize("name", READ)
def test_it_is_read_by_the_row_that_is_proved(
    name: str, opened: Opens, unlisted: Callable[[str], None], directory: Directory
) -> None:
    listed = opened(name)
    unlisted(name)
    model = opened(name)
    assert model.info.family == f"{name}, read as {READ[name]} by its structure"
    assert model.info.facts["read_as"] == READ[name]
    assert listed.info.facts["read_as"] == ""
    assert model.names(1) == listed.names(1)
    for tensor in model.names(1):
        assert torch.equal(model.tensor(1, tensor), listed.tensor(1, tensor))
    assert torch.equal(model.initial(0, "W_Q", 3), listed.initial(0, "W_Q", 3))
    assert [f for f in TransformersEngine().prove(model) if not f.holds] == []
    live = ModelSpec("live:it", TransformersParameters(), model=listed.module)
    assert open_pretrained(live).info.facts["read_as"] == READ[name]


def test_files_alone_prove_nothing(unlisted: Callable[[str], None], directory: Directory) -> None:
    unlisted("seed_oss")
    with pytest.raises(ModelError, match=r"'seed_oss'; its tensors are laid out as in llama.*loader: transformers"):
        open_weights(ModelSpec(str(directory("seed_oss")), WeightsParameters()))


def test_what_is_not_what_its_names_say_is_refused(opened: Opens, unlisted: Callable[[str], None]) -> None:
    """Gemma has the names of Llama, and gains that are one less."""
    unlisted("gemma")
    with pytest.raises(ModelError, match=r"'gemma'.*llama: q of layer 0 from weights differs by .*transformer-lens"):
        opened("gemma")


def test_a_layout_of_no_row_is_refused(opened: Opens, unlisted: Callable[[str], None]) -> None:
    unlisted("glm4")
    with pytest.raises(ModelError, match=r"'glm4' is not one whose weights.*nobody claims .*post_mlp_layernorm"):
        opened("glm4")


def test_a_refusal_is_one_screen(opened: Opens, unlisted: Callable[[str], None]) -> None:
    unlisted("glm4")
    with pytest.raises(ModelError) as refused:
        opened("glm4")
    assert len(str(refused.value)) < 1200


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_row_can_read_is_refused_by_name(name: str, tmp_path: Path) -> None:
    config_class, arguments, model_class = REFUSED[name]
    module = getattr(transformers, model_class)(getattr(transformers, config_class)(**arguments))
    for parameter in module.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    module.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"the model type '{name}'") as told:
        open_pretrained(ModelSpec(str(tmp_path), TransformersParameters()))
    assert ("transformer-lens" in str(told.value)) == (name in ("afmoe", "jetmoe", "laguna"))  # test_bridge.py has them
    refused = (
        (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8").partition("Refused, with")[2]
    )
    assert f"`{name}`" in refused
