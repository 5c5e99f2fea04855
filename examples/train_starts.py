"""Train the same small model from several starts with several numbers of heads, or from several seeds.

    python examples/train_starts.py OUT                        # OUT/plain-1/step0 ... OUT/band-8/step400
    python examples/train_starts.py OUT --starts plain sparse low-rank --heads 2 4 --type llama --layers 2
    python examples/train_starts.py OUT --trainings 4          # OUT/plain-1/seed-1/step0 ... OUT/band-8/seed-4/step400
    python examples/train_starts.py OUT --seeds 3              # OUT/data-1 ... OUT/init-1 ... OUT/both-3

Conti (2023/24) trains translators of one layer with one head and with eight, from their own initialisation and from
shaped matrices. Here a translator of one layer learns to write words backwards: four starts, two numbers of heads. A
start is a variant of examples/shaped-starts.yaml (or of --run); `plain` is the initialisation itself.

With --trainings N each is trained N times, from as many seeds of data and initialisation, the same for each start, so
that what a start does stands beside what seeds do (trained-starts.yaml).

With --seeds N the plain model is trained 3 N times, at the last number of heads: N orders of the data (OUT/data-1 and
on), N initialisations (OUT/init-1), and N of both at once. What these share is what follows from the recipe.

All other options are those of train_small.py, and so is what is in each directory. Killed, it goes on where it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from gausslens_examples import train_small

STARTS = ("plain", "identity", "diagonal", "band")
RUN = Path(__file__).with_name("shaped-starts.yaml")
# The model and its task where the options name none.
TRANSLATOR = ("--type", "marian", "--layers", "1", "--width", "64", "--length", "24", "--rows", "32")
SCALED = ("--set", "scale_embedding=true")


def main(argv: Sequence[str] | None = None) -> None:
    """Train them one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="the directory of all of them")
    parser.add_argument("--starts", nargs="+", default=STARTS, metavar="VARIANT", help=f"default: {' '.join(STARTS)}")
    parser.add_argument("--heads", nargs="+", type=int, default=(1, 8), metavar="N", help="numbers of heads (1 8)")
    parser.add_argument("--run", type=Path, default=RUN, help="the run file that has the starts as variants")
    parser.add_argument("--trainings", type=int, metavar="N", help="of each start N trainings, from seeds of both")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="instead: N seeds of data, N of initialisation, N of both"
    )
    chosen, more = parser.parse_known_args(argv)
    named = any(option.split("=")[0] in ("--type", "--config", "--start") for option in more)
    recipe = [*(() if named else (*TRANSLATOR, *SCALED)), *more]
    for name, options in of_seeds(chosen) if chosen.seeds else of_starts(chosen):
        train_small.main([str(chosen.out / name), *recipe, *options])


def of_starts(chosen: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """(directory, options) of each start with each number of heads."""
    for heads in chosen.heads:
        for start in chosen.starts:
            edit = [] if start == "plain" else ["--edit", str(chosen.run), start]
            if chosen.trainings is None:
                yield f"{start}-{heads}", ["--heads", str(heads), *edit]
            for seed in map(str, range(1, (chosen.trainings or 0) + 1)):
                seeds = ["--data-seed", seed, "--init-seed", seed]
                yield f"{start}-{heads}/seed-{seed}", ["--heads", str(heads), *seeds, *edit]


def of_seeds(chosen: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """(directory, options) of each seed of the data, of the initialisation, and of both; 0 is the seed of the other."""
    heads = ["--heads", str(chosen.heads[-1])]
    for what, varied in (
        ("data", ["--data-seed"]),
        ("init", ["--init-seed"]),
        ("both", ["--data-seed", "--init-seed"]),
    ):
        for seed in range(1, chosen.seeds + 1):
            yield f"{what}-{seed}", [*heads, *(word for option in varied for word in (option, str(seed)))]


if __name__ == "__main__":
    main()
