"""Writes the table of models into models.md, from the tables of tiny models that the tests prove.

    python docs/list_models.py          writes it
    python docs/list_models.py --check  ends with 1 where the table is older than the tests

Each row of tests/plugins/models/tiny_*.py, and of MODELS beside them, is built without memory and laid out as its
checkpoint would be: what the table says is what gausslens reads of it. Where plain transformers see no scores, the
tiny model is opened through TransformerLens: the table says so where that shows them.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, TESTS = ROOT / "docs/models.md", ROOT / "tests/plugins/models"
# What families whose attention cannot be watched do not have; tests/plugins/models/test_documents.py runs them all.
OF_SCORES = ("attention.pooling", "bilinear.logits")
OF_REPLACEMENT = ("attention.swap", "bilinear.angles", "gaussian.collapse", "spectrum.effect")
OF_ROTATED = ("attention.kernels", "attention.lowrank")  # the latter for Linformer
BEGIN, END = "<!-- made by docs/list_models.py: begin -->", "<!-- end -->"
# The table of tiny models of two stacks.
STACKED = "STACKED"
Row = tuple[str, dict[str, Any], str]


def tables() -> Iterator[tuple[str, Mapping[str, Row]]]:
    """All tables of tiny models: dictionaries of (config class, arguments, model class)."""
    sys.path.insert(0, str(TESTS))
    models = importlib.import_module("random_models")
    yield "MODELS", models.MODELS
    for path in sorted(TESTS.glob("tiny_*.py")):
        module = importlib.import_module(path.stem)
        for name, table in vars(module).items():
            if name.isupper() and isinstance(table, dict) and all(_is_row(row) for row in table.values()):
                yield name, table


def _is_row(row: Any) -> bool:
    return isinstance(row, tuple) and len(row) == 3 and isinstance(row[0], str) and isinstance(row[1], dict)


def described(row: Row) -> tuple[str, Any, set[str], bool | None]:
    """The type of a row, its family, what is not as in Llama, and of those without scores whether a bridge has them."""
    import torch
    import transformers

    from gausslens_models.families.facts import model_info
    from gausslens_models.families.layout import family_of, make_layout

    config_class, arguments, model_class = row
    known = getattr(transformers, config_class, None)
    name = config_class.removesuffix("Config").lower()
    config = known(**arguments) if known else transformers.AutoConfig.for_model(name, **arguments)
    with torch.device("meta"):
        module = getattr(transformers, model_class)(config)
    shapes = {n: tuple(p.shape) for n, p in module.named_parameters()}
    headed = module.get_output_embeddings() is not None
    layout = make_layout(family_of(config, model_class), config, shapes, model_class, headed)
    info = model_info(name, config, layout, "", "float32")
    family = layout.family
    return config.model_type, family, notes(info, layout), None if family.watched else bridged(config, model_class)


def bridged(config: Any, model_class: str) -> bool:
    """Whether TransformerLens opens such a model and shows its scores, by trying."""
    import torch
    import transformers

    from gausslens import ModelError, ModelSpec
    from gausslens_models.loading.bridge import open_bridge
    from gausslens_models.parameters import TransformersParameters

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        getattr(transformers, model_class)(config).save_pretrained(directory)
        try:
            return "scores" in open_bridge(ModelSpec(directory, TransformersParameters())).sites
        except ModelError:
            return False


def shown_by(family: Any, tried: list[bool]) -> str:
    """The loaders that show patterns and scores of a type, of what was tried with its configurations."""
    if not any(tried):
        return "`transformers`"
    but = [key for key, _, _, lost in family.when if "scores" in lost]
    return "`transformers`; scores by `transformer-lens`" + ("" if all(tried) else f", not with `{but[0]}`")


def notes(info: Any, layout: Any) -> set[str]:
    """What mathematics has to know of a model, in words."""
    facts, layers = info.facts, info.layers
    turned = facts.get("rotary", ())
    said = {
        "encoder": not info.causal,
        f"{facts['position']} position": facts["position"] != "rotary",
        "rotary pairs": any(each.get("pairs") for each in turned),
        "rotated in part": any(0 < 2 * len(each["frequencies"]) < info.d_head for each in turned),
        "some layers not rotated": any(not each["frequencies"] for each in turned),
        "q and k normed": facts.query_norm and facts.query_norm_over == "head" and not facts.query_norm_late,
        "q and k normed behind the rotation": facts.query_norm and facts.query_norm_late,
        "q and k normed over all heads": facts.query_norm and facts.query_norm_over == "all",
        "q grows with position": any(facts.query_growth(n) for n in layers),
        "q, k, v clipped": facts.clip is not None,
        "biases": bool(facts.biases),
        "layer norm": facts.norm == "layer",
        "norms without gains": facts.norm_first and not facts.gains,
        "norms behind": not facts.norm_first,
        "norms before and behind": facts.norm_first and any("ln1_post.w" in p for p in layout.places.values()),
        "attention and MLP parallel": facts.parallel,
        "sliding windows": any(facts.window(n) for n in layers),
        "soft caps": facts.soft_cap is not None,
        "sinks": facts.sinks,
        "multipliers": (facts.embedding_scale, facts.residual_scale, facts.logit_scale) != (1, 1, 1),
        "experts": any(facts.experts(n) for n in layers),
        "shared experts": any("W_shared_in" in places for places in layout.places.values()),
        "layers without attention": any(layout.kinds),
        "latent attention": bool(layout.family.latent),
        "one layer for all depths": layout.family.shared,
        "heads gated": any("W_gate_z" in places for places in layout.places.values()),
        "attention not watched: no scores": not layout.family.watched,
        "q, k, v in one matrix": any(p["W_Q"].slot.part for p in layout.places.values() if "W_Q" in p),
    }
    return {word for word, is_so in said.items() if is_so}


def table() -> str:
    """The tables in Markdown: a row a type, and those that are refused."""
    from gausslens_models.families.refused import REFUSED

    found: dict[str, tuple[Any, set[str], list[bool]]] = {}
    for name, rows in tables():
        for row in rows.values() if name != STACKED else ():
            model_type, family, words, scores = described(row)
            before = found.setdefault(model_type, (family, set(), []))
            before[1].update(words)
            before[2].extend([] if scores is None else [scores])
    lines = [
        *opening(found),
        "",
        "| type | its row | patterns by | what is not as in Llama |",
        "|---|---|---|---|",
    ]
    for model_type, (family, words, tried) in sorted(found.items()):
        runs = shown_by(family, tried)
        lines.append(f"| `{model_type}` | {family.name} | {runs} | {', '.join(sorted(words))} |")
    lines += ["", *stacked()]
    lines += ["", "Refused, with the reason, and opened by no row:", "", "| type | why |", "|---|---|"]
    by_reason: dict[str, list[str]] = {}
    for model_type, why in sorted(REFUSED.items()):
        by_reason.setdefault(why, []).append(f"`{model_type}`")
    lines += [f"| {', '.join(types)} | {why} |" for why, types in by_reason.items()]
    lines += [
        "",
        "Configs of types above that are refused:",
        "",
        "| type | config | why |",
        "|---|---|---|",
        *_refused_configs(),
    ]
    lines += [
        "",
        "So are other models of two stacks of layers, and those that read more than text: of these the refusal names",
    ]
    lines += ["the text stack."]
    text = (
        f"Without weights `loader: transformer-lens` runs {bridged_types()}: `gausslens model` tells which "
        "sites it shows of them, and what is proved."
    )
    lines += ["", *textwrap.wrap(text, 118, break_on_hyphens=False)]
    return "\n".join([BEGIN, "", *lines, "", END])


def stacked() -> list[str]:
    """The models of two stacks: a row a type, of what its decoder has."""
    import torch
    import transformers

    from gausslens_models.families.facts import model_info
    from gausslens_models.families.layout import family_of, make_layout
    from gausslens_models.loading.skeleton import tensors_of

    words: dict[str, set[str]] = {}
    for config_class, arguments, model_class in dict(tables())[STACKED].values():
        config = getattr(transformers, config_class)(**arguments)
        with torch.device("meta"):
            module = getattr(transformers, model_class)(config)
        shapes = {n: tuple(p.shape) for n, p in tensors_of(module).items()}
        layout = make_layout(family_of(config, model_class, stack="decoder"), config, shapes, model_class, True)
        words.setdefault(config.model_type, set()).update(notes(model_info("", config, layout, "", "float32"), layout))
    told = f"{len(words)} types have two stacks, which `stack: encoder`, `stack: decoder` and `stack: cross` open:"
    head = ["| type | what is not as in Llama, of the decoder |", "|---|---|"]
    return [told, "", *head, *(f"| `{name}` | {', '.join(sorted(found))} |" for name, found in sorted(words.items()))]


def _refused_configs() -> Iterator[str]:
    """A row of Markdown for each row of refused configs."""
    from gausslens_models.families.layout import FAMILIES

    for family in sorted(FAMILIES, key=lambda family: family.model_types):
        for key, value, why in (*family.refused, *family.weights_alone):
            said = f"{value.start} or more" if isinstance(value, range) else json.dumps(value)
            types = ", ".join(f"`{name}`" for name in family.model_types)
            yield f"| {types} | `{key}`: {'set' if value is True else said} | {why} |"


def opening(found: Mapping[str, tuple[Any, set[str], list[bool]]]) -> list[str]:
    """How many types there are, and what some of them lack."""

    def listed(names: Iterable[str]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    unwatched = {name: family for name, (family, _, _) in found.items() if not family.watched}
    turned = [name for name, family in unwatched.items() if "q_rot" not in family.lacking]
    text = (
        f"{len(found)} types of models have tensors, nulls and the sites of the stream, q, k, v, z and patterns; "
        f"{len(found) - len(unwatched)} of them have scores and replacement too, and so every analysis. The other "
        f'{len(unwatched)}, whose attention is not watched ("no scores"), lack the site `scores`, and so '
        f"{listed(OF_SCORES)}, where TransformerLens does not show it; replacement, and so {listed(OF_REPLACEMENT)}; "
        f"and, of those that rotate q and k ({listed(sorted(turned))}), the sites `q_rot` and `k_rot`, and so "
        f"{listed(OF_ROTATED)} (the latter for Linformer). In all, what reads logits needs a language-model head, "
        "`model.generate` a causal one, and layers of experts have no `mlp_pre` and `mlp_post`."
    )
    return textwrap.wrap(text, 118, break_on_hyphens=False)


def bridged_types() -> str:
    """The types that are refused, and run all the same where TransformerLens opens them."""
    from types import SimpleNamespace

    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from gausslens_models.families.refused import REFUSED, bridge_takes

    named = {t: MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(t, "") for t in sorted(REFUSED)}
    configs = [SimpleNamespace(model_type=t, architectures=[a], vocab_size=1) for t, a in named.items()]
    return ", ".join(f"`{config.model_type}`" for config in configs if bridge_takes(config))


def written(page: str) -> str:
    """The page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    return before + table() + rest.partition(END)[2]


def main() -> int:
    """Write the page, or with --check see whether it would change."""
    for room in ("framework", "plugins"):
        sys.path.insert(0, str(ROOT / room))
    page = PAGE.read_text(encoding="utf-8")
    found = written(page)
    if "--check" in sys.argv[1:]:
        return int(found != page)
    PAGE.write_text(found, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
