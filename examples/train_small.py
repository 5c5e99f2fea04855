"""Train a small model from a fresh or an edited start, and keep checkpoints on the way: OUT/base, OUT/step0, ...

    python examples/train_small.py OUT --type llama --layers 2 --heads 4 --width 64 --steps 400
    python examples/train_small.py OUT --type marian --layers 1 --heads 8 --edit examples/shaped-starts.yaml identity
    python examples/train_small.py OUT --start DIR --text FILE --save 0 10 100 1000

A decoder learns a text (--text) or sums (--sums), an encoder-decoder pairs (--pairs, a tab between source and target);
without a file, the words that come with gausslens, and what a rule makes of them. Tokens are bytes unless --tokenizer
says otherwise, of sums numbers.

OUT/base is the start: the class's own initialisation from --init-seed, or that with the edits of a variant of a run
file (--edit), or what --start holds (as `gausslens edit` writes it). OUT/step0 equals it bit for bit. OUT/stepN is the
model after N updates, an ordinary directory of transformers with its tokenizer. OUT/losses.csv has the loss of each.

Kill it whenever you like: the same command goes on from where it was, and its checkpoints are bit for bit those of a
training that nobody killed. A larger --steps goes on further, for the rate does not depend on it.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import transformers
from gausslens_examples.small_texts import (
    RULES,
    PairRows,
    Sums,
    TextWindows,
    built_in_lines,
    built_in_pairs,
    number_tokenizer,
    read_pairs,
    seed_of,
)
from gausslens_examples.train_tiny_model import tokenizer as bytes_tokenizer
from transformers.utils.logging import disable_progress_bar

import gausslens

# What configs call their sizes: each that a config has is set. (A decoder's own number follows --layers too.)
NAMES = {
    "layers": ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers"),
    "heads": (
        "num_attention_heads",
        "num_heads",
        "num_key_value_heads",
        "encoder_attention_heads",
        "decoder_attention_heads",
    ),
    "width": ("hidden_size", "d_model", "word_embed_proj_dim"),
    "mlp": ("intermediate_size", "d_ff", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"),
    "head": ("head_dim", "d_kv"),
    "positions": ("max_position_embeddings", "n_positions"),
}
DROPOUTS = (
    "dropout",
    "dropout_rate",
    "attention_dropout",
    "hidden_dropout",
    "activation_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
)
STACKS = ("encoder", "decoder", "cross")
# What may change from one call to the next: how far, which checkpoints, how often it is noted where it is.
MAY_CHANGE = ("out", "steps", "save", "save_at", "keep", "quiet")
STATE, FACTS, LOSSES, LOCK, WORKSHOP = "state.pt", "training.json", "losses.csv", ".lock", ".writing"


def main(argv: Sequence[str] | None = None) -> None:
    """Train, or go on."""
    disable_progress_bar()
    parser = arguments()
    chosen = parser.parse_args(argv)
    try:
        train(chosen)
    except (ValueError, OSError, gausslens.GausslensError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def arguments() -> argparse.ArgumentParser:
    """All that may be chosen."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="train_small.py", description=__doc__, formatter_class=how)
    parser.add_argument("out", type=Path, metavar="OUT", help="the directory of all checkpoints")
    model = parser.add_argument_group("the model")
    model.add_argument("--type", default="llama", help="a type that transformers knows: llama, gpt2, marian, t5, ...")
    model.add_argument("--config", type=Path, help="a config.json instead, which then says all sizes")
    for name, value, what in (
        ("layers", 2, "layers, of each stack"),
        ("heads", 4, "heads of a layer"),
        ("width", 64, "width of the stream"),
        ("mlp", None, "width of the MLP (default: twice the stream's)"),
        ("positions", 128, "the longest text"),
    ):
        model.add_argument(f"--{name}", type=int, default=value, help=f"{what}{f' ({value})' if value else ''}")
    what = "another key of the config, as scale_embedding=true"
    model.add_argument("--set", type=setting, nargs="+", default=[], metavar="KEY=VALUE", help=what)
    model.add_argument("--tokenizer", type=Path, help="the directory of a tokenizer (default: bytes)")
    start = parser.add_argument_group("where it starts")
    start.add_argument("--init-seed", type=int, default=0, help="the seed of the initialisation, and of edits (0)")
    start.add_argument("--start", type=Path, help="a directory with the model to start from")
    start.add_argument("--edit", nargs=2, metavar=("RUN", "VARIANT"), help="edit the initialisation as a run file says")
    start.add_argument("--draw", type=int, metavar="N", help="which draw of that variant")
    start.add_argument("--at", type=setting, nargs="+", default=[], metavar="NAME=VALUE", help="where it sweeps")
    add_training(parser)
    return parser


def add_training(parser: argparse.ArgumentParser) -> None:
    """What it learns, how, and what is kept."""
    data = parser.add_argument_group("what it learns")
    data.add_argument("--text", type=Path, help="a text, for decoders")
    data.add_argument("--pairs", type=Path, help="lines of source, tab, target, for encoder-decoders")
    data.add_argument("--rule", choices=sorted(RULES), default="reversal", help="of built-in words (reversal)")
    data.add_argument("--sums", type=int, metavar="P", help="for decoders: sums modulo P, as 12 34 = 46")
    data.add_argument("--share", type=float, help="the share of these sums that is learned (0.4)")
    data.add_argument("--data-seed", type=int, default=0, help="the seed of the order of the data (0)")
    data.add_argument("--length", type=int, default=64, help="tokens of a row, at most (64)")
    data.add_argument("--rows", type=int, default=16, help="rows of a step (16)")
    how = parser.add_argument_group("how")
    how.add_argument("--steps", type=int, default=400, help="how many updates (400)")
    how.add_argument("--rate", type=float, default=3e-3, help="the learning rate of AdamW (0.003)")
    how.add_argument("--decay", type=float, help="the weight decay of AdamW (0.01)")
    how.add_argument(
        "--warmup", type=int, default=50, help="in so many steps the rate grows to that; then it stays (50)"
    )
    how.add_argument("--threads", type=int, default=1, help="others round otherwise (1)")
    kept = parser.add_argument_group("what is kept")
    which = kept.add_mutually_exclusive_group()
    which.add_argument("--save", type=int, nargs="+", metavar="STEP", help="the steps whose checkpoints are kept")
    which.add_argument(
        "--save-at", choices=("log", "end"), default="log", help="0, 1, 2, 5, 10, 20, ... (log), or 0 and the last"
    )
    kept.add_argument(
        "--keep", type=int, default=50, help="after so many steps note where it is, to go on from there (50)"
    )
    kept.add_argument("--quiet", action="store_true", help="print nothing")


def setting(text: str) -> tuple[str, Any]:
    """A key of a config and its value, written as JSON where it is no word."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text}: KEY=VALUE is wanted")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def train(chosen: argparse.Namespace) -> None:
    """All of it; what is there already is not done again."""
    counts = ("layers", "heads", "width", "positions", "rows", "length", "keep")
    few = next((name for name in counts if vars(chosen)[name] < 1), None)
    if few:
        raise ValueError(f"--{few} {vars(chosen)[few]}: it is 1 or more")
    if chosen.start is not None and chosen.edit is not None:
        raise ValueError("--start and --edit both say where it starts: edit that directory first (gausslens edit)")
    steps = saved_steps(chosen)
    out: Path = chosen.out
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another training is writing to {out}: wait for it, or choose another place") from None
        shutil.rmtree(out / WORKSHOP, ignore_errors=True)  # what a killed one left
        (out / WORKSHOP).mkdir()
        try:
            torch.set_num_threads(chosen.threads)
            told = facts(chosen)
            if (out / "base").is_dir():
                refuse_others(told, out)
            else:
                make_base(chosen)
                write_whole(out / FACTS, json.dumps(told, indent=2) + "\n")
                (out / WORKSHOP / "base").rename(out / "base")
            Training.of(chosen).run(steps)
        finally:
            shutil.rmtree(out / WORKSHOP, ignore_errors=True)


def saved_steps(chosen: argparse.Namespace) -> list[int]:
    """The steps of which there will be a checkpoint."""
    last = chosen.steps
    if chosen.save is not None:
        wrong = [step for step in chosen.save if not 0 <= step <= last]
        if wrong:
            raise ValueError(f"--save {wrong[0]}: there are steps 0 to {last}; raise --steps")
        return sorted(set(chosen.save))
    if chosen.save_at == "end":
        return sorted({0, last})
    marks = {first * 10**power for power in range(12) for first in (1, 2, 5)}
    return sorted({0, last, *(mark for mark in marks if mark <= last)})


def facts(chosen: argparse.Namespace) -> dict[str, Any]:
    """What is trained and on what: files by what they hold."""
    told = {name: value for name, value in vars(chosen).items() if name not in MAY_CHANGE and value not in (None, [])}
    for name in ("config", "text", "pairs", "start", "tokenizer"):
        if name in told:
            told[name] = digest_of(told[name], name)
    if "edit" in told:
        told["edit"] = [digest_of(Path(chosen.edit[0]), "edit"), chosen.edit[1]]
    plain: dict[str, Any] = json.loads(json.dumps(told))  # as it will be read again
    return plain


def refuse_others(told: dict[str, Any], out: Path) -> None:
    """One place holds one training."""
    before = json.loads((out / FACTS).read_text("utf-8"))
    others = [name for name in sorted({*told, *before}) if told.get(name) != before.get(name)]
    if others:
        name = others[0]
        was, now = (f"--{name.replace('_', '-')} {held.get(name, 'not given')}" for held in (before, told))
        raise ValueError(f"{out} holds another training ({was}; here {now}): choose another place")


def digest_of(path: Path, option: str) -> str:
    """What a file holds, or the files of a directory: where it lies does not matter."""
    if not path.exists():
        raise ValueError(f"--{option} {path}: there is nothing of that name")
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    held = [sha256(file.name.encode() if path.is_dir() else b"").digest() + file.read_bytes() for file in files]
    return sha256(b"".join(sha256(one).digest() for one in held)).hexdigest()


def make_base(chosen: argparse.Namespace) -> None:
    """What OUT/base will be, from which training starts; first the data are looked at."""
    workshop = chosen.out / WORKSHOP
    model = None if chosen.start is None else opened(chosen.start)
    config = read_config(chosen) if model is None else model.config
    tokenizer = tokenizer_of(chosen, config)
    if config.vocab_size < len(tokenizer):
        raise ValueError(f"the model has {config.vocab_size} tokens, the tokenizer {len(tokenizer)}")
    data = read_data(chosen, config, tokenizer)
    if model is None:
        torch.manual_seed(chosen.init_seed)
        model = class_for(config).from_config(config)
    check_runs(model, data)
    save(model, tokenizer, workshop / "base")
    if chosen.edit is not None:
        edit_base(chosen, workshop)


def check_runs(model: Any, data: TextWindows | PairRows | Sums) -> None:
    """Refuse a model whose sizes do not fit together, or the data."""
    try:
        with torch.no_grad():
            model(**data.batch(0))
    except (RuntimeError, IndexError) as error:
        told = str(error).splitlines()[0]
        raise ValueError(
            f"a {model.config.model_type} of these sizes does not run ({told}): lower --length, set other keys of its "
            "config with --set, or give a whole one with --config"
        ) from error


def edit_base(chosen: argparse.Namespace, workshop: Path) -> None:
    """The initialisation as a variant of a run file edits it; of a model of two stacks all its attention, in turn."""
    run, variant = chosen.edit
    two = transformers.AutoConfig.from_pretrained(workshop / "base").is_encoder_decoder
    for number, stack in enumerate(STACKS if two else (None,)):
        # Equal seeds would draw equal matrices in both stacks.
        seed = seed_of(chosen.init_seed, stack) % 2**31 if stack else chosen.init_seed
        sets = [f"model.path={(workshop / 'base').resolve()}", f"seed={seed}"]
        sets += [f"model.stack={stack}"] if stack else []
        made = gausslens.edit(run, variant, workshop / f"edited{number}", chosen.draw, dict(chosen.at), sets=sets)
        shutil.rmtree(workshop / "base")
        made.rename(workshop / "base")


def read_config(chosen: argparse.Namespace) -> Any:
    """The config of a file, or of a type with the sizes that were chosen; nothing is dropped out."""
    if chosen.config is not None:
        return transformers.AutoConfig.from_pretrained(chosen.config)
    known = transformers.CONFIG_MAPPING
    if chosen.type not in known:
        near = gausslens.did_you_mean(chosen.type, known)
        raise ValueError(f"--type {chosen.type}: transformers knows no such type{near}")
    if chosen.width % chosen.heads:
        raise ValueError(f"--width {chosen.width} is not a multiple of --heads {chosen.heads}")
    sizes = {name: getattr(chosen, name) for name in ("layers", "heads", "width", "mlp", "positions")}
    sizes |= {"mlp": chosen.mlp or 2 * chosen.width, "head": chosen.width // chosen.heads}
    default = known[chosen.type]()
    has = {*default.to_dict(), *default.attribute_map}
    given = {key: sizes[name] for name, keys in NAMES.items() for key in keys if key in has}
    given |= {key: 0.0 for key in DROPOUTS if key in has}
    tokenizer = tokenizer_of(chosen, default)
    given |= {"vocab_size": len(tokenizer), **special_tokens(default, tokenizer), **dict(chosen.set)}
    return transformers.AutoConfig.for_model(chosen.type, **given)


def special_tokens(config: Any, tokenizer: Any) -> dict[str, int | None]:
    """What a config says of the tokens of its tokenizer."""
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "pad_token_id", "eos_token_id")}
    if config.is_encoder_decoder:
        ids |= {"decoder_start_token_id": ids["pad_token_id"], "forced_eos_token_id": None}
    return ids


def tokenizer_of(chosen: argparse.Namespace, config: Any) -> Any:
    """The tokenizer that was chosen, else that of the start, else numbers for sums, else bytes."""
    for place in (chosen.tokenizer, chosen.start):
        if place is not None and ((place / "tokenizer.json").is_file() or place is chosen.tokenizer):
            return transformers.AutoTokenizer.from_pretrained(place)
    if chosen.sums is not None:
        if config.is_encoder_decoder:
            raise ValueError(f"{config.model_type} has two stacks and learns pairs (--pairs), no --sums")
        return number_tokenizer(chosen.sums)
    return bytes_tokenizer(in_pairs=config.is_encoder_decoder)


def class_for(config: Any) -> Any:
    """The auto class: with a language-model head, of one stack or of two. Encoders see what they would predict."""
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    masked, causal = transformers.MODEL_FOR_MASKED_LM_MAPPING, transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) in masked or type(config) not in causal:
        raise ValueError(f"{config.model_type} writes no text: decoders and encoder-decoders are trained here")
    return transformers.AutoModelForCausalLM


def opened(place: Path) -> Any:
    """The model in a directory, as float32."""
    if not (place / "config.json").is_file():
        raise ValueError(f"{place} holds no model (config.json)")
    config = transformers.AutoConfig.from_pretrained(place)
    return class_for(config).from_pretrained(place, dtype=torch.float32)


def save(model: Any, tokenizer: Any, place: Path) -> None:
    """A directory that transformers and gausslens open."""
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    for file in place.iterdir():
        file.chmod(0o644)  # safetensors gives nobody else a right to read


def read_data(chosen: argparse.Namespace, config: Any, tokenizer: Any) -> TextWindows | PairRows | Sums:
    """What the model learns, of the sort that it can."""
    if config.is_encoder_decoder:
        if chosen.text is not None:
            raise ValueError(f"{config.model_type} has two stacks and learns pairs (--pairs), no --text")
        pairs = built_in_pairs(chosen.rule) if chosen.pairs is None else read_pairs(chosen.pairs)
        return PairRows.of(pairs, tokenizer, chosen.length, chosen.rows, chosen.data_seed)
    if chosen.pairs is not None:
        raise ValueError(f"{config.model_type} has one stack and learns a text (--text), no --pairs")
    if chosen.sums is not None:
        return Sums.of(chosen.sums, 0.4 if chosen.share is None else chosen.share, chosen.rows, chosen.data_seed)
    text = "\n".join(built_in_lines()) if chosen.text is None else chosen.text.read_text(encoding="utf-8")
    return TextWindows.of(text, tokenizer, chosen.length, chosen.rows, chosen.data_seed)


@dataclass
class Training:
    """A model on its way: what it is after ``step`` updates follows from its base, the data and the seeds alone."""

    chosen: argparse.Namespace
    model: Any
    tokenizer: Any
    data: TextWindows | PairRows | Sums
    optimiser: torch.optim.Optimizer
    losses: list[float]

    @classmethod
    def of(cls, chosen: argparse.Namespace) -> Training:
        """From the base, or from where a training before came to."""
        model = opened(chosen.out / "base")
        tokenizer = tokenizer_of(argparse.Namespace(tokenizer=chosen.out / "base", start=None), model.config)
        data = read_data(chosen, model.config, tokenizer)
        decay = 0.01 if chosen.decay is None else chosen.decay
        optimiser = torch.optim.AdamW(model.parameters(), lr=chosen.rate, betas=(0.9, 0.98), weight_decay=decay)
        training = cls(chosen, model.train(), tokenizer, data, optimiser, [])
        if (chosen.out / STATE).is_file():
            held = torch.load(chosen.out / STATE, weights_only=True)
            model.load_state_dict(held["model"])
            optimiser.load_state_dict(held["optimiser"])
            training.losses = held["losses"]
        return training

    @property
    def step(self) -> int:
        """How many updates were made."""
        return len(self.losses)

    def run(self, steps: Sequence[int]) -> None:
        """Up to the last step, with a checkpoint at each of these."""
        out, last, began = self.chosen.out, self.chosen.steps, time.monotonic()
        passed = [step for step in steps if step < self.step and not (out / f"step{step}").is_dir()]
        if passed:  # other steps were asked for before
            self.begin_again()
        while True:
            if self.step in steps:
                self.save_step()
            done = self.step >= last
            if done or (self.step % self.chosen.keep == 0 and self.step):
                self.note()
            if not self.chosen.quiet and (done or self.step % max(1, last // 10) == 0):
                self.tell(time.monotonic() - began)
            if done:
                return
            self.update()

    def begin_again(self) -> None:
        """From the base: an earlier step is wanted than where a training before came to."""
        (self.chosen.out / STATE).unlink()
        fresh_one = Training.of(self.chosen)
        self.model, self.optimiser, self.losses = fresh_one.model, fresh_one.optimiser, []

    def update(self) -> None:
        """One step. What is drawn in it, where a model drops out, follows from the seed of the data and its number."""
        torch.manual_seed(seed_of("dropped", self.chosen.data_seed, self.step))
        for group in self.optimiser.param_groups:
            group["lr"] = self.chosen.rate * min(1.0, (self.step + 1) / max(1, self.chosen.warmup))
        loss = self.model(**self.data.batch(self.step)).loss
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.losses.append(float(loss.detach()))
        if not self.losses[-1] < float("inf"):
            raise ValueError(f"step {self.step}: the loss is {self.losses[-1]}: lower --rate")

    def save_step(self) -> None:
        """The checkpoint of this step, whole or not at all; one that is there is the same."""
        target = self.chosen.out / f"step{self.step}"
        if not target.is_dir():
            made = self.chosen.out / WORKSHOP / target.name
            save(self.model, self.tokenizer, made)
            made.rename(target)

    def note(self) -> None:
        """Where it is, to go on from there, and the losses until then."""
        held = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "losses": self.losses}
        made = self.chosen.out / WORKSHOP / STATE
        torch.save(held, made)
        made.replace(self.chosen.out / STATE)
        made = self.chosen.out / WORKSHOP / LOSSES
        with made.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [("step", "loss"), *((n, f"{loss:.6f}") for n, loss in enumerate(self.losses, 1))]
            )
        made.replace(self.chosen.out / LOSSES)

    def tell(self, seconds: float) -> None:
        """One line: how far it is, and how well."""
        recent = self.losses[-20:]
        loss = f", loss {sum(recent) / len(recent):.3f}" if recent else ""
        print(f"{self.chosen.out}: step {self.step} of {self.chosen.steps}{loss} ({seconds:.0f} s)", flush=True)


def write_whole(place: Path, text: str) -> None:
    """A file that is there whole or not at all."""
    made = place.parent / WORKSHOP / place.name
    made.write_text(text, encoding="utf-8")
    made.replace(place)


if __name__ == "__main__":
    sys.exit(main())
