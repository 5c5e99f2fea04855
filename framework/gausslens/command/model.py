"""Say what a model is, and prove captured activations against the model's own attention."""

from __future__ import annotations

import contextlib
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError, ModelError
from ..terminal import table, tell
from . import load_host

if TYPE_CHECKING:
    from ..contract.engines import Finding
    from ..contract.model import ModelInfo
    from ..runs.open import Opened

# Findings that are printed although they hold: the largest, as parts of what is allowed.
SHOWN = 3


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("path", metavar="PATH", help="a directory, builtin:NAME or hub:OWNER/NAME@REVISION")
    parser.add_argument("--loader", default="auto", help="which loader opens it (default: auto)")
    parser.add_argument("--dtype", default=None, help="float32, float64, bfloat16 or float16 (default: float32)")
    parser.add_argument("--device", default="cpu", help="where it runs (default: cpu)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="another key of model:, as stack=cross"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Print family, shapes, sites, memory and the proof; 1 where captured and computed differ."""
    from .. import runfile
    from ..runs.open import open_model

    host = load_host(arguments)
    block = {key: getattr(arguments, key) for key in ("path", "loader", "dtype", "device")}
    block |= _more(arguments.set)
    opened = open_model(runfile.read_model({k: v for k, v in block.items() if v is not None}, host), host)
    try:
        findings = proved(opened)
        if arguments.json:
            print(_as_json(opened, findings))
        else:
            tell(_as_text(opened, findings))
    finally:
        opened.model.close()
    return 0 if findings is None or all(f.holds for f in findings) else 1


def _more(given: Sequence[str]) -> dict[str, Any]:
    """{key: value} of KEY=VALUE, values as a run file has them."""
    import yaml

    wrong = next((one for one in given if "=" not in one), None)
    if wrong is not None:
        raise InputError(f"--set {wrong}: KEY=VALUE is wanted, as --set stack=cross")
    return {key: yaml.safe_load(value) for key, _, value in (one.partition("=") for one in given)}


def proved(opened: Opened) -> Sequence[Finding] | None:
    """What the engine's proof finds; None where no engine runs the model, or its engine proves nothing."""
    prove = getattr(opened.running, "prove", None)
    return None if prove is None else list(prove(opened.model))


def _as_text(opened: Opened, findings: Sequence[Finding] | None) -> str:
    info = opened.model.info
    loader = opened.call.loader.descriptor.name
    engine = opened.engine.descriptor.name if opened.engine else "none"
    lines = [
        f"{info.name}: {info.family}, opened by {loader}, run by {engine}",
        "",
        *table(("fingerprint", info.fingerprint), _shapes(info, info.weight_bytes)),
        "",
        *_sites(opened),
        "",
        *_tensors(opened),
        *(f"note         {note}" for note in info.facts.get("notes", ())),
        "",
        *_proof(findings),
    ]
    return "\n".join(lines)


def _shapes(info: ModelInfo, weights: int) -> list[tuple[str, str]]:
    windows = [w for w in info.facts.get("sliding_window", ()) if w is not None]
    values = "" if info.d_value is None else f", values of {info.d_value}"
    rows = [
        ("layers", str(info.n_layers)),
        ("heads", f"{info.n_heads} over {info.n_kv_heads} key/value heads of {info.d_head}{values}"),
        ("d_model", str(info.d_model)),
        ("d_mlp", str(info.d_mlp)),
        ("vocabulary", f"{info.vocabulary:,}"),
        ("parameters", f"{info.n_parameters:,}"),
        ("weights", f"{weights / 1e6:,.1f} MB as {info.dtype}"),
        ("positions", f"{info.facts.get('position', 'unknown')}, at most {info.max_positions or 'any number'}"),
        ("attention", "to the source" if info.facts.crossed else "causal" if info.causal else "both ways"),
    ]
    if windows:
        rows.append(("window", f"{windows[0]} tokens in {len(windows)} of {info.n_layers} layers"))
    return rows


def _sites(opened: Opened) -> list[str]:
    """The sites, one layer's memory for 1,024 tokens of one prompt, and what is lacking where."""
    if opened.running is None:
        return ["no capture engine serves this loader: weights can be read, prompts cannot be run"]
    info = opened.model.info
    lines = [f"sites        {' '.join(opened.running.sites(opened.model))}"]
    lost: dict[tuple[str, str], list[int]] = {}
    for layer, reasons in info.lacking.items():
        for site, reason in reasons.items():
            lost.setdefault((site, reason), []).append(layer)
    for (site, reason), layers in lost.items():
        where = "no layer has it" if len(layers) == info.n_layers else f"not in {', '.join(map(str, layers))}"
        lines.append(f"  {site}: {where}: {reason}")
    stream, pattern = (4 * 1024 * n / 1e6 for n in (info.d_model, info.n_heads * 1024))
    lines.append(f"memory       one layer, 1,024 tokens: resid_pre {stream:.1f} MB, pattern {pattern:.1f} MB")
    return lines


def _tensors(opened: Opened) -> list[str]:
    try:
        return [f"{where:<12} {' '.join(names)}" for where, names in _names(opened).items()]
    except ModelError as error:
        return [f"tensors      none: {error}"]


def _names(opened: Opened) -> dict[str, tuple[str, ...]]:
    return {"layer 0": opened.model.names(0), "outside": opened.model.names(None)}


def _proof(findings: Sequence[Finding] | None) -> list[str]:
    if findings is None:
        return ["proof        none: nothing runs this model"]
    made = sorted((f for f in findings if not f.left_out), key=lambda f: f.share, reverse=True)
    wrong = [f for f in made if not f.holds]
    if wrong:
        lines = [f"proof        {len(wrong)} of {len(made)} comparisons DIFFER, the worst first"]
    else:
        lines = [f"proof        all {len(made)} comparisons hold; the largest differences:"]
    lines += [f"  {f.what}: {f.difference:.3g} (allowed {f.tolerance:.3g})" for f in (wrong[:20] or made[:SHOWN])]
    return lines + [f"  not compared: {f.what}: {f.left_out}" for f in findings if f.left_out]


def _as_json(opened: Opened, findings: Sequence[Finding] | None) -> str:
    from dataclasses import asdict

    data: dict[str, Any] = asdict(opened.model.info)
    data["loader"] = opened.call.loader.descriptor.name
    data["engine"] = opened.engine.descriptor.name if opened.engine else None
    data["sites"] = list(opened.running.sites(opened.model)) if opened.running else []
    with contextlib.suppress(ModelError):  # some models run and have no tensors that are known
        data["tensors"] = _names(opened)
    if findings is not None:
        data["proof"] = [{**asdict(f), "holds": f.holds} for f in findings]
    return json.dumps(data, indent=2, ensure_ascii=False, default=str)
