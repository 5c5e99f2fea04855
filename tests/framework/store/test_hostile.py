"""Hostile stores are refused or reported, never followed: nothing outside is read or changed, nothing hangs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from store.attacks import ATTACKS, SECRET, edited
from store.stored import META, fill, key, small

from gausslens import GausslensError
from gausslens.store import Store
from gausslens.store.disk import locked

Child = Callable[..., "subprocess.CompletedProcess[str]"]
# Found by verify alone: a user who reads results never comes near what was planted there.
UNNOTICED = {
    "part_holds_a_ring", "manifest_is_a_fifo", "run_is_a_link", "manifest_is_a_pit", "manifest_names_lead_out",
    "manifest_names_have_escapes", "files_are_named_with_terminal_escapes", "index_leads_out",
    "index_leads_to_a_fifo", "index_is_a_ring",
}  # fmt: skip


def surroundings(where: Path) -> Path:
    """A directory beside a store with something to steal or to spoil."""
    made = where / "outside"
    made.mkdir(parents=True)
    with h5py.File(made / "secret.h5", "w") as file:
        file["secret"] = file["group/secret"] = np.full(4, SECRET)
    np.full(4, SECRET).tofile(made / "secret.raw")
    (made / "plugins").mkdir()
    os.mkfifo(made / "plugins" / "libh5evil.so")
    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Such a directory."""
    return surroundings(tmp_path)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of a user of each hostile store, and of the directory beside it."""
    top, plugins = tmp_path_factory.mktemp("hostile"), tmp_path_factory.mktemp("plugins")
    os.mkfifo(plugins / "libh5evil.so")  # HDF5 reads where plugins are only once, when it starts
    before = {}
    for name, attack in ATTACKS.items():
        outside = surroundings(top / name)
        attack(fill(top / name / "store").path, outside)
        before[name] = fingerprint(outside)
    command = [sys.executable, str(Path(__file__).parent / "children" / "victim.py"), str(top)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "HDF5_PLUGIN_PATH": str(plugins)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    outcome = {}
    for name in ATTACKS:
        told = top / name / "told.json"
        outcome[name] = json.loads(told.read_text()) if told.exists() else {}
        outcome[name]["outside is as it was"] = fingerprint(top / name / "outside") == before[name]
    return outcome


def fingerprint(directory: Path) -> dict[str, str]:
    return {
        str(p.relative_to(directory)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "other"
        for p in directory.rglob("*")
    }


def test_the_corpus_is_large_enough() -> None:
    assert len(ATTACKS) >= 30


@pytest.mark.parametrize("name", ATTACKS)
def test_refused_and_never_followed(attacked: dict[str, dict[str, Any]], name: str) -> None:
    told = attacked[name]
    assert "codes" in told, "the process hung or crashed"
    assert told["findings"], "verify found nothing"
    assert told["refused"] or name in UNNOTICED, told["said"]
    assert told["codes"][3] == 1
    assert all(code in (0, 1, 2) for code in told["codes"])
    assert "defect of its own" not in told["said"], told["said"]
    assert str(SECRET) not in json.dumps(told)
    assert not {"\x1b", "\x07"} & set(told["said"])
    assert told["outside is as it was"]


@pytest.mark.parametrize(
    ("attack", "careless"),
    [
        ("array_needs_a_filter_from_a_directory", f"file['probe.score/{key('t')}/more'][()]"),
        # However careful with arrays: the library would be loaded before one is seen.
        ("links_need_a_filter_from_a_directory", f"'{key('t')}' in file['probe.score']"),
        ("links_need_a_filter_from_a_directory", "list(file['probe.score'])"),
    ],
)
def test_the_filter_attacks_would_work_on_a_careless_reader(
    tmp_path: Path, outside: Path, child: Child, attack: str, careless: str
) -> None:
    """The control: plain h5py does try to load the library, and hangs on it."""
    root = fill(tmp_path / "store").path
    ATTACKS[attack](root, outside)
    code = (
        f"import sys, h5py; file = h5py.File(sys.argv[1]); file['probe.score']; print('open', flush=True); {careless}"
    )
    path = root / "parts/probe.score" / f"{key('t')}.h5"
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        child(code, path, timeout=5, environment={"HDF5_PLUGIN_PATH": str(outside / "plugins")})
    assert caught.value.stdout == b"open\n"


@pytest.mark.parametrize("what", ["tmp", "parts", "runs", "index.lock", "parts/probe.new"])
def test_writing_does_not_follow_links_either(tmp_path: Path, outside: Path, what: str) -> None:
    store = Store(tmp_path / "store").create()
    precious = outside / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    place = store.path / what
    if place.is_dir():
        place.rmdir()
    place.unlink(missing_ok=True)
    place.symlink_to(precious / "thesis.tex" if what == "index.lock" else precious)
    before = fingerprint(outside)
    for work in (
        lambda s: s.create(),
        lambda s: s.commit("probe.new", key(0), small(0), META),
        lambda s: s.manifest("run", {"plan": "p", "steps": []}),
        lambda s: s.reindex(),
    ):
        with suppress(GausslensError):  # refused, or done within the store
            work(Store(store.path))
    assert fingerprint(outside) == before


def test_a_pack_whose_groups_lead_away_is_refused(tmp_path: Path, outside: Path) -> None:
    import gausslens
    from gausslens.store.maintain import verify
    from gausslens.store.pack import pack

    root = fill(tmp_path / "store").path
    for number, place in enumerate(["first", "first/trained", "first/trained/score/result", "other"]):
        target = tmp_path / f"pack{number}.h5"
        pack(root, target)
        with edited(target) as file:
            if place in file:
                del file[place]
            file[place] = h5py.ExternalLink(str(outside / "secret.h5"), "/group")
        assert verify(target)
        with pytest.raises(GausslensError, match="refused"):
            gausslens.open(target)


def test_a_lock_can_be_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        assert path.exists()
    with locked(path):
        pass
