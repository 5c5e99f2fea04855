"""Two live modules that compute otherwise are two models, by their tensors, mapping, code, values or hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain_gpt import GPT, GPT_MAPPING, changed, gpt_twins, unproved

import gausslens


class TestKey:
    """Parameters, buffers, mapping, code and the plain values of modules are what a model is."""

    def fingerprint(self, module: Any, mapping: dict[str, Any] = GPT_MAPPING) -> str:
        found: str = unproved(module, mapping).info.fingerprint
        return found

    def test_the_same_model_is_the_same(self) -> None:
        assert self.fingerprint(gpt_twins()[0]) == self.fingerprint(gpt_twins()[0].eval())

    def test_another_is_another(self) -> None:
        class Other(GPT):
            """Of the same tensors."""

        plain = self.fingerprint(gpt_twins()[0])
        weights, value, code = gpt_twins()[0], gpt_twins()[0], Other()
        weights.lm_head.weight.data[0, 0] += 1
        value.transformer["h"][0].attn.n_head = 8
        code.load_state_dict(gpt_twins()[0].state_dict())
        told = changed(GPT_MAPPING, facts={"norm_epsilon": 1e-6})
        held = gpt_twins()[0]
        held.config = {"sizes": [4, 8]}
        others = [self.fingerprint(m) for m in (weights, value, code, held)] + [self.fingerprint(gpt_twins()[0], told)]
        assert len({plain, *others}) == 6

    @pytest.mark.parametrize("kind", ["plain", "transformers"])
    def test_hooks_and_a_patched_forward_are_in_it(self, kind: str) -> None:
        def scaled(by: Any) -> Callable[..., Any]:
            return lambda _m, _a, out: out * by

        def of_hook(hang: Callable[[Any], Any]) -> str:
            module = gpt_twins()[kind == "transformers"]
            hang(module.lm_head)
            return self.fingerprint(module) if kind == "plain" else str(gausslens.load(module).info.fingerprint)

        up, down = torch.ones(61), -torch.ones(61)
        typed: dict[str, Any] = {}
        exec(compile("def hook(m, a, out): return out * 3", "<typed>", "exec"), typed)
        hung: list[Callable[[Any], Any]] = [
            lambda _: None,
            lambda head: head.register_forward_hook(scaled(0.5)),
            lambda head: head.register_forward_hook(scaled(2.0)),
            lambda head: head.register_forward_hook(scaled(up)),
            lambda head: head.register_forward_hook(scaled(down)),
            lambda head: head.register_forward_hook(typed["hook"]),
            lambda head: head.register_forward_pre_hook(lambda _m, args: (args[0] * 2,)),
            lambda head: head.register_forward_pre_hook(lambda _m, args: (args[0] * 3,)),
            lambda head: setattr(head, "forward", lambda x: x @ head.weight.T * 2),
        ]
        found = [of_hook(hang) for hang in hung]
        assert len(set(found)) == len(hung)
        assert [of_hook(hang) for hang in hung] == found

    @pytest.mark.parametrize("kind", ["plain", "transformers"])
    def test_our_own_hooks_are_not(self, kind: str) -> None:
        """Nor those that transformers leaves behind when it is asked for patterns."""
        module, mapping = gpt_twins()[kind == "transformers"], GPT_MAPPING if kind == "plain" else None
        before = gausslens.load(module, mapping=mapping)
        assert before.info.fingerprint
        assert before._opened.running is not None
        before._opened.running.prove(before._opened.model)
        assert gausslens.load(module, mapping=mapping).info.fingerprint == before.info.fingerprint
