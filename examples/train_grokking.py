"""Train models that add modulo a number, from several seeds, until they generalise: grokking.

    python examples/train_grokking.py grokking                 # grokking/seed-1/step0 ... , test.csv, train.csv

Power et al. (2022) saw small transformers learn a part of a table by heart and, long after, all of it. Here decoders of
one layer learn a share of all sums modulo 59 under a strong weight decay. `train.csv` has the sums that they learn and
`test.csv` the others, for a run file's prompts (grokking.yaml). The split is the same for every seed; initialisation
and order of the data are not.

All other options are those of train_small.py, and so is what is in each directory. Killed, it goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from gausslens_examples import train_small
from gausslens_examples.small_texts import as_sums, split_sums

RECIPE = (
    *("--type", "llama", "--layers", "1", "--heads", "4", "--width", "48", "--positions", "8"),
    *("--rows", "256", "--rate", "1e-3", "--decay", "1", "--warmup", "10"),
)
STEPS = (0, 10, 20, 50, 100, 150, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600)


def main(argv: Sequence[str] | None = None) -> None:
    """Train them one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="the directory of all of them")
    parser.add_argument("--sums", type=int, default=59, metavar="P", help="sums modulo P (59)")
    parser.add_argument("--share", type=float, default=0.35, help="the share of all sums that is learned (0.35)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many trainings (3)")
    parser.add_argument("--save", type=int, nargs="+", default=STEPS, metavar="STEP", help="checkpoints")
    chosen, more = parser.parse_known_args(argv)
    write_sums(chosen.out, chosen.sums, chosen.share)
    of_all = ["--sums", str(chosen.sums), "--share", str(chosen.share), "--save", *map(str, chosen.save)]
    of_all += ["--steps", str(max(chosen.save))]
    for seed in map(str, range(1, chosen.seeds + 1)):
        seeds = ["--init-seed", seed, "--data-seed", seed]
        train_small.main([str(chosen.out / f"seed-{seed}"), *RECIPE, *of_all, *seeds, *more])


def write_sums(out: Path, modulus: int, share: float) -> None:
    """The sums that are learned, and the others, as a table: "12 34 =" and "46"."""
    out.mkdir(parents=True, exist_ok=True)
    learned, left = split_sums(modulus, share)
    for name, pairs in (("train", learned), ("test", left)):
        with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = as_sums(pairs, modulus).tolist()
            csv.writer(file).writerows([("task", "answer"), *((f"{a} {b} =", c) for a, b, _, c in rows)])


if __name__ == "__main__":
    main()
