"""Train builtin:clue-tiny: a small Mistral that continues lines of "word: definition", from WordNet's definitions.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python examples/train_clue_model.py OUT --tokens 20000000

One row of training is one episode: BOS, in half of them an instruction, then entries until 256 tokens are full. So
each row holds the tasks of 0, 1, 2 ... examples at once. Equal seed, tokens and threads give equal weights; --minutes
instead sets the learning rate by the clock, for machines whose speed is not known. The best checkpoint by held-out
loss is what OUT holds at any time, as float16 safetensors.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar
from wordnet import HOME, INSTRUCTION, Entry, Episodes, Synset, capitalised, synsets

BOS = "<s>"
ROW = 256
VOCABULARY = 4096


def train_tokenizer(chosen: list[Synset]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of its own, which puts BOS before every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = (f"{w}: {s.definition}\n" for s in chosen for w in (s.words[0], capitalised(s.words[0])))
    tokenizer.train_from_iterator((line for part in ([INSTRUCTION], lines) for line in part), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, clean_up_tokenization_spaces=False, model_max_length=ROW
    )


def make_model(layers: int, tokenizer: PreTrainedTokenizerFast) -> MistralForCausalLM:
    """Grouped-query attention, rotary positions, RMSNorm, gated MLP, tied embeddings."""
    config = MistralConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=ROW,
        sliding_window=None,
        initializer_range=0.02,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=None,
        pad_token_id=None,
        use_cache=True,
        attn_implementation="eager",  # at this size on a CPU a third faster than sdpa,
    )
    return MistralForCausalLM(config)


class Rows:
    """Rows of tokens made of episodes, with a mask of the tokens that belong to a definition (and its line end)."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, episodes: Episodes) -> None:
        self.tokenizer = tokenizer
        self.episodes = episodes
        self.known: dict[str, list[int]] = {}
        self.instruction = self._ids(INSTRUCTION)

    def _ids(self, text: str) -> list[int]:
        found = self.known.get(text)
        if found is None:
            found = self.known[text] = self.tokenizer.encode(text, add_special_tokens=False)
        return found

    def entry(self, entry: Entry) -> tuple[list[int], int]:
        """The tokens of a line, and how many of them are the word."""
        word = self._ids(f"{entry.word}:")
        return [*word, *self._ids(f" {entry.definition}\n")], len(word)

    def row(self) -> tuple[list[int], list[bool]]:
        ids = [int(self.tokenizer.bos_token_id)]
        if self.episodes.random.random() < 0.5:
            ids += self.instruction
        clue = [False] * len(ids)
        for entry in self.episodes.episode():
            line, word = self.entry(entry)
            ids += line
            clue += [False] * word + [True] * (len(line) - word)
            if len(ids) >= ROW:
                break
        return ids[:ROW], clue[:ROW]

    def batch(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, clue = zip(*(self.row() for _ in range(rows)), strict=True)
        return torch.tensor(ids), torch.tensor(clue)


def losses(model: MistralForCausalLM, ids: torch.Tensor, bfloat16: bool) -> torch.Tensor:
    """Nats of each token but the first, [row, position]."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return flat.view(len(ids), -1)


@torch.no_grad()
def held_out_loss(model: MistralForCausalLM, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Nats per token of definitions never trained on."""
    model.eval()
    total, count = 0.0, 0
    for ids, clue in batches:
        kept = clue[:, 1:]
        total += float(losses(model, ids, False)[kept].double().sum())
        count += int(kept.sum())
    model.train()
    return total / count


def make_optimizer(model: MistralForCausalLM, rate: float) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)


def progress(arguments: argparse.Namespace) -> Iterator[tuple[int, float]]:
    """The number of each step and how much of the training is behind it, from 0 to 1."""
    start, step = time.monotonic(), 0
    while True:
        if arguments.minutes:
            done = (time.monotonic() - start) / 60 / arguments.minutes
        else:
            done = step * arguments.rows * ROW / arguments.tokens
        if done >= 1:
            return
        yield step, done
        step += 1


def rate_at(step: int, done: float, highest: float) -> float:
    """A linear start of 200 steps, then a cosine to a fiftieth."""
    return highest * min(1.0, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


def ship(model: MistralForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path, facts: dict[str, Any]) -> None:
    """Write the weights as float16, beside config and tokenizer."""
    half = make_model(model.config.num_hidden_layers, tokenizer)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(out)
    (out / "training.json").write_text(json.dumps(facts, indent=2) + "\n")


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    everything = synsets(arguments.wordnet)
    kept = [s for s in everything if not s.held_out]
    tokenizer = train_tokenizer(kept)
    model = make_model(arguments.layers, tokenizer)
    rows = Rows(tokenizer, Episodes(kept, arguments.seed))
    unseen = Rows(tokenizer, Episodes([s for s in everything if s.held_out], 1, mixed=0.0, repeated=0.0))
    checks = [unseen.batch(16) for _ in range(6)]
    optimizer = make_optimizer(model, arguments.rate)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(kept)} synsets, {len(everything) - len(kept)} held out; {parameters:,} parameters", flush=True)
    best, start, mean, checked = math.inf, time.monotonic(), 0.0, time.monotonic()
    for step, done in progress(arguments):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, done, arguments.rate)
        loss = losses(model, rows.batch(arguments.rows)[0], arguments.bfloat16).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        now = float(loss.detach())
        mean = 0.98 * mean + 0.02 * now if step else now
        if time.monotonic() - checked > 60 * arguments.check:
            best = check(model, tokenizer, checks, arguments, best, (step, done, mean, start))
            checked = time.monotonic()
    check(model, tokenizer, checks, arguments, best, (step, 1.0, mean, start))


def check(
    model: MistralForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    checks: list[tuple[torch.Tensor, torch.Tensor]],
    arguments: argparse.Namespace,
    best: float,
    at: tuple[int, float, float, float],
) -> float:
    """Measure on held-out rows; keep the weights where they are the best so far."""
    step, done, mean, start = at
    loss = held_out_loss(model, checks)
    tokens = (step + 1) * arguments.rows * ROW
    minutes = (time.monotonic() - start) / 60
    print(
        f"{minutes:5.1f} min  {done:4.0%}  {tokens:,} tokens  train {mean:.3f}  held-out clues {loss:.4f}", flush=True
    )
    if loss < best:
        facts = {"seed": arguments.seed, "tokens": tokens, "rows": arguments.rows, "rate": arguments.rate}
        ship(model, tokenizer, arguments.out, facts | {"bfloat16": arguments.bfloat16, "held_out_loss": round(loss, 4)})
    return min(loss, best)


def main() -> None:
    disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory to write the model to")
    parser.add_argument("--wordnet", type=Path, default=HOME, help="directory of WordNet's data files")
    parser.add_argument("--tokens", type=int, default=20_000_000, help="how many tokens to train on")
    parser.add_argument("--minutes", type=float, help="instead of --tokens: stop by then")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=8, help="rows of 256 tokens in a step")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", type=float, default=3.0, help="minutes between two measurements on held-out rows")
    parser.add_argument("--no-bfloat16", dest="bfloat16", action="store_false", help="compute in float32")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
