"""Do to each of some stores all that a user may do to one: victim.py DIRECTORY, with DIRECTORY/<name>/store.

What happened goes to DIRECTORY/<name>/told.json. Each has a process of its own, and a minute and a half.
"""

import io
import json
import os
import signal
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from store.stored import key, small

import gausslens
from gausslens import GausslensError
from gausslens.__main__ import main as command
from gausslens.store import Store
from gausslens.store.maintain import verify


def use(where: Path) -> None:
    root = where / "store"
    warnings.simplefilter("always")
    said = io.StringIO()
    refused = []
    with redirect_stdout(said), redirect_stderr(said):
        findings = [f"{f.where}: {f.what}" for f in verify(root) if not f.harmless]
        try:
            print(Store(root).read("probe.score", key("t")).load())
        except GausslensError as error:
            refused.append(str(error))
        try:
            results = gausslens.open(root)
            for name in results:
                for dataset in results.draws(*name).values():
                    print(dataset.load(), [v.values.tolist() for v in dataset.variables.values()])
            print(results.table(), results.tree())
        except GausslensError as error:
            refused.append(str(error))
        codes = [
            command(["show", str(root)]),
            command(["show", str(root), "score"]),
            command(["diff", str(root), "first", "first"]),
            command(["store", "verify", str(root)]),
            command(["store", "pack", str(root), str(where / "out.h5")]),
            command(["store", "gc", str(root), "--yes"]),
            command(["store", "reindex", str(root)]),
        ]
    told = {"findings": findings, "refused": refused, "codes": codes, "said": said.getvalue()}
    (where / "told.json").write_text(json.dumps(told))


def main() -> None:
    str(small(0).to_dataframe())  # whatever is imported late is imported now
    for where in sorted(Path(sys.argv[1]).iterdir()):
        pid = os.fork()
        if pid == 0:
            signal.alarm(90)
            use(where)
            os._exit(0)
        os.waitpid(pid, 0)


main()
