"""Write to a store on a disk that fills up, or with a limit on the size of files: full_disk.py STORE LIMIT.

Prints one JSON line: how many results were finished, and the errors that were told.
"""

import json
import resource
import signal
import sys
from pathlib import Path

import numpy as np
import xarray as xr
from store.stored import META, key, manifest, small

from gausslens import GausslensError
from gausslens.store import Store

ROOT, LIMIT = Path(sys.argv[1]), int(sys.argv[2])
store = Store(ROOT).create()
store.commit("probe.score", key("first"), small(0), META)
if LIMIT:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
told: list[str] = []
finished = 0
try:
    for finished in range(150):
        store.commit("probe.score", key(finished), small(finished), META)
except GausslensError as error:
    told.append(str(error))
large = xr.Dataset({"a": ("x", np.zeros(4_000_000))})
steps = [{"variant": "v", "label": "l" * 200, "analysis": "a", "key": key(i)} for i in range(20_000)]
for work in (
    lambda: store.commit("probe.score", key("large"), large, META),
    lambda: store.manifest("run", manifest("p", steps)),
):
    try:
        work()
    except GausslensError as error:
        told.append(str(error))
writer = store.begin("probe.score", key("bulk"), META)
try:
    writer.create("a", ("x",), (40_000_000,))
    writer.commit(xr.Dataset())
except GausslensError as error:
    told.append(str(error))
writer.abandon()
left = [p.name for p in (ROOT / "tmp").iterdir()]
print(json.dumps({"finished": finished, "told": told, "left": left}))
