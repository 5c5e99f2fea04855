"""bilinear.spectrum on a large checkpoint on disk: its time beside LAPACK's, its memory, the planted values, a null.

    python benchmarks/synthetic.py mistral-7b DIRECTORY
    python benchmarks/large_spectrum.py DIRECTORY [--layers 0 1 2 3] [--edit reinit.gaussian]

Without DIRECTORY a small one is made. Each part runs in a process of its own: processor seconds and peak memory are
those that the system counts for it. LAPACK's values alone are those of the same matrices, read and converted before the
clock starts, by the small Gram matrix and eigvalsh, with as many threads. All layers are alike, so that a share of them
tells the time of all: the exponent of time in layers is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
NAMES = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out")
# Peak memory of a process, time beside LAPACK's, two draws beside one pass.
MOST_BYTES, MOST_RATIO, MOST_DRAWS = 3e9, 1.2, 2.2
# How far a value may be from what was planted, of the largest: rounding to bfloat16 moves them by less.
NEAR = 2e-3


def used(code: str, **given: Any) -> dict[str, Any]:
    """What a process of its own took for some code: processor seconds of its step, peak bytes, and what it found."""
    end = "\nstatus = open('/proc/self/status').read()\n"
    end += "found['peak'] = int(status.split('VmHWM:')[1].split()[0]) * 1024\n"
    begin = f"import json, time\ngiven = json.loads({json.dumps(given)!r})\nfound = {{}}\n"
    program = f"{begin}{code}{end}print(json.dumps(found))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(ran.stderr[-2000:])
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


RUN = """
import gausslens, gausslens_bilinear.analyses.spectrum, xarray
xarray.concat([xarray.Dataset({"x": 0.0})], dim="imported")  # what it imports when first used is beside the clock
from gausslens.measuring import twin
taken = {}
plain = twin._layer_by_layer
def timed(*rest):
    start = time.process_time(), time.perf_counter()
    yield from plain(*rest)
    taken["seconds"] = taken.get("seconds", 0) + time.process_time() - start[0]
    taken["wall"] = taken.get("wall", 0) + time.perf_counter() - start[1]
twin._layer_by_layer = timed
gausslens.run(given["study"], store=given["store"])
found |= taken
"""
LAPACK = """
import gausslens, numpy as np
from gausslens_bilinear.analyses.spectrum import whole
from gausslens.maths.spectra import GRAM_TRUST
model = gausslens.load(given["directory"], loader="weights")
found |= {"seconds": 0.0, "wall": 0.0, "twice": 0}
for layer in given["layers"]:
    weights = model.weights(layer)
    for name in (n for n in given["matrices"] if n in weights):
        A = whole(name, weights[name].double().numpy())
        A = np.ascontiguousarray(A if A.shape[0] <= A.shape[1] else A.T)
        start = time.process_time(), time.perf_counter()
        values = np.linalg.eigvalsh(A @ A.T)
        if values[0] <= GRAM_TRUST * values[-1]:
            np.linalg.svd(A, compute_uv=False)
            found["twice"] += 1
        found["seconds"] += time.process_time() - start[0]
        found["wall"] += time.perf_counter() - start[1]
"""


def study(directory: Path, layers: list[int], matrices: list[str], edit: str | None = None) -> dict[str, Any]:
    """Spectra of some matrices of some layers; of an edit two draws alone."""
    variants: dict[str, Any] = {"trained": []}
    if edit is not None:
        variants = {"drawn": {"edits": [{"edit": edit, "matrices": matrices}], "draws": 2}}
    analysis = {"use": "bilinear.spectrum", "layers": layers, "with": {"matrices": matrices}}
    made = {"gausslens": 1, "name": "large", "model": {"path": str(directory), "loader": "weights"}}
    return made | {"variants": variants, "analyses": [analysis], "report": False}


def planted_values(directory: Path, store: Path, layers: list[int], matrices: list[str]) -> str:
    """How far what was found is from what was planted, and whether the spikes are as many."""
    import synthetic

    import gausslens

    data = gausslens.open(store)["trained", "bilinear.spectrum"]
    told = json.loads((directory / synthetic.PLANTED).read_text())["matrices"]
    entries = [entry for entry in told if entry["layer"] in layers and entry["tensor"] in matrices]
    worst, spikes = 0.0, 0
    for entry in entries:
        of = data.sel(layer=entry["layer"], tensor=entry["tensor"])
        planted = synthetic.values(entry)
        found = np.sqrt(of.squared.values[: len(planted)])
        worst = max(worst, float(np.abs(found - planted).max() / planted[0]))
        spikes += "spikes" not in entry or int(of.spikes) == len(entry["spikes"])
    verdict = "" if worst < NEAR and spikes == len(entries) else "   MISSED"
    return f"{len(entries)} planted spectra: values to {worst:.1e} of the largest, spikes right in {spikes}{verdict}"


def told(what: str, found: float, most: float, form: str = "{:.2f}") -> None:
    """A line with its target."""
    verdict = "" if found <= most else "   MISSED"
    print(f"{what:66} {form.format(found):>8}   at most {form.format(most)}{verdict}", flush=True)


def measure(directory: Path, layers: list[int], matrices: list[str], edit: str) -> None:
    """All rows."""
    with tempfile.TemporaryDirectory() as top:
        one, all_of, null, single = (Path(top) / name for name in ("one", "all", "null", "single"))
        used(RUN, study=study(directory, layers[:1], ["W_K"]), store=str(one))  # its fingerprint, which is cached
        few = used(RUN, study=study(directory, layers[: len(layers) // 2], matrices), store=str(one))
        ours = used(RUN, study=study(directory, layers, matrices), store=str(all_of))
        lapack = used(LAPACK, directory=str(directory), layers=layers, matrices=matrices)
        print(f"{len(layers)} layers, {', '.join(matrices)}: ours {ours['seconds']:.1f} s of processor, ", end="")
        print(f"{ours['wall']:.1f} s of wall-clock; LAPACK {lapack['seconds']:.1f} s, {lapack['wall']:.1f} s, ", end="")
        print(f"{lapack['twice']} decomposed again")
        exponent = math.log(ours["seconds"] / few["seconds"]) / math.log(len(layers) / (len(layers) // 2))
        told("exponent of processor time in layers", exponent, 1.1)
        told("processor time beside LAPACK's values alone", ours["seconds"] / lapack["seconds"], MOST_RATIO)
        told("wall-clock beside LAPACK's values alone", ours["wall"] / lapack["wall"], MOST_RATIO)
        told("peak memory of the process, GB", ours["peak"] / 1e9, MOST_BYTES / 1e9)
        print(planted_values(directory, all_of, layers, matrices), flush=True)
        alone = used(RUN, study=study(directory, layers, ["W_Q"]), store=str(single))
        drawn = used(RUN, study=study(directory, layers, ["W_Q"], edit), store=str(null))
        told(f"two draws of {edit} on W_Q beside one pass over W_Q", drawn["seconds"] / alone["seconds"], MOST_DRAWS)
        told("peak memory of that process, GB", drawn["peak"] / 1e9, MOST_BYTES / 1e9)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, help="what synthetic.py wrote")
    parser.add_argument("--layers", nargs="+", type=int)
    parser.add_argument("--matrices", nargs="+", default=list(NAMES))
    parser.add_argument("--edit", default="reinit.gaussian")
    chosen = parser.parse_args()
    if chosen.directory is not None:
        config = json.loads((chosen.directory / "config.json").read_text())
        layers = chosen.layers or list(range(config["num_hidden_layers"]))
        measure(chosen.directory, layers, chosen.matrices, chosen.edit)
        return
    import synthetic

    with tempfile.TemporaryDirectory() as top:
        small = Path(top) / "small"
        sizes = {"hidden_size": 1024, "intermediate_size": 3584, "vocab_size": 1000}
        heads = {"num_attention_heads": 16, "num_key_value_heads": 4}
        synthetic.write(synthetic.config_of("mistral-7b", 4, sizes | heads), small, shard_bytes=10**8)
        measure(small, chosen.layers or [0, 1, 2, 3], chosen.matrices, chosen.edit)


if __name__ == "__main__":
    main()
