"""Fine-tunes a small model on sums, text that it has not seen: the checkpoint that fine-tuning.yaml looks into.

    python examples/fine_tune_tiny.py DIRECTORY [--base DIRECTORY] [--steps N]

Everything is seeded and runs on one CPU thread in half a minute: the text is made here, no data is read. All weights
are trained, and what is written is a checkpoint of the same layout as the base, in float16 as builtin:tiny is.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

BUILTIN = Path(__file__).parents[1] / "plugins/gausslens_models/builtin/tiny"


def sums(chance: random.Random, count: int) -> str:
    """Lines such as `17+25=42`."""
    pairs = [(chance.randint(0, 49), chance.randint(0, 49)) for _ in range(count)]
    return "".join(f"{a}+{b}={a + b}\n" for a, b in pairs)


def fine_tune(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, steps: int, length: int = 64, seed: int = 0
) -> PreTrainedModel:
    """AdamW on rows of sums, all weights, the rate let down to nothing."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    chance = random.Random(seed)  # noqa: S311 - text to learn from
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=steps)
    for step in range(steps):
        rows = [tokenizer(sums(chance, length // 4))["input_ids"][:length] for _ in range(16)]
        ids = torch.tensor(rows)
        loss = model(input_ids=ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: {loss.item():.3f} nats per token", flush=True)
    return model.eval()


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--base", type=Path, default=BUILTIN, help="the checkpoint to begin with")
    parser.add_argument("--steps", type=int, default=200)
    chosen = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(chosen.base)
    model = AutoModelForCausalLM.from_pretrained(chosen.base, dtype=torch.float32)
    fine_tune(model, tokenizer, chosen.steps).half().save_pretrained(chosen.directory)
    tokenizer.save_pretrained(chosen.directory)


if __name__ == "__main__":
    main()
