"""Makes builtin:tiny: a Mistral-type model of bytes, trained on text that repeats until it copies what it saw.

    python examples/train_tiny_model.py DIRECTORY [--steps N] [--at STEP ...]

Everything is seeded and runs on one CPU thread in a few minutes: the text is made here, no data is read. With `--at`
the model is also written as it is after these steps, into DIRECTORY/step00100 and so on, for a study of its training
(trajectory.yaml); what comes of the training is the same.
"""

from __future__ import annotations

import argparse
import copy
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

BOS, PAD, EOS = "<s>", "<pad>", "</s>"
# Token numbers: any byte, and the small letters among them.
BYTES = (2, 257)
LETTERS = (66, 91)
NOUNS = ("ant", "bee", "cat", "dog", "elk", "fox", "hen", "owl", "pig", "rat", "seal", "toad", "wolf", "yak", "crab")
VERBS = ("sees", "hears", "likes", "finds", "helps", "leads", "meets", "warns", "calls", "feeds")
PLACES = ("the barn", "the lake", "the hill", "the wood", "a field", "a cave", "the shore", "a garden")


def tokenizer(in_pairs: bool = False) -> PreTrainedTokenizerFast:
    """One token for each byte, BOS before every text; for models that read pairs EOS behind it instead."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([BOS, PAD, *letters, *([EOS] if in_pairs else [])])}
    bytes_alone = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=None))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_alone.decoder = decoders.ByteLevel()
    added, framed = (EOS, f"$A {EOS}") if in_pairs else (BOS, f"{BOS} $A")
    bytes_alone.post_processor = processors.TemplateProcessing(
        single=framed, special_tokens=[(added, vocabulary[added])]
    )
    more = {"eos_token": EOS} if in_pairs else {}
    return PreTrainedTokenizerFast(tokenizer_object=bytes_alone, bos_token=BOS, pad_token=PAD, **more)


def config(vocabulary: int) -> MistralConfig:
    """Three layers, four heads of 16 over two key/value heads."""
    return MistralConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        sliding_window=None,
        tie_word_embeddings=False,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=None,
    )


def sample(chance: random.Random, bytes_alone: PreTrainedTokenizerFast, length: int) -> tuple[list[int], list[int]]:
    """Tokens and labels of one text: letters or bytes that repeat, or two sentences that do.

    What cannot be known (letters before they come again) is no label.
    """
    kind = chance.random()
    if kind < 0.75:
        first, last = LETTERS if kind < 0.5 else BYTES
        period = chance.randint(3, length // 2)
        ids = [chance.randint(first, last) for _ in range(period)] * (length // period + 1)
        unknown = period + 1
    else:
        said = [
            f"The {chance.choice(NOUNS)} {chance.choice(VERBS)} the {chance.choice(NOUNS)} by {chance.choice(PLACES)}. "
            for _ in range(2)
        ]
        ids = bytes_alone("".join(said) * 3, add_special_tokens=False)["input_ids"]
        unknown = 1
    ids = [bytes_alone.bos_token_id, *ids][:length]
    return ids, [-100] * unknown + ids[unknown:]


def train(
    steps: int, seed: int = 0, at: Iterable[int] = (), keep: Callable[[int, MistralForCausalLM], None] | None = None
) -> MistralForCausalLM:
    """AdamW on freshly made text, the rate warmed up and let down again; longer texts towards the end.

    ``keep`` is given the model as it is after each number of steps in ``at``; 0 is before the first.
    """
    kept = set(at)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    chance = random.Random(seed)  # noqa: S311 - text to learn from
    bytes_alone = tokenizer()
    model = MistralForCausalLM(config(len(bytes_alone)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps + 1):
        if keep is not None and step in kept:
            keep(step, model)
        if step == steps:
            break
        length, rows = (64, 32) if step < 0.7 * steps else (128, 16)
        made = [sample(chance, bytes_alone, length) for _ in range(rows)]
        ids, labels = (torch.tensor([m[i] for m in made]) for i in (0, 1))
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 250 == 0 or step == steps - 1:
            print(f"step {step}: {loss.item():.3f} nats per token", flush=True)
    return model.eval()


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--at", type=int, nargs="+", default=[], metavar="STEP", help="write the model after these too")
    chosen = parser.parse_args()

    def write(model: MistralForCausalLM, directory: Path) -> None:
        copy.deepcopy(model).half().save_pretrained(directory)
        tokenizer().save_pretrained(directory)

    model = train(chosen.steps, at=chosen.at, keep=lambda step, now: write(now, chosen.directory / f"step{step:05d}"))
    write(model, chosen.directory)


if __name__ == "__main__":
    main()
