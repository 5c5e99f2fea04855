"""Passes: shards, pieces, merges, views and failures, on the tiny model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gausslens.contract.batches import Batch, Request
from gausslens.contract.errors import ModelError
from gausslens.contract.prompts import Part, Prompt, Tokens
from gausslens.contract.twin import Twin
from gausslens.measuring.feed import ROW_BLOCK
from gausslens.measuring.passes import Job, run_passes
from gausslens.runs.requests import check_request
from gausslens.testing import TinyEngine, TinyModel, TinyParameters

MODEL = TinyModel(TinyParameters(layers=3))
INFO = MODEL.info
TEXTS = ["a", "bee", "a longer prompt", "another, longer still", "x" * 40, "y" * 40, "short"]


def tokens_of(texts: list[str] = TEXTS) -> Tokens:
    return MODEL.tokenise([Prompt((Part(t),)) for t in texts])


class Adds:
    """Sums a site over text tokens, in float32 on purpose: the order of additions shows in the last bits."""

    def __init__(self, request: Request, fails: tuple[str, int] | None = None) -> None:
        self.wants, self.fails = request, fails
        self.sums: dict[int | None, torch.Tensor] = {}
        self.seen: list[tuple[int | None, tuple[int, ...]]] = []

    def request(self) -> Request:
        return self.wants

    def update(self, batch: Batch) -> None:
        if self.fails == ("update", batch.layer):
            raise ZeroDivisionError("on purpose")
        site = batch[self.wants.sites[0]]
        self.sums[batch.layer] = self.sums.get(batch.layer, 0) + site.sum(dim=(0, 1))
        self.seen.append((batch.layer, tuple(int(p) for p in batch.prompts)))

    def merge(self, other: Adds) -> None:
        if self.fails and self.fails[0] == "merge":
            raise ZeroDivisionError("on purpose")
        for layer, value in other.sums.items():
            self.sums[layer] = self.sums[layer] + value if layer in self.sums else value
        self.seen += other.seen

    def end_pass(self, index: int) -> None:
        self.sums, self.seen = {}, []


def job(name: str, state: object, **options: object) -> Job:
    info = INFO.narrowed(options.pop("layers", None), options.pop("heads", None))  # type: ignore[arg-type]
    return Job(name, name, state, state.request(), info, **options)  # type: ignore[attr-defined, arg-type]


def run(jobs: list[Job], engine: object = None, tokens: Tokens | None = None, monkeypatch: object = None) -> list[str]:
    return list(run_passes(engine or TinyEngine(), Twin(MODEL), tokens or tokens_of(), jobs))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tokens.shards
    monkeypatch.setattr(Tokens, "shards", lambda self, size=60: real(self, size))


class InPieces(TinyEngine):
    """Hands over each layer of a shard in pieces of ``size`` prompts, last ones first."""

    def __init__(self, size: int) -> None:
        self.size = size

    def run(self, twin, tokens, shard, request, sink):  # type: ignore[no-untyped-def]
        whole: list[Batch] = []
        super().run(twin, tokens, shard, request, whole.append)
        for batch in whole:
            for start in reversed(range(0, len(shard), self.size)):
                rows = slice(start, start + self.size)
                sink(
                    replace(
                        batch,
                        prompts=batch.prompts[rows],
                        tokens=batch.tokens[rows],
                        text=batch.text[rows],
                        mask=batch.mask[rows],
                        **(dict.fromkeys(("key_tokens", "key_text", "key_mask")) if start else {}),
                        arrays={s: a[rows] for s, a in batch.arrays.items()},
                    )
                )


def test_shards_are_sorted_by_length_and_hold_every_prompt_once():
    shards = tokens_of().shards(60)
    lengths = tokens_of().lengths
    assert sorted(int(i) for s in shards for i in s) == list(range(len(TEXTS)))
    assert [lengths[i] for s in shards for i in s] == sorted(lengths)
    assert all(len(s) == 1 or len(s) * max(lengths[i] for i in s) <= 60 for s in shards)
    assert len(shards) > 2


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_results_are_bit_equal_whatever_the_split(size):
    whole, cut = (job("a", Adds(Request(("resid_post",)))) for _ in range(2))
    run([whole])
    run([cut], InPieces(size))
    assert whole.state.seen == cut.state.seen
    for layer in INFO.layers:
        assert torch.equal(whole.state.sums[layer], cut.state.sums[layer])


def test_each_layer_of_each_shard_comes_once_in_shard_order():
    one = job("a", Adds(Request(("resid_pre",))))
    told = run([one])
    shards = [tuple(int(i) for i in s) for s in tokens_of().shards()]
    for layer in INFO.layers:
        assert [prompts for n, prompts in one.state.seen if n == layer] == shards
    assert told[0] == f"pass 1, shard 1 of {len(shards)}"


def test_jobs_share_a_pass_and_see_only_their_own():
    calls = []

    class Counted(TinyEngine):
        def run(self, twin, tokens, shard, request, sink):  # type: ignore[no-untyped-def]
            calls.append(request)
            super().run(twin, tokens, shard, request, sink)

    class Looks(Adds):
        def update(self, batch: Batch) -> None:
            self.seen.append((batch.layer, tuple(sorted(batch.arrays))))

    first = job("a", Looks(Request(("q", "k"))), layers=[1], heads=[1, 3])
    second = job("b", Looks(Request(("resid_pre", "logits"), passes=2)))
    run([first, second], Counted())
    shards = len(tokens_of().shards())
    assert len(calls) == 2 * shards
    assert set(calls[0].sites) == {"q", "k", "resid_pre", "logits"}
    assert set(calls[-1].sites) == {"resid_pre", "logits"}
    assert set(first.state.seen) == {(1, ("k", "q"))}
    assert set(second.state.seen) == {
        (0, ("resid_pre",)),
        (1, ("resid_pre",)),
        (2, ("resid_pre",)),
        (None, ("logits",)),
    }


def test_heads_in_view_are_the_right_rows():
    both = job("all", Adds(Request(("z",))))
    some = job("some", Adds(Request(("z",))), heads=[1, 3])
    keys = job("keys", Adds(Request(("k",))), heads=[3])
    every_key = job("every", Adds(Request(("k",))))
    run([both, some, keys, every_key])
    torch.testing.assert_close(both.state.sums[2][[1, 3]], some.state.sums[2])
    torch.testing.assert_close(every_key.state.sums[2][[INFO.kv_of_head[3]]], keys.state.sums[2])


def test_row_blocks_are_the_same_cut_beside_one_that_takes_whole_patterns():
    long = tokens_of(["z" * (ROW_BLOCK - 6) for _ in range(2)])

    class Rows(Adds):
        def update(self, batch: Batch) -> None:
            self.seen.append((batch.layer, (batch.rows, batch["pattern"].shape[2], int(batch.last_rows))))

    alone = job("a", Rows(Request(("pattern",))), row_blocks=True)
    beside = job("b", Rows(Request(("pattern",))), row_blocks=True)
    run([alone], tokens=long)
    run([beside, job("c", Adds(Request(("pattern",))))], tokens=long)
    assert alone.state.seen == beside.state.seen


def test_all_layers_come_together_and_outlive_the_pass():
    class Together(Adds):
        def update(self, batches: tuple[Batch, ...]) -> None:  # type: ignore[override]
            self.seen.append((None, tuple(-1 if b.layer is None else b.layer for b in batches)))
            self.sums[None] = self.sums.get(None, 0) + (batches[-2]["resid_post"] - batches[0]["resid_post"]).sum()

    one = job("a", Together(Request(("resid_post", "logits"))), all_layers=True)
    run([one])
    assert {layers for _, layers in one.state.seen} == {(0, 1, 2, -1)}


@pytest.mark.parametrize("where", [("update", 1), ("merge", 0)])
def test_one_that_fails_does_not_take_the_others(where):
    good, bad = job("good", Adds(Request(("resid_pre",)))), job("bad", Adds(Request(("resid_pre",)), where))
    alone = job("good", Adds(Request(("resid_pre",))))
    run([bad, good])
    run([alone])
    assert isinstance(bad.error, ZeroDivisionError)
    assert bad.layer == (1 if where[0] == "update" else None)
    assert good.error is None
    assert torch.equal(good.state.sums[0], alone.state.sums[0])


def test_two_passes_start_from_what_the_first_fixed():
    class Centred(Adds):
        """Mean in the first pass, sum of squares about it in the second."""

        mean: dict[int | None, torch.Tensor]

        def update(self, batch: Batch) -> None:
            x = batch["resid_pre"][batch.mask].double()
            mean = getattr(self, "mean", None)
            value = x.sum(0) if mean is None else ((x - mean[batch.layer]) ** 2).sum(0)
            self.sums[batch.layer] = self.sums.get(batch.layer, 0) + value

        def end_pass(self, index: int) -> None:
            self.mean = {n: s / sum(tokens_of().lengths) for n, s in self.sums.items()}
            self.sums = {}

    one = job("a", Centred(Request(("resid_pre",), passes=2)))
    run([one])
    rows: list[torch.Tensor] = []
    for shard in tokens_of().shards():
        TinyEngine().run(
            Twin(MODEL),
            tokens_of(),
            shard,
            Request(("resid_pre",), (1,)),
            lambda b: rows.append(b["resid_pre"][b.mask]),
        )
    x = torch.cat(rows).double()
    torch.testing.assert_close(one.state.sums[1], ((x - x.mean(0)) ** 2).sum(0), rtol=1e-9, atol=1e-9)


class Broken(TinyEngine):
    def __init__(self, how: str) -> None:
        self.how = how

    def run(self, twin, tokens, shard, request, sink):  # type: ignore[no-untyped-def]
        held: list[Batch] = []
        super().run(twin, tokens, shard, request, held.append)
        if self.how == "silent":
            held = [b for b in held if b.layer != 1]
        elif self.how == "twice":
            held.append(held[-1])
        elif self.how == "empty":
            held[0] = replace(held[0], arrays={s: a[:, :0] for s, a in held[0].arrays.items()})
        elif self.how == "short":
            held[0] = replace(
                held[0], prompts=held[0].prompts[:-1], arrays={s: a[:-1] for s, a in held[0].arrays.items()}
            )
        elif self.how == "raises":
            raise RuntimeError("out of memory")
        for batch in held:
            sink(batch)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("silent", "never gave resid_pre in layer 1: nothing was captured"),
        ("twice", "layer 2 twice"),
        ("empty", r"layer 0 has shape"),
        ("short", r"gave 4 of 5 prompts of a shard for layer 0"),
        ("raises", "out of memory"),
    ],
)
def test_an_engine_that_gives_nothing_or_nonsense_is_an_error_never_an_empty_array(how, said):
    one = job("a", Adds(Request(("resid_pre",))))
    same_length = tokens_of(["same"] * 5)
    run([one], Broken(how), same_length)
    assert one.error is not None
    with pytest.raises(type(one.error), match=said):
        raise one.error


def test_layers_that_lack_a_site_are_left_out():
    hybrid = TinyModel(TinyParameters(layers=3, attention_free=(1,)))
    attention = Job("a", "a", Adds(Request(("pattern",))), Request(("pattern",)), hybrid.info)
    residual = Job("b", "b", Adds(Request(("resid_pre",))), Request(("resid_pre",)), hybrid.info)
    assert list(run_passes(TinyEngine(), Twin(hybrid), tokens_of(["same"] * 3), [attention, residual]))
    assert attention.error is None
    assert residual.error is None
    assert set(attention.state.sums) == {0, 2}
    assert set(residual.state.sums) == {0, 1, 2}


def test_a_wrong_site_names_the_near_ones():
    engine = TinyEngine()
    with pytest.raises(ModelError, match=r"no site 'patern': did you mean pattern\?; its sites: embed, resid_pre"):
        check_request(Adds(Request(("patern",))), engine, MODEL)
    with pytest.raises(ModelError, match="TransformerLens' hook_attn_scores is 'scores' here"):
        check_request(Adds(Request(("blocks.0.attn.hook_attn_scores",))), engine, MODEL)
    with pytest.raises(ModelError, match="asks for no site"):
        check_request(Adds(Request(())), engine, MODEL)


def test_sites_that_no_layer_in_view_has_together_are_refused():
    lacking = {0: {"q": "it has a state"}, 1: {"attn_out": "it has experts"}, 2: {"attn_out": "it has experts"}}
    hybrid = TinyModel(TinyParameters(layers=3))
    info = replace(INFO, lacking=lacking)
    both = Adds(Request(("q", "logits", "attn_out")))
    told = (
        r"has q and attn_out together \(not in 0 \(q\): it has a state; not in 1 \(attn_out\), 2 \(attn_out\): it has"
    )
    with pytest.raises(ModelError, match=told + ".*in analyses of their own"):
        check_request(both, TinyEngine(), hybrid, info)
    with pytest.raises(ModelError, match=r"has q \(not in 0 \(q\): it has a state\); ask for other layers"):
        check_request(Adds(Request(("q",))), TinyEngine(), hybrid, info.narrowed([0], None))
    with pytest.raises(ModelError, match="no layer in view"):
        check_request(Adds(Request(("q",), layers=(0,))), TinyEngine(), hybrid, info)
    check_request(Adds(Request(("q", "logits"))), TinyEngine(), hybrid, info)
    check_request(Adds(Request(("logits",))), TinyEngine(), hybrid, info)


def test_several_passes_need_an_end_of_the_first():
    class HasNoEnd(Adds):
        end_pass = property()

    with pytest.raises(ModelError, match="asks for 2 passes and has no end_pass"):
        check_request(HasNoEnd(Request(("pattern",), passes=2)), TinyEngine(), MODEL)
    check_request(HasNoEnd(Request(("pattern",))), TinyEngine(), MODEL)
    check_request(Adds(Request(("pattern",), passes=2)), TinyEngine(), MODEL)


def test_prompts_of_arrays_are_in_the_shards_order():
    class Keeps(Adds):
        def update(self, batch: Batch) -> None:
            for row, prompt in enumerate(batch.prompts):
                n = int(batch.mask[row].sum())
                np.testing.assert_array_equal(batch.tokens[row, :n].numpy(), tokens_of().ids[prompt])
            for name in ("tokens", "text", "mask"):
                assert torch.equal(getattr(batch, f"key_{name}"), getattr(batch, name))
            self.seen.append((batch.layer, tuple(batch.prompts)))

    one = job("a", Keeps(Request(("resid_pre",))))
    run([one], InPieces(2))
    assert one.error is None


def test_one_that_changes_an_array_in_place_is_caught_and_nothing_is_believed():
    class Scribbles(Adds):
        def update(self, batch: Batch) -> None:
            batch["resid_pre"].mul_(0)

    bad, good = job("scribbles", Scribbles(Request(("resid_pre",)))), job("good", Adds(Request(("resid_pre",))))
    run([bad, good])
    assert "scribbles changes an array in place" in str(bad.error)
    assert good.error is not None


def test_numpy_views_are_read_only():
    class Scribbles(Adds):
        def update(self, batch: Batch) -> None:
            batch.numpy("resid_pre")[...] = 0

    bad, good = job("bad", Scribbles(Request(("resid_pre",)))), job("good", Adds(Request(("resid_pre",))))
    run([bad, good])
    assert isinstance(bad.error, ValueError)
    assert good.error is None
