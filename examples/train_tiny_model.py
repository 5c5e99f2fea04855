"""Makes builtin:tiny: a Mistral-type model of bytes, trained on text that repeats until it copies.

    python examples/train_tiny_model.py DIRECTORY [--steps N]

Everything is seeded and runs on one CPU thread in a few minutes: the text is made here, no data is read.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

BOS, PAD = "<s>", "<pad>"
NOUNS = ("ant", "bee", "cat", "dog", "elk", "fox", "hen", "owl", "pig", "rat", "seal", "toad", "wolf", "yak", "crab")
VERBS = ("sees", "hears", "likes", "finds", "helps", "leads", "meets", "warns", "calls", "feeds")
PLACES = ("the barn", "the lake", "the hill", "the wood", "a field", "a cave", "the shore", "a garden")


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, BOS before every text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([BOS, PAD, *letters])}
    bytes_alone = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=None))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_alone.decoder = decoders.ByteLevel()
    bytes_alone.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=bytes_alone, bos_token=BOS, pad_token=PAD)


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


def sample(chance: random.Random) -> str:
    """A text: simple sentences, one of them said again, or letters that repeat."""
    if chance.random() < 0.5:
        letters = "".join(chance.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(chance.randint(6, 24)))
        return letters * 4
    said = [
        f"The {chance.choice(NOUNS)} {chance.choice(VERBS)} the {chance.choice(NOUNS)} by {chance.choice(PLACES)}."
        for _ in range(2)
    ]
    return " ".join(said * 2)


def train(steps: int, length: int = 96, rows: int = 24, seed: int = 0) -> MistralForCausalLM:
    """AdamW on freshly made text with a cosine schedule."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    chance = random.Random(seed)  # noqa: S311 - text to learn from
    bytes_alone = tokenizer()
    model = MistralForCausalLM(config(len(bytes_alone)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        texts = [sample(chance) for _ in range(rows)]
        batch = bytes_alone(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: {loss.item():.3f} nats per byte", flush=True)
    return model.eval()


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    chosen = parser.parse_args()
    model = train(chosen.steps)
    model.half().save_pretrained(chosen.directory)
    tokenizer().save_pretrained(chosen.directory)


if __name__ == "__main__":
    main()
