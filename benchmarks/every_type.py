"""Every analysis on a tiny random checkpoint of every type of model, each beside a null: what runs, and what says no.

    python benchmarks/every_type.py [TYPE ...] [--analyses NAME ...]

TYPE is a row of the tables of tests/plugins/models (tiny_*.py and MODELS): without any, all. Each is built with every
weight, bias and gain random, opened by the loader that a run chooses, and studied with every analysis and a null of its
own initialisation. Printed are, of each type, how many results there are and who refused and why: an analysis may say
no by name, where a type lacks what it reads; whatever else ends one is CRASHED, and the exit status 1.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from gausslens import GausslensError
from gausslens.perform import perform

TESTS = Path(__file__).parents[1] / "tests/plugins/models"
ROWS = [[3 + (7 * i * i + 5 * i * n + 11 * row) % 50 for i in range(n)] for row, n in enumerate([9, 8, 11] * 4)]
ANALYSES: dict[str, dict[str, Any]] = {
    "model.loss": {},
    "model.attention": {},
    "model.embeddings": {},
    "model.generate": {"tokens": 2},
    "model.capture": {"sites": ["resid_post"]},
    "gaussian.moments": {"site": "resid_pre"},
    "gaussian.collapse": {},
    "gaussian.joint": {"window": 4, "dims": 2, "permutations": 5},
    "gaussian.propagate": {"window": 4, "dims": 2},
    "gaussian.compare": {"of": "gaussian.moments", "between": ["trained", "before"]},
    "bilinear.spectrum": {"per_head": True},
    "bilinear.alignment": {},
    "bilinear.logits": {},
    "bilinear.head-roles": {"positions": 8},
    "bilinear.angles": {},
    "bilinear.slerp": {"sizes": [4], "pairs": 20},
    "attention.band": {"w": [0, 2], "budget": [0]},
    "attention.masks": {"keys": [3], "kinds": ["top-k", "bigbird"]},
    "attention.lowrank": {"rank": [1, 2]},
    "attention.kernels": {"kernels": ["elu", "performer"], "features": [8]},
    "attention.pooling": {"functions": ["dot", "multiplicative"], "directions": 1},
    "attention.roles": {"directions": 2},
    "attention.swap": {"band": [2], "budget": [0], "masks": [], "rank": [1], "kernels": [], "which": ["all"]},
    "spectrum.effect": {"tokens": 0},
    "reinit.check": {},
}


def families() -> Any:
    """The tables of tiny models, and what builds them."""
    sys.path.insert(0, str(TESTS))
    return importlib.import_module("random_models")


def tokenizer(size: int) -> Any:
    """One word for each token number."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(size)}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="w0", pad_token="w0")


def study(directory: str | Path, labels: Sequence[str] = ()) -> dict[str, Any]:
    """All of it, beside two draws of the type's own initialisation."""
    return {
        "gausslens": 1,
        "name": "every-type",
        "model": {"path": str(directory)},
        "prompts": {"source": "tokens", "ids": ROWS},
        "variants": {
            "trained": [],
            "before": {"edits": [{"edit": "reinit.config", "embeddings": True}], "draws": 2},
        },
        "analyses": [{"use": name, "with": given} for name, given in ANALYSES.items() if not labels or name in labels],
        "against": ["before"],
        "errors": {"groups": 3},
        "report": False,
    }


def tried(
    directory: str | Path, store: str | Path, labels: Sequence[str] = ()
) -> tuple[int, dict[str, str], list[str]]:
    """How many results there are, {analysis: why it refused}, and what crashed."""
    refused: dict[str, str] = {}
    left = [name for name in ANALYSES if not labels or name in labels]
    while left:
        try:
            ran = perform(study(directory, left), store=store, shown=False)
        except GausslensError as error:  # at plan: one analysis says no for all
            named = next((name for name in left if f"{name} " in str(error) or f"{name}:" in str(error)), None)
            if named is None:
                return 0, refused, [f"the run: {error}"]
            refused[named] = str(error).strip().splitlines()[-1].strip()
            left.remove(named)
            continue
        except Exception as error:
            return 0, refused, [f"the run: {type(error).__name__}: {error}"]
        crashed = []
        for failure in ran.outcome.failed:
            if isinstance(failure.error, GausslensError):
                refused[failure.step.ref.label] = str(failure.error)
            elif "not computed, because" not in str(failure.error):
                crashed.append(str(failure))
        return len(ran.outcome.computed), refused, crashed
    return 0, refused, []


def main() -> None:
    """Build, study, print."""
    from transformers.utils.logging import disable_progress_bar

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--analyses", nargs="+", default=[], choices=list(ANALYSES), metavar="NAME")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tiny = families()
    disable_progress_bar()
    bad = 0
    for name in options.types or (tiny.ALL | tiny.OTHERS):
        with tempfile.TemporaryDirectory() as place:
            os.environ["XDG_CACHE_HOME"] = place
            tiny.build(name).save_pretrained(f"{place}/model")
            tokenizer(tiny.VOCABULARY).save_pretrained(f"{place}/model")
            count, refused, crashed = tried(f"{place}/model", f"{place}/store", options.analyses)
        bad += bool(crashed)
        print(f"{name}: {count} results, {len(refused)} refused" + "".join(f"\n    CRASHED {c}" for c in crashed))
        for analysis, reason in refused.items():
            print(f"    {analysis}: {reason}")
        sys.stdout.flush()
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
