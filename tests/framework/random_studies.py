"""Random small studies, each run in peace and run with all that happens to a store: the results must be the same.

    python tests/framework/random_studies.py 200 --seed 0 --directory DIR

A study is drawn by its seed: a model, prompts, variants with edits, sweeps and draws, analyses, nulls. One process runs
it into a store of its own. In another store it is run by processes that are killed (kill -9, SIGTERM, SIGINT) at random
moments, by workers, in parts, in part in a store beside it that is copied, after a study of another seed whose results
`gc` removes while runs go on; then it is run to its end. Every array of every step must be equal, bit for bit, and
`verify` must find nothing. DIR keeps what was found of each study, so that the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import xarray as xr

PROCESSES = multiprocessing.get_context("forkserver")
# What a run imports, read once: a process of the study then begins at once.
PROCESSES.set_forkserver_preload(["gausslens.perform", "gausslens.testing", "transformers", "h5py", "pandas", "dask"])

EDITS: list[dict[str, Any]] = [
    {"edit": "reinit.config"},
    {"edit": "reinit.config", "embeddings": True},
    {"edit": "reinit.gaussian"},
    {"edit": "reinit.gaussian", "matrices": ["W_Q", "W_K"]},
    {"edit": "reinit.permute"},
    {"edit": "reinit.rotate"},
    {"edit": "spectrum.vectors", "matrices": ["OV"]},
]
SWEEPS: list[dict[str, Any]] = [
    {"edit": "spectrum.keep", "matrices": ["QK"], "sweep": {"k": [1, 2]}},
    {"edit": "spectrum.scale", "matrices": ["W_Q"], "sweep": {"alpha": [0.5, 2.0]}},
    {"edit": "spectrum.flatten", "matrices": ["W_V"], "amount": 1.0},
]
ANALYSES: list[dict[str, Any]] = [
    {"use": "bilinear.spectrum"},
    {"use": "bilinear.alignment"},
    {"use": "bilinear.logits"},
    {"use": "gaussian.moments"},
    {"use": "gaussian.moments", "as": "queries", "with": {"site": "q"}},
    {"use": "gaussian.collapse"},
    {"use": "gaussian.propagate", "with": {"window": 4, "dims": 2}},
    {"use": "attention.roles"},
    {"use": "model.attention", "with": {"maps": "none"}},
    {"use": "model.loss"},
    {"use": "model.capture", "with": {"sites": ["resid_post"]}},
]
PROMPTS: list[dict[str, Any]] = [
    {"source": "repeated-random", "prompts": 4, "length": 12},
    {"source": "repeated-random", "prompts": 7, "length": 9},
    {"source": "text", "text": ["abc abc", "one two three one two three", "what was said is said again", "x y z x y"]},
    {"source": "few-shot", "words": "animals", "shots": 1, "targets": ["Ant", "Fox", "Owl"]},
]
LONGEST = 600.0


def drawn(draw: random.Random) -> dict[str, Any]:
    """A run file."""
    model = "builtin:clue-tiny" if draw.random() < 0.2 else "builtin:tiny"
    nulls = {
        f"null{number}": {"edits": [edit], "draws": draw.randint(2, 3)}
        for number, edit in enumerate(draw.sample(EDITS, draw.randint(1, 2)))
    }
    if draw.random() < 0.3:
        nulls["shuffled"] = {"prompts": {"shuffle": "tokens"}, "draws": 2}
    edited = {"edited": {"edits": [draw.choice(SWEEPS)]}} if draw.random() < 0.5 else {}
    made: dict[str, Any] = {
        "gausslens": 1,
        "name": "study",
        "seed": draw.randrange(100),
        "model": {"path": model},
        "prompts": draw.choice(PROMPTS),
        "variants": {"trained": {"edits": []}} | nulls | edited,
        "analyses": draw.sample(ANALYSES, draw.randint(1, 3)),
        "report": draw.random() < 0.2,
    }
    if draw.random() < 0.5:
        made["against"] = draw.sample(sorted(nulls), draw.randint(1, len(nulls)))
    if draw.random() < 0.5:
        made["errors"] = draw.choice([False, {"groups": 2}])
    return made


def command(arguments: list[str], log: str) -> None:
    """One command of gausslens, in a process of its own."""
    told = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(told, 1)
    os.dup2(told, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from gausslens.__main__ import main

    sys.exit(main(arguments))


@dataclass
class Study:
    """A study, its directory, and what happens to it."""

    directory: Path
    seed: int
    draw: random.Random = field(init=False)
    acts: list[str] = field(default_factory=list)
    took: float = 0.0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.file, self.log = self.directory / "study.yaml", self.directory / "log.txt"
        self.file.write_text(json.dumps(drawn(self.draw)), encoding="utf-8")

    def store(self, name: str) -> str:
        return str(self.directory / name)

    def started(self, *arguments: str) -> BaseProcess:
        process = PROCESSES.Process(target=command, args=(list(arguments), str(self.log)))
        process.start()
        return process

    def done(self, *arguments: str) -> int:
        """Its exit code."""
        return ended(self.started(*arguments))

    def run(self, store: str, *more: str) -> BaseProcess:
        return self.started("run", str(self.file), "--store", self.store(store), *more)

    def in_peace(self) -> None:
        """One process, whom nothing happens."""
        start = time.monotonic()
        assert ended(self.run("peace")) == 0, self.said()
        self.took = time.monotonic() - start

    def said(self) -> str:
        return f"study {self.seed}: {'; '.join(self.acts)}\n{self.log.read_text(encoding='utf-8')[-3000:]}"

    def told(self, act: str) -> None:
        self.acts.append(act)
        with self.log.open("a", encoding="utf-8") as log:
            print(f"-- {act}", file=log)


def ended(process: BaseProcess) -> int:
    process.join(LONGEST)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError("a command did not end")
    return process.exitcode


def killed(study: Study, process: BaseProcess, what: str) -> None:
    """End a process at a random moment: by a signal it may hear, or by one it cannot."""
    how = study.draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    after = study.draw.uniform(0, 1.1 * study.took)
    process.join(after)
    if process.exitcode is None and process.pid is not None:
        os.kill(process.pid, how)
    code = ended(process)
    study.told(f"{what}, {how.name} after {after:.2f} s: exit code {code}")
    assert code in (0, 130, 143, -how), study.said()


def a_run_that_is_killed(study: Study) -> None:
    killed(study, study.run("troubled"), "a run")


def workers_that_are_killed(study: Study) -> None:
    """The leader is killed; its workers end with it."""
    killed(study, study.run("troubled", "--workers", "2"), "a run by two workers")


def parts(study: Study) -> None:
    """All but one of the parts, at the same time."""
    number = study.draw.randint(2, 3)
    left = study.draw.randint(1, number)
    shares = [f"{k}/{number}" for k in range(1, number + 1) if k != left]
    codes = [ended(process) for process in [study.run("troubled", "--part", share) for share in shares]]
    study.told(f"parts {', '.join(shares)}: exit codes {codes}")
    assert set(codes) == {0}, study.said()


def a_copy(study: Study) -> None:
    """A part in a store beside it, which is copied."""
    share = study.draw.choice(["1/2", "2/2"])
    assert ended(study.run("beside", "--part", share)) == 0, study.said()
    code = study.done("store", "copy", study.store("beside"), study.store("troubled"))
    study.told(f"part {share} in a store beside it, copied: exit code {code}")
    assert code == 0, study.said()


def another_seed(study: Study) -> None:
    """The same study of another seed before it, and gc while a run goes on."""
    code = study.done("run", str(study.file), "--store", study.store("troubled"), "--set", "seed=101")
    process = study.run("troubled")
    process.join(study.draw.uniform(0, study.took))
    cleaned = study.done("store", "gc", study.store("troubled"), "--yes")
    codes = [code, cleaned, ended(process)]
    study.told(f"another seed, then gc beside a run: exit codes {codes}")
    assert set(codes) == {0}, study.said()


def two_at_once(study: Study) -> None:
    """Two runs of the same into one store."""
    codes = [ended(process) for process in (study.run("troubled"), study.run("troubled"))]
    study.told(f"two runs at once: exit codes {codes}")
    assert set(codes) == {0}, study.said()


def a_packing(study: Study) -> None:
    """Pack what is there, and make the index anew."""
    if not (study.directory / "troubled" / "parts").is_dir():
        return
    pack = study.directory / f"pack{len(study.acts)}.h5"
    codes = [
        study.done("store", "pack", study.store("troubled"), str(pack)),
        study.done("store", "reindex", study.store("troubled")),
        study.done("store", "verify", study.store("troubled")),
    ]
    study.told(f"pack, reindex, verify: exit codes {codes}")
    assert set(codes) == {0}, study.said()


ACTS: list[Callable[[Study], None]] = [
    a_run_that_is_killed,
    a_run_that_is_killed,
    a_run_that_is_killed,
    workers_that_are_killed,
    parts,
    a_copy,
    another_seed,
    two_at_once,
    a_packing,
]


def results(store: Path) -> Iterator[tuple[str, xr.Dataset]]:
    """Every result of the newest run of a store, by a name."""
    import gausslens

    opened = gausslens.open(store)
    for name in opened:
        for point, found in opened.draws(*name).items():
            yield f"{name} {point}", found.load()


def differences(one: Path, other: Path) -> tuple[int, list[str]]:
    """How many results the first has, and the names of those that are not the same in the other."""
    left, right = dict(results(one)), dict(results(other))
    alike = {name for name in left.keys() & right.keys() if left[name].identical(right[name])}
    return len(left), sorted((left.keys() | right.keys()) - alike)


def troubled(seed: int, acts: list[Callable[[Study], None]] | None = None) -> dict[str, Any]:
    """What became of the study of a seed: how many results, what happened, what differs."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        study = Study(Path(place), seed)
        study.in_peace()
        for act in acts or [study.draw.choice(ACTS) for _ in range(study.draw.randint(2, 4))]:
            act(study)
        assert ended(study.run("troubled")) == 0, study.said()
        assert study.done("store", "verify", study.store("troubled")) == 0, study.said()
        number, unlike = differences(study.directory / "peace", study.directory / "troubled")
        assert number, study.said()
        return {"seed": seed, "results": number, "differ": unlike, "acts": study.acts}


def main() -> int:
    """So many studies, one line each and a count; 1 where any differs or fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("studies", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--directory", type=Path, help="where it is kept what was found")
    asked = parser.parse_args()
    kept: dict[int, dict[str, Any]] = {}
    file = asked.directory / "studies.jsonl" if asked.directory else None
    if file is not None and file.exists():
        kept = {one["seed"]: one for one in map(json.loads, file.read_text(encoding="utf-8").splitlines())}
    for seed in range(asked.seed, asked.seed + asked.studies):
        if seed in kept:
            continue
        try:
            kept[seed] = troubled(seed)
        except AssertionError as failure:
            kept[seed] = {"seed": seed, "results": 0, "differ": [], "acts": [], "failed": str(failure)}
        print(f"{seed}: {kept[seed]}", flush=True)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as lines:
                print(json.dumps(kept[seed]), file=lines)
    of_all = [kept[seed] for seed in range(asked.seed, asked.seed + asked.studies)]
    failed, differ = sum("failed" in one for one in of_all), sum(bool(one["differ"]) for one in of_all)
    number, acts = sum(one["results"] for one in of_all), sum(len(one["acts"]) for one in of_all)
    print(f"{len(of_all)} studies, {number} results, {acts} acts: {differ} differ, {failed} failed")
    return int(bool(failed or differ))


if __name__ == "__main__":
    sys.exit(main())
