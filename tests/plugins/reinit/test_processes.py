"""A twin is the same in every process: seeds come from what is drawn, never from when or where."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import hashlib
import gausslens_reinit.plugin, gausslens_spectrum.plugin
from gausslens import Twin, load
from gausslens.contract.reference import resolve
from gausslens.contract.descriptors import Owned, Owner
from gausslens.contract.errors import Mark
from gausslens.contract.twin import EditCall

GIVEN = {"reinit.cascade": {"depth": 2}, "reinit.band": {"width": 2}, "reinit.sparse": {"density": 0.1},
         "reinit.low-rank": {"rank": 2}, "reinit.config": {"embeddings": True}}
model = load("builtin:tiny")._opened.model
for edit in (*gausslens_reinit.plugin.edits(), *gausslens_spectrum.plugin.edits()):
    if not edit.random:
        continue
    parameters = resolve(edit.parameters).model_validate(GIVEN.get(edit.name, {}))
    call = EditCall(Owned(edit, Owner("", "", "")), parameters, None, None, Mark("", 1, 1))
    twin = Twin(model, [call], 3, 2)
    digest = hashlib.sha256()
    for layer in (*model.info.layers, None):
        for name, tensor in sorted(twin.overlay(layer).items()):
            digest.update(f"{layer}.{name}".encode() + tensor.contiguous().numpy().tobytes())
    print(edit.name, digest.hexdigest())
"""


def test_two_processes_draw_the_same_twins() -> None:
    found = []
    for hashing in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hashing}
        command = [sys.executable, "-c", SCRIPT]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        found.append(dict(line.split() for line in ran.stdout.splitlines()))
    assert found[0] == found[1]
    assert len(found[0]) == 14
    # What an edit that returned nothing would have.
    assert len(set(found[0].values())) == 14
