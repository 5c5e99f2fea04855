"""The smallest study of each analysis, from studies.yaml: the run file of its page, its outputs, its figures.

    python docs/site/studies.py          runs them all, and writes each plugin's outputs.json

What is in the store (build/site/store) is not computed again. `make schemas` does this; `make site` ends with an error
where an outputs.json says something else.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    import gausslens
    from gausslens.plugins import Host
    from gausslens.plugins.outputs import Output

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/site"
STORE, RUNS = BUILD / "store", BUILD / "runs"
_RUN: dict[str, list[gausslens.Results]] = {}  # by analysis, what was run in this process
BEFORE = {"edits": [{"edit": "reinit.config", "embeddings": True}]}


@cache
def told() -> Mapping[str, Any]:
    """What studies.yaml says."""
    found: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("studies.yaml").read_text(encoding="utf-8"))
    return found


def study(analysis: str) -> dict[str, Any]:
    """The run file of an analysis, as plain data."""
    own = told()["all"] | told()["analyses"][analysis]
    variants: dict[str, Any] = own.get("variants") or {"trained": []}
    drawn = own["draws"] and "variants" not in own
    if drawn:
        variants = variants | {"before": BEFORE | {"draws": own["draws"]}}
    on = {"variants": own["on"]} if "on" in own else {}
    use = {"use": analysis} | ({"with": own["with"]} if "with" in own else {}) | on
    # Derived analyses of several variants have no null.
    against = {"against": "before"} if drawn and "also" not in own else {}
    head = {"gausslens": 1, "name": analysis.replace(".", "-"), "model": own["model"], "prompts": own["prompts"]}
    return head | {"variants": variants, "analyses": [*own.get("also", ()), use], "errors": False} | against


def written(whole: Mapping[str, Any]) -> str:
    """A study as one would write it: blocks of one line where they fit."""
    lines = []
    for key, value in whole.items():
        if key == "variants":
            lines += ["variants:", *(f"  {name}: {flow(each)}" for name, each in value.items())]
        elif key == "analyses":
            lines += ["analyses:", *(f"  - {flow(each)}" for each in value)]
        else:
            lines.append(f"{key}: {flow(value)}")
    return "\n".join(lines) + "\n"


def flow(value: Any) -> str:
    """A value in one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.removesuffix("...\n").strip()


def results(analysis: str, host: Host) -> list[gausslens.Results]:
    """The results of an analysis' study, then those of the same with other parameters; each is run once."""
    import gausslens

    if analysis not in _RUN:
        runs = []
        for number, more in enumerate([{}, *told()["analyses"][analysis].get("options", ())]):
            whole = study(analysis)
            if number:
                whole["analyses"][-1] |= {"with": more}
                whole |= {"name": f"{whole['name']}-{number}"}
            runs.append(gausslens.run(_file(whole), store=STORE, shown=False, host=host))
        _RUN[analysis] = runs
    return _RUN[analysis]


def _file(whole: Mapping[str, Any]) -> Path:
    """The run file on disk, beside the checkpoint that one of them reads."""
    RUNS.mkdir(parents=True, exist_ok=True)
    if not (RUNS / "fine-tuning").exists():
        shutil.copytree(ROOT / "examples/fine-tuning", RUNS / "fine-tuning")
    path = RUNS / f"{whole['name']}.yaml"
    path.write_text(written(whole), encoding="utf-8")
    return path


def outputs(host: Host) -> dict[str, tuple[Output, ...]]:
    """What every analysis gave in its studies."""
    from gausslens.plugins.outputs import outputs_in

    found: dict[str, tuple[Output, ...]] = {}
    for analysis in host.analyses:
        given = [
            (analysis, data)
            for store in results(analysis, host)
            for by_variant in store.of(analysis).values()
            for data in by_variant.values()
        ]
        # Draws are a dimension of what is read, not of what the analysis gives.
        found |= outputs_in((name, data.isel(draw=0) if "draw" in data.dims else data) for name, data in given)
    return found


def files(host: Host) -> dict[Path, str]:
    """Each plugin's outputs.json, and what it should say."""
    from gausslens.plugins.outputs import FILE, as_json, package_of

    by_package: dict[str, dict[str, tuple[Output, ...]]] = {}
    for name, given in outputs(host).items():
        by_package.setdefault(package_of(host.analyses[name].descriptor), {})[name] = given
    found = {}
    for package, listed in by_package.items():
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        found[Path(spec.origin).with_name(FILE)] = as_json(listed)
    return found


def stale(host: Host) -> dict[Path, str]:
    """The lists of outputs that say something else than what the studies gave, and what they should say."""
    made = files(host)
    return {p: text for p, text in made.items() if not p.exists() or p.read_text(encoding="utf-8") != text}


def main() -> int:
    """Write the lists of outputs."""
    from gausslens.runfile.schema import ours

    for path, text in stale(ours()).items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
