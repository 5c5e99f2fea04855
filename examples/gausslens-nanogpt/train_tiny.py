"""Train a tiny character-level model in seconds, and write it as nanoGPT would: OUT/ckpt.pt and OUT/meta.pkl.

    python train_tiny.py tiny
    python train_tiny.py OUT --text FILE --steps 2000 --layers 4 --width 128 --no-bias

Without --text it learns the words and clues that come with gausslens. It needs no nanoGPT, whose sample.py opens it.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from gausslens_nanogpt.gpt import Sizes, fresh
from torch.nn import functional

ROWS, LENGTH = 16, 64


def main(argv: Sequence[str] | None = None) -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--text", type=Path, help="what is learnt")
    for name, value in (("layers", 2), ("heads", 4), ("width", 64), ("steps", 300), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--no-bias", action="store_true", help="as nanoGPT's own default for new models")
    chosen = parser.parse_args(argv)
    text = built_in() if chosen.text is None else chosen.text.read_text(encoding="utf-8")
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    sizes = Sizes(chosen.layers, chosen.heads, chosen.width, LENGTH, len(numbers), not chosen.no_bias)
    ids = torch.tensor([numbers[character] for character in text])
    torch.manual_seed(chosen.seed)
    model = fresh(sizes).train()
    loss = train(model, ids, chosen.steps)
    chosen.out.mkdir(parents=True, exist_ok=True)
    with (chosen.out / "meta.pkl").open("wb") as file:
        named = dict(enumerate(numbers))
        pickle.dump({"vocab_size": len(numbers), "stoi": numbers, "itos": named}, file)
    held = {
        "model": model.state_dict(),
        "model_args": {**asdict(sizes), "dropout": 0.0},
        "iter_num": chosen.steps,
        "best_val_loss": loss,
        "config": {"dataset": "words", "out_dir": chosen.out.name, "max_iters": chosen.steps},
    }
    torch.save(held, chosen.out / "ckpt.pt")
    print(f"{chosen.out}: {chosen.steps} steps, loss {loss:.3f} nats a character")


def built_in() -> str:
    """The words and clues that come with gausslens, a line each."""
    from gausslens_examples.small_texts import built_in_lines

    return "\n".join(built_in_lines())


def train(model: torch.nn.Module, ids: torch.Tensor, steps: int) -> float:
    """So many steps on windows at random places; the mean loss of the last ten."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    if len(ids) <= LENGTH:
        raise SystemExit(f"the text has {len(ids)} characters: more than {LENGTH} are needed")
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(ids) - LENGTH, (ROWS, 1))
        window = ids[starts + torch.arange(LENGTH + 1)]
        loss = functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return sum(losses[-10:]) / max(1, len(losses[-10:]))


if __name__ == "__main__":
    main()
