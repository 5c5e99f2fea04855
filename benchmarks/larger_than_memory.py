"""What ``max_memory`` costs and holds: peak memory, processor seconds and reads at a limit, beside all in memory.

    python benchmarks/larger_than_memory.py MODEL LIMIT [CASE ...]

    python benchmarks/larger_than_memory.py smollm2 180MB
    python benchmarks/larger_than_memory.py stories15m 20MB

Cases: ``streams`` (attention statistics, moments, losses), ``reinit`` and ``surgery`` (attention and losses of a twin
whose layers are drawn anew, of one whose singular values are cut), ``patching`` (heads of half of the layers exchanged
between prompts). Each is a process of its own. Peaks are those that the system tells of the process (VmHWM), less that
of the same case on builtin:tiny: what Python, torch and transformers take. Differences are the largest of any number;
reads are those of the weights of one pass, where 2 is what a matrix has that is embedding and head.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

ATTENTION: dict[str, Any] = {"use": "model.attention", "with": {"maps": "none"}}
MOMENTS: dict[str, Any] = {"use": "gaussian.moments", "with": {"covariance": False}}
LOSS: dict[str, Any] = {"use": "model.loss"}
STUDIES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "streams": ([ATTENTION, MOMENTS, LOSS], {"trained": []}),
    "reinit": ([ATTENTION, LOSS], {"drawn": {"edits": [{"edit": "reinit.gaussian"}], "draws": 1}}),
    "surgery": ([ATTENTION, LOSS], {"cut": [{"edit": "spectrum.drop", "energy": 0.9}]}),
}
CASES = (*STUDIES, "patching")
# The smallest model: what is left of its peak is not of a model.
SMALLEST = "builtin:tiny"
CLOSE = 1e-5


def peak() -> int:
    """The peak of this process; what a parent had counts in ru_maxrss."""
    return 1024 * int(Path("/proc/self/status").read_text("utf-8").split("VmHWM:")[1].split()[0])


def counted() -> list[float]:
    """Has the most reads of a tensor of each pass noted, from now on."""
    from gausslens_models.capture.walk import Walk

    most: list[float] = []
    carry = Walk.carry

    def noted(self: Walk, *arguments: Any) -> None:
        before = self.model.checkpoint.reads.copy()
        carry(self, *arguments)
        most.append(float(max((self.model.checkpoint.reads - before).values(), default=0)))

    Walk.carry = noted  # type: ignore[method-assign]
    return most


def study(case: str, model: str, limit: str | None, store: str) -> None:
    """A run of a case."""
    import gausslens

    analyses, variants = STUDIES[case]
    gausslens.run(
        {
            "gausslens": 1,
            "name": "larger",
            "model": {"path": model} | ({} if model == SMALLEST else {"dtype": "float32"}),
            "prompts": {"source": "repeated-random", "prompts": 16, "length": 64},
            "variants": variants,
            "analyses": analyses,
            "errors": False,
            "report": False,
        }
        | ({"max_memory": limit} if limit else {}),
        store=store,
    )


def exchanged(tensor: Any, _where: Any) -> Any:
    """What a site holds of one prompt, given to another."""
    return tensor.flip(0)


def patching(model: str, limit: str | None, store: str) -> list[float]:
    """Heads of every other layer exchanged between four prompts; the most reads of a tensor."""
    import numpy as np

    from gausslens import Intervention, ModelSpec, Twin
    from gausslens_models.capture.engine import TransformersEngine
    from gausslens_models.loading.pretrained import open_builtin, open_pretrained
    from gausslens_models.parameters import TransformersParameters

    size = int(float(limit.removesuffix("MB")) * 1e6) if limit else None
    opens = open_builtin if model == SMALLEST else open_pretrained
    opened = opens(ModelSpec(model, TransformersParameters(), "float32", max_memory=size))
    runner = TransformersEngine().runner(Twin(opened))
    rows = np.random.default_rng(0).integers(0, opened.info.vocabulary, (4, 32))
    layers = range(0, opened.info.n_layers, 2)
    changes = [Intervention("z", layer, exchanged, heads=[0]) for layer in layers]
    runner.forward(rows[:1, :4], interventions=changes)  # each is proved to act before it is first used
    before = opened.checkpoint.reads.copy()
    logits = runner.forward(rows, interventions=changes)["logits"]
    np.save(Path(store) / "logits.npy", logits.numpy())
    return [float(max((opened.checkpoint.reads - before).values(), default=0))]


def child(case: str, model: str, limit: str, store: str) -> None:
    """A case once; prints its peak, processor seconds, and the most reads of a tensor in a pass."""
    reads = counted()
    began = time.process_time()
    if case == "patching":
        reads = patching(model, limit or None, store)
    else:
        study(case, model, limit or None, store)
    print(json.dumps([peak(), time.process_time() - began, max(reads, default=0.0)]))


def measured(case: str, model: str, limit: str, store: Path) -> tuple[float, float, float]:
    """Peak, seconds and reads of a case in a process of its own."""
    store.mkdir()
    told = [sys.executable, __file__, "--child", case, model, limit, str(store)]
    out = subprocess.run(told, check=True, stdout=subprocess.PIPE, text=True).stdout
    peaked, seconds, reads = json.loads(out.splitlines()[-1])
    return float(peaked), float(seconds), float(reads)


def difference(case: str, one: Path, other: Path) -> float:
    """The largest difference of any number of two runs, as a part of the number where that is above 1."""
    import numpy as np

    import gausslens

    if case == "patching":
        pairs = [(np.load(one / "logits.npy"), np.load(other / "logits.npy"))]
    else:
        analyses, variants = STUDIES[case]
        ours, theirs = gausslens.open(one), gausslens.open(other)
        pairs = []
        for variant in variants:
            for analysis in analyses:
                mine, its = (store[variant, analysis["use"]] for store in (ours, theirs))
                pairs += [(mine[v].values, its[v].values) for v in mine.data_vars if mine[v].dtype.kind == "f"]
    return max(float(np.nanmax(np.abs(a - b) / np.maximum(1, np.abs(b)), initial=0)) for a, b in pairs if a.size)


def main(model: str, limit: str, *cases: str) -> None:
    """Each case at the limit, beside in memory."""
    print(f"{Path(model).name}, max_memory: {limit} (peaks above those of {SMALLEST})")
    for case in cases or CASES:
        with tempfile.TemporaryDirectory() as directory:
            at = {name: Path(directory) / name for name in ("limit", "memory", "smallest")}
            least, _, _ = measured(case, SMALLEST, "", at["smallest"])
            ours, seconds, reads = measured(case, model, limit, at["limit"])
            theirs, theirs_seconds, _ = measured(case, model, "", at["memory"])
            apart = difference(case, at["limit"], at["memory"])
        print(
            f"  {case:9} peak {(ours - least) / 1e6:7.1f} MB, in memory {(theirs - least) / 1e6:7.1f} MB: "
            f"{(ours - least) / (theirs - least):.2f}; processor {seconds:6.1f} s, {theirs_seconds:6.1f} s: "
            f"{seconds / theirs_seconds:.2f}; reads of a tensor at most {reads:.2f}; differs by {apart:.1e} "
            f"({'met' if apart <= CLOSE and reads <= 2 else 'MISSED'})"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:6])
    else:
        main(*sys.argv[1:])
