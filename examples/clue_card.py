"""Print the figures of the model card of builtin:clue-tiny again, from the shipped weights.

    python examples/clue_card.py            needs Debian's wordnet-base; about two minutes

All synsets here were held out of training; the examples that stand before them were not.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ngrams import NGrams
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar
from wordnet import HOME, INSTRUCTION, Synset, by_file, synsets

import gausslens
import gausslens_models

SHIPPED = Path(gausslens_models.__file__).parent / "builtin/clue-tiny"
TARGETS = 1500
SHOTS = 4
BATCH = 32
ORDERS = {"unigram": 1, "bigram": 2, "trigram": 3}
# Words of four lists of the package, for attention and for what the model writes.
WORDS = {"animals": ["Ant", "Hedgehog", "Whale"], "food": ["Cheese", "Tea"], "professions": ["Judge", "Sailor"]}


@dataclass(frozen=True)
class Asked:
    """Tokens that end with the definition of a held-out synset, and how many of them that is."""

    ids: list[int]
    clue: int


def line(tokenizer: Any, synset: Synset) -> tuple[list[int], list[int]]:
    """The tokens of the word with its colon, and those of the definition with its line end."""
    word = tokenizer.encode(f"{synset.words[0]}:", add_special_tokens=False)
    return word, tokenizer.encode(f" {synset.definition}\n", add_special_tokens=False)


def asked(tokenizer: Any, examples: Sequence[Synset], target: Synset) -> Asked:
    """BOS, the instruction, examples and the target."""
    ids = [tokenizer.bos_token_id, *tokenizer.encode(INSTRUCTION, add_special_tokens=False)]
    for example in examples:
        word, clue = line(tokenizer, example)
        ids += word + clue
    word, clue = line(tokenizer, target)
    return Asked(ids + word + clue, len(clue))


@torch.no_grad()
def nats_of(model: Any, prompts: Sequence[Asked]) -> np.ndarray:
    """Nats of the whole definition of each prompt."""
    found = np.zeros(len(prompts))
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].ids))
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        width = max(len(prompts[i].ids) for i in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        for row, i in enumerate(batch):
            ids[row, : len(prompts[i].ids)] = torch.tensor(prompts[i].ids)
        loss = -torch.log_softmax(model(ids).logits[:, :-1].float(), -1).gather(2, ids[:, 1:, None])[..., 0]
        for row, i in enumerate(batch):
            n = len(prompts[i].ids) - 1
            found[i] = float(loss[row, n - prompts[i].clue : n].double().sum())
    return found


def per_token(nats: np.ndarray, tokens: np.ndarray) -> tuple[float, float]:
    """Nats per token over all definitions, and its standard error (a ratio of sums over synsets)."""
    mean = nats.sum() / tokens.sum()
    return float(mean), float(np.sqrt(((nats - mean * tokens) ** 2).sum()) / tokens.sum())


def losses(model: Any, tokenizer: Any, everything: list[Synset]) -> None:
    """Loss on held-out definitions: against n-grams, and by what stands before."""
    draw = random.Random(0)  # noqa: S311
    trained = [s for s in everything if not s.held_out]
    files = by_file(trained)
    targets = draw.sample([s for s in everything if s.held_out], TARGETS)
    others = [[s for s in trained if s.file != f] for f in range(len(files))]
    same = [draw.sample(files[t.file], SHOTS) for t in targets]
    other = [draw.sample(others[t.file], SHOTS) for t in targets]
    grams = NGrams(3, len(tokenizer)).learn([*word, *clue] for word, clue in (line(tokenizer, s) for s in trained))
    lines = [line(tokenizer, t) for t in targets]
    tokens = np.array([len(clue) for _, clue in lines])
    print(f"{TARGETS} held-out synsets, {tokens.sum():,} tokens of definitions; nats per token, +- standard error")
    for name, order in ORDERS.items():
        nats = [sum(grams.nats(clue[i], [*word, *clue[:i]], order) for i in range(len(clue))) for word, clue in lines]
        print("| {} | {:.3f} +- {:.3f} |".format(name, *per_token(np.array(nats), tokens)))
    base = nats_of(model, [asked(tokenizer, [], t) for t in targets])
    print("| clue-tiny, no examples | {:.3f} +- {:.3f} |".format(*per_token(base, tokens)))
    for name, examples in ((f"{SHOTS} of the same file", same), (f"{SHOTS} of other files", other)):
        found = nats_of(model, [asked(tokenizer, e, t) for e, t in zip(examples, targets, strict=True)])
        gain = per_token(base - found, tokens)
        print(
            "| clue-tiny, {} | {:.3f} +- {:.3f} | gain {:+.3f} +- {:.3f} |".format(
                name, *per_token(found, tokens), *gain
            )
        )
    again = nats_of(model, [asked(tokenizer, [e[0], t, e[1]], t) for e, t in zip(same, targets, strict=True)])
    print("| clue-tiny, the same entry two lines before | {:.3f} +- {:.3f} |".format(*per_token(again, tokens)))


def study(path: Path, prompts: dict[str, Any]) -> dict[str, Any]:
    """Attention on some prompts, as a run file says it."""
    return {
        "gausslens": 1,
        "name": "card",
        "model": {"path": str(path)},
        "prompts": prompts,
        "analyses": [{"use": "model.attention", "with": {"maps": "none"}}],
    }


def attention(path: Path, model: Any, tokenizer: Any, store: Path) -> None:
    """Entropy deficits and looking back, layer by layer, beside a model of the same config that was never trained."""
    prompts = {"source": "few-shot", "words": "animals", "shots": 6, "targets": WORDS["animals"], "answers": True}
    torch.manual_seed(1)
    fresh = type(model)(model.config).eval()
    live = study(path, prompts) | {"name": "fresh", "model": {}}
    found = gausslens.run(study(path, prompts), store=store)["trained", "model.attention"]
    never = gausslens.run(live, store=store, model=fresh, tokenizer=tokenizer)["trained", "model.attention"]
    print("few-shot prompts of animals; over the heads of each layer")
    print("| layer | entropy deficit: least, mean, most | never trained | most to the previous token | never trained |")
    for layer in found.layer.values:
        own, chance = found.sel(layer=layer), never.sel(layer=layer)
        deficit = own.entropy_deficit
        print(
            f"| {layer} | {float(deficit.min()):.2f}, {float(deficit.mean()):.2f}, {float(deficit.max()):.2f} nats "
            f"| {float(chance.entropy_deficit.mean()):.4f} | {float(own.to_previous.max()):.2f} "
            f"| {float(chance.to_previous.max()):.2f} |"
        )


@torch.no_grad()
def induction(model: Any, tokenizer: Any) -> None:
    """On random tokens that repeat: attention to the token after the earlier occurrence, and what it is worth."""
    length, count = 40, 16
    drawn = torch.randint(1, len(tokenizer), (count, length), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([torch.full((count, 1), tokenizer.bos_token_id), drawn, drawn], dim=1)
    model.set_attn_implementation("eager")
    output = model(ids, output_attentions=True)
    rows = torch.arange(length + 1, 2 * length + 1)
    scores = [p[:, :, rows, rows - length + 1].mean(dim=(0, 2)) for p in output.attentions]
    print(f"random tokens, {length} and again; attention to what followed last time (evenly: {1 / length / 1.5:.3f})")
    for layer, score in enumerate(scores):
        print(f"| {layer} | most {float(score.max()):.2f} (head {int(score.argmax())}) |")
    loss = -torch.log_softmax(output.logits[:, :-1].float(), -1).gather(2, ids[:, 1:, None])[..., 0]
    first, second = float(loss[:, 1:length].mean()), float(loss[:, length:].mean())
    print(f"| loss first {first:.2f}, then {second:.2f}; log of the vocabulary {math.log(len(tokenizer)):.2f} |")


def written(path: Path, store: Path) -> None:
    """What it writes."""
    for words, targets in WORDS.items():
        prompts = {"source": "few-shot", "words": words, "shots": 6, "targets": targets}
        asks = study(path, prompts) | {"analyses": [{"use": "model.generate"}]}
        found = gausslens.run(asks, store=store)["trained", "model.generate"]
        for target in targets:
            print(f"| {words} | {target} |{found.text.sel(prompt=target).values[0]} |")


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, default=HOME, help="directory of WordNet's data files")
    parser.add_argument("--model", type=Path, default=SHIPPED, help="directory of the model")
    arguments = parser.parse_args()
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    losses(model, tokenizer, synsets(arguments.wordnet))
    induction(model, tokenizer)
    with tempfile.TemporaryDirectory() as store:
        attention(arguments.model, model, tokenizer, Path(store))
        written(arguments.model, Path(store))


if __name__ == "__main__":
    main()
