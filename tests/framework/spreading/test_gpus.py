"""One GPU for each worker: which cards there are, who takes which, and that it is before torch looks for any."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gausslens.spreading import gpus
from gausslens.spreading.cluster import _local


def plan(*devices: str) -> Any:
    return SimpleNamespace(models=[SimpleNamespace(call=SimpleNamespace(device=device)) for device in devices])


def test_cards_are_shared_where_a_model_asks_for_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpus.cards(plan("cpu", "cuda")) == ["0", "1", "2"]
    assert gpus.cards(plan("cpu")) == gpus.cards(plan("cuda:1")) == gpus.cards(plan("mps")) == []
    monkeypatch.setenv(gpus.VISIBLE, "GPU-8932, 5")  # as the user or Slurm says
    assert gpus.cards(plan("cuda")) == ["GPU-8932", "5"]
    monkeypatch.setenv(gpus.VISIBLE, "-1")
    assert gpus.cards(plan("cuda")) == []


def test_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.VISIBLE, "2,3")
    assert gpus.told(2, plan("cuda")) == ", on 2 of 2 GPUs"
    assert gpus.told(4, plan("cuda")) == ", 4 on 2 GPUs: take 2 if memory there runs out"
    assert gpus.told(4, plan("cpu")) == ""


def test_each_worker_has_a_card_of_its_own_while_there_are_enough() -> None:
    assert [gpus.card_of(number, ["4", "7"])[gpus.VISIBLE] for number in (0, 1, 2)] == ["4", "7", "4"]
    assert gpus.card_of(1, []) == {}


def test_workers_of_a_cluster_see_one_card_each_before_torch_is_there() -> None:
    from distributed import Client

    def seen() -> tuple[str, bool]:
        return os.environ["CUDA_VISIBLE_DEVICES"], "torch" in sys.modules

    with _local(2, ["4", "7"]) as (cluster, _, _):
        client = Client(cluster, set_as_default=False)
        try:
            client.wait_for_workers(2)
            found = list(client.run(seen).values())
        finally:
            client.close()
    assert sorted(found) == [("4", False), ("7", False)]
