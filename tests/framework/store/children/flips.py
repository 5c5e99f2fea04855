"""Flip bits of one file of a store, one at a time, and see who notices: flips.py STORE FILE SEED COUNT.

Prints a JSON line: flips that verify did not report, and flips that a reader did not notice though a value changed.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
import xarray as xr

import gausslens
from gausslens import GausslensError
from gausslens.store.maintain import verify

ROOT, FILE, SEED, COUNT = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


def values() -> dict[str, xr.Dataset]:
    """All that a user can read of the store, loaded."""
    results = gausslens.open(FILE if FILE.name == "pack.h5" else ROOT)
    found = {}
    for variant, label in results:
        for point, dataset in results.draws(variant, label).items():
            found[f"{variant} {label} {point}"] = dataset.load()
    return found


def main() -> None:
    whole = FILE.read_bytes()
    FILE.chmod(0o644)
    before = values()
    checked = FILE if FILE.name == "pack.h5" else ROOT
    assert [f for f in verify(checked) if not f.harmless] == []
    rng = random.Random(SEED)
    # Half anywhere, half in the last bytes (the seal) and in the first (HDF5's own head).
    places = [rng.randrange(len(whole)) for _ in range(COUNT // 2)]
    places += [
        rng.choice([rng.randrange(min(2000, len(whole))), -1 - rng.randrange(min(600, len(whole)))]) for _ in places
    ]
    unreported, unnoticed = [], []
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.randrange(8)
        FILE.write_bytes(flipped)
        if all(f.harmless for f in verify(checked)):
            unreported.append(place % len(whole))
        try:
            after = values()
        except GausslensError:
            continue
        if any(name not in before or not dataset.identical(before[name]) for name, dataset in after.items()):
            unnoticed.append(place % len(whole))
    print(json.dumps({"flips": len(places), "unreported": unreported, "unnoticed": unnoticed}))


np.seterr(all="ignore")
main()
