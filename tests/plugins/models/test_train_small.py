"""The script that trains small models: checkpoints are what they say, kills change nothing, starts are as asked for."""

from __future__ import annotations

import csv
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import gausslens

EXAMPLES = Path(__file__).parents[3] / "examples"
STARTS = EXAMPLES / "shaped-starts.yaml"
SMALL = ("--layers", "2", "--heads", "2", "--width", "16", "--length", "16", "--rows", "4", "--quiet")
OURS = ("train_small", "train_starts", "small_texts", "train_tiny_model")
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    """The module train_small, as it finds itself beside its neighbours; threads and random numbers as before."""
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    sys.path.insert(0, str(EXAMPLES))
    try:
        import train_small

        yield train_small
    finally:
        sys.path.remove(str(EXAMPLES))
        for name in OURS:
            sys.modules.pop(name, None)
        torch.set_num_threads(threads)
        torch.random.set_rng_state(state)


@pytest.fixture
def train(script: Any, tmp_path: Path) -> Train:
    """``train("name", options)``: trained in a directory of that name."""

    def call(name: str, *options: object) -> Path:
        out = tmp_path / name
        script.train(script.arguments().parse_args([str(out), *SMALL, *map(str, options)]))
        return out

    return call


def weights(place: Path) -> dict[str, torch.Tensor]:
    return load_file(place / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    """Bit for bit."""
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def losses(out: Path) -> list[float]:
    with (out / "losses.csv").open(encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "marian", "t5", "bart"])
def test_a_checkpoint_is_the_model_after_so_many_updates(kind: str, script: Any, train: Train) -> None:
    """Plain transformers opens it, and on the batch that came next it has the loss that was noted there."""
    out = train("out", "--type", kind, "--steps", 4, "--save", 0, 2)
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"base", "step0", "step2"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(out / "step2")
    config = transformers.AutoConfig.from_pretrained(out / "step2")
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    chosen = script.arguments().parse_args([str(out), *SMALL])
    for step in (0, 2):
        model = auto.from_pretrained(out / f"step{step}")
        with torch.no_grad():
            found = float(model(**script.read_data(chosen, config, tokenizer).batch(step)).loss)
        assert found == pytest.approx(losses(out)[step], abs=2e-6)
    stack = {"stack": "decoder"} if config.is_encoder_decoder else {}
    base, first, later = (gausslens.load(out / name, **stack).info for name in ("base", "step0", "step2"))
    assert base.fingerprint == first.fingerprint != later.fingerprint
    assert (first.n_layers, first.n_heads, first.d_model) == (2, 2, 16)
    assert same(out / "base", out / "step0")


@pytest.mark.parametrize("kind", ["llama", "marian"])
def test_an_edited_start_is_what_the_edit_says_and_the_rest_is_as_it_was(kind: str, train: Train) -> None:
    plain = train("plain", "--type", kind, "--steps", 1, "--save", 0)
    out = train("identity", "--type", kind, "--steps", 1, "--save", 0, 1, "--edit", STARTS, "identity")
    assert same(out / "base", out / "step0")
    before, after = weights(plain / "base"), weights(out / "step0")
    edited = {name for name in after if not torch.equal(before[name], after[name])}
    assert edited == {name for name in after if name.endswith(("q_proj.weight", "k_proj.weight"))}
    assert len(edited) == (4 if kind == "llama" else 12)  # two layers; of two stacks three attentions
    assert all(torch.equal(after[name], torch.eye(16)) for name in edited)
    assert not same(out / "step0", out / "step1")


def test_an_edited_start_is_what_gausslens_edit_writes(train: Train, tmp_path: Path) -> None:
    plain = train("plain", "--steps", 1, "--save", 0, "--init-seed", 5)
    one = train("edited", "--steps", 1, "--save", 0, "--init-seed", 5, "--edit", STARTS, "diagonal")
    written = gausslens.edit(STARTS, "diagonal", tmp_path / "written", sets=[f"model.path={plain / 'base'}", "seed=5"])
    other = train("started", "--steps", 1, "--save", 0, 1, "--start", written)
    assert same(one / "base", written)
    assert same(other / "step0", written)
    prints = {gausslens.load(place).info.fingerprint for place in (one / "step0", other / "step0", written)}
    assert len(prints) == 1


def test_the_stacks_of_a_random_start_are_drawn_apart(train: Train) -> None:
    base = weights(train("out", "--type", "marian", "--steps", 0, "--edit", STARTS, "diagonal") / "base")
    drawn = [
        base[f"model.{stack}.layers.0.{attention}.q_proj.weight"].diagonal()
        for stack, attention in (("encoder", "self_attn"), ("decoder", "self_attn"), ("decoder", "encoder_attn"))
    ]
    assert all(not torch.equal(drawn[a], drawn[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_a_draw_and_a_swept_value_are_chosen(train: Train, tmp_path: Path) -> None:
    run = """\
        gausslens: 1
        model: {path: builtin:tiny}
        variants:
          band: {edits: [{edit: reinit.band, matrices: [W_Q], sweep: {width: [0, 3]}}], draws: 2}
        analyses: [{use: bilinear.spectrum}]
        """
    (tmp_path / "band.yaml").write_text(run)
    wide, other = (
        weights(
            train(
                f"out{draw}", "--steps", 0, "--edit", tmp_path / "band.yaml", "band", "--draw", draw, "--at", "width=3"
            )
            / "base"
        )
        for draw in (0, 1)
    )
    name = "model.layers.0.self_attn.q_proj.weight"
    assert int((wide[name] != 0).sum()) == 16 + 2 * (15 + 14 + 13)
    assert not torch.equal(wide[name], other[name])


def test_the_seeds_are_apart(train: Train) -> None:
    one, data, init = (
        train(name, "--steps", 2, "--save", 0, 2, *seeds)
        for name, seeds in (("one", ()), ("data", ("--data-seed", 1)), ("init", ("--init-seed", 1)))
    )
    assert same(one / "step0", data / "step0")
    assert not same(one / "step2", data / "step2")
    assert not same(one / "step0", init / "step0")
    again = train("again", "--steps", 2, "--save", 0, 2)
    assert same(one / "step2", again / "step2")


def killed(script: Any, out: Path, options: list[str], dying: Callable[[Any], None]) -> None:
    """A training in a process of its own that kills itself, as nothing can be caught, where ``dying`` says."""
    child = os.fork()
    if child == 0:
        try:
            dying(script)
            script.train(script.arguments().parse_args([str(out), *options]))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_update(script: Any, step: int) -> None:
    update = script.Training.update
    script.Training.update = lambda self: die() if self.step == step else update(self)


def in_the_midst_of_writing(script: Any, name: str) -> None:
    save = script.save

    def half(model: Any, tokenizer: Any, place: Path) -> None:
        if place.name != name:
            save(model, tokenizer, place)
            return
        model.save_pretrained(place)
        die()

    script.save = half


def in_the_midst_of_noting(script: Any, step: int) -> None:
    keep = torch.save

    def half(held: Any, place: Path) -> None:
        keep(held, place)
        if len(held["losses"]) == step:
            with place.open("r+b") as file:
                file.truncate(1000)
            die()

    script.torch.save = half


def test_a_killed_training_goes_on_as_if_it_had_not_been(script: Any, train: Train, tmp_path: Path) -> None:
    """Killed in the first write, between two steps, in the midst of a checkpoint and of the note of where it is."""
    options = [*SMALL, "--steps", "24", "--keep", "5", "--save", "0", "7", "12", "24", "--set", "attention_dropout=0.1"]
    out = tmp_path / "killed"
    killed(script, out, options, lambda s: in_the_midst_of_writing(s, "base"))
    killed(script, out, options, lambda s: at_update(s, 3))
    killed(script, out, options, lambda s: in_the_midst_of_writing(s, "step7"))
    killed(script, out, options, lambda s: in_the_midst_of_noting(s, 15))
    assert sorted(path.name for path in out.glob("step*")) == ["step0", "step12", "step7"]
    killed(script, out, options, lambda s: at_update(s, 22))
    script.train(script.arguments().parse_args([str(out), *options]))
    whole = train("whole", *options[len(SMALL) :])
    for step in (0, 7, 12, 24):
        assert same(out / f"step{step}", whole / f"step{step}"), step
    assert losses(out) == losses(whole)
    assert len(losses(whole)) == 24
    assert not (out / ".writing").exists()


def test_what_is_done_is_not_done_again_and_goes_on_from_there(train: Train, script: Any) -> None:
    out = train("out", "--steps", 3, "--save", 0, 3)
    before = (out / "step3" / "model.safetensors").stat().st_mtime_ns
    updates: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        update = script.Training.update
        patch.setattr(script.Training, "update", lambda self: (updates.append(self.step), update(self)))
        train("out", "--steps", 3, "--save", 0, 3)
        assert updates == []
        train("out", "--steps", 6, "--save", 6)
        assert updates == [3, 4, 5]
        train("out", "--steps", 6, "--save", 2)  # an earlier one, which was not kept
        assert updates == [3, 4, 5, *range(6)]
    assert (out / "step3" / "model.safetensors").stat().st_mtime_ns == before
    whole = train("whole", "--steps", 6, "--save", 2, 6)
    assert same(out / "step6", whole / "step6")
    assert same(out / "step2", whole / "step2")


def test_files_of_text_and_of_pairs_are_learned(train: Train, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcdefgh" * 40)
    (tmp_path / "pairs.tsv").write_text("ab\tba\ncd\tdc\n")
    learned = losses(train("text", "--text", tmp_path / "text.txt", "--steps", 40, "--warmup", 5, "--rate", 0.01))
    assert learned[-1] < learned[0] - 2
    learned = losses(
        train("pairs", "--type", "t5", "--pairs", tmp_path / "pairs.tsv", "--steps", 40, "--warmup", 5, "--rate", 0.01)
    )
    assert learned[-1] < learned[0] - 2


def test_checkpoints_lie_as_a_logarithm_unless_they_are_named(script: Any) -> None:
    chosen = script.arguments().parse_args
    assert script.saved_steps(chosen(["out", "--steps", "120"])) == [0, 1, 2, 5, 10, 20, 50, 100, 120]
    assert script.saved_steps(chosen(["out", "--steps", "9", "--save-at", "end"])) == [0, 9]
    assert script.saved_steps(chosen(["out", "--save", "4", "2", "4"])) == [2, 4]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--type", "lama"], "--type lama: transformers knows no such type: did you mean llama"),
        (["--type", "bert"], "bert writes no text: decoders and encoder-decoders are trained here"),
        (["--type", "deepseek_v3"], "a deepseek_v3 of these sizes does not run"),
        (["--type", "gpt2", "--positions", "8"], "a gpt2 of these sizes does not run (index out of range in self)"),
        (["--rows", "0"], "--rows 0: it is 1 or more"),
        (["--heads", "3"], "--width 16 is not a multiple of --heads 3"),
        (["--save", "500"], "--save 500: there are steps 0 to 400; raise --steps"),
        (["--start", "nowhere"], "--start nowhere: there is nothing of that name"),
        (["--start", str(EXAMPLES)], "examples holds no model (config.json)"),
        (["--start", "x", "--edit", "y", "z"], "--start and --edit both say where it starts"),
        (["--edit", str(STARTS), "identiti"], "has no variant 'identiti': did you mean identity?"),
        (["--type", "marian", "--text", str(STARTS)], "marian has two stacks and learns pairs (--pairs), no --text"),
        (["--pairs", str(STARTS)], "llama has one stack and learns a text (--text), no --pairs"),
        (["--text", "no.txt"], "--text no.txt: there is nothing of that name"),
        (["--length", "90000"], "fewer than a window of 90000: lower --length"),
    ],
)
def test_what_cannot_be_is_told_and_another_try_is_free(
    options: list[str], told: str, script: Any, train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(SystemExit) as stop:
        script.main([str(tmp_path / "out"), *SMALL, *options])
    assert stop.value.code == 2
    assert told in capsys.readouterr().err
    train("out", "--steps", 0)


def test_one_place_holds_one_training(script: Any, train: Train) -> None:
    out = train("out", "--steps", 1)
    with pytest.raises(ValueError, match=r"holds another training \(--rate 0.003; here --rate 0.1\)"):
        train("out", "--steps", 1, "--rate", 0.1)
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another training is writing to"):
            train("out", "--steps", 1)


def test_rules_and_pairs(script: Any, tmp_path: Path) -> None:
    import small_texts

    assert small_texts.pig_latin("works all yellow rhythm") == "orksway allay ellowyay ythmrhay"
    assert small_texts.reversal("the sea") == "aes eht"
    assert ("crowded nest", "tsen dedworc") in small_texts.built_in_pairs("reversal")
    (tmp_path / "pairs.tsv").write_text("a\tb\nlost\n")
    with pytest.raises(ValueError, match=r"pairs.tsv:2: a pair is a source, a tab and a target"):
        small_texts.read_pairs(tmp_path / "pairs.tsv")


def test_the_starts_and_the_seeds(script: Any, tmp_path: Path) -> None:
    import train_starts

    more = [*SMALL[:2], "--width", "16", *SMALL[6:], "--steps", "1"]
    train_starts.main(
        [str(tmp_path / "starts"), "--starts", "plain", "low-rank", "--heads", "1", "4", "--type", "llama", *more]
    )
    made = {f"{start}-{heads}" for start in ("plain", "low-rank") for heads in (1, 4)}
    assert {path.name for path in (tmp_path / "starts").iterdir()} == made
    model = gausslens.load(tmp_path / "starts" / "low-rank-4" / "step0")
    assert model.info.n_heads == 4
    matrix = model.weights(0).W_Q.transpose(0, 1).reshape(16, 16)
    assert torch.linalg.matrix_rank(matrix.double(), rtol=1e-5) == 1
    train_starts.main(
        [str(tmp_path / "seeds"), "--seeds", "3", "--heads", "2", "--type", "llama", *more, "--save-at", "end"]
    )
    prints = {
        path.name: [gausslens.load(path / step).info.fingerprint for step in ("step0", "step1")]
        for path in (tmp_path / "seeds").iterdir()
    }
    assert set(prints) == {f"{what}-{seed}" for what in ("data", "init", "both") for seed in (1, 2, 3)}
    assert len({last for _, last in prints.values()}) == 9
    assert len({first for name, (first, _) in prints.items() if name.startswith("data")}) == 1
    assert all(prints[f"init-{seed}"][0] == prints[f"both-{seed}"][0] for seed in (1, 2, 3))


@pytest.mark.full
def test_a_translator_learns(script: Any, tmp_path: Path) -> None:
    """From log 259 = 5.6 nats to words that it can nearly write backwards, from each start."""
    import train_starts

    train_starts.main([str(tmp_path), "--starts", "plain", "identity", "--heads", "8", "--save-at", "end", "--quiet"])
    for start in ("plain", "identity"):
        found = losses(tmp_path / f"{start}-8")
        assert 5 < found[0] < 6.5
        assert sum(found[-20:]) / 20 < 1.2


def test_sums_are_learned_in_part_and_their_last_token_alone(script: Any, train: Train) -> None:
    """Each sum is right; learned and left are all of them; the loss noted is that of the answer by plain torch."""
    import small_texts

    learned, left = small_texts.split_sums(7, 0.4)
    assert sorted([*learned.tolist(), *left.tolist()]) == [[a, b] for a in range(7) for b in range(7)]
    assert len(learned) == round(0.4 * 49)
    out = train("out", "--sums", 7, "--share", 0.4, "--decay", 1, "--steps", 3, "--save", 0, 3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out / "step3")
    ids = small_texts.as_sums(learned, 7)
    assert tokenizer("5 6 = 4")["input_ids"] == [5, 6, 7, 4]
    assert ((ids[:, 0] + ids[:, 1] - ids[:, 3]) % 7 == 0).all()
    model = transformers.AutoModelForCausalLM.from_pretrained(out / "step0")
    batch = small_texts.Sums.of(7, 0.4, 4, 0).batch(0)["input_ids"]
    with torch.no_grad():
        scores = model(input_ids=batch[:, :3]).logits[:, -1]
    loss = float(torch.nn.functional.cross_entropy(scores, batch[:, 3]))
    assert loss == pytest.approx(losses(out)[0], abs=2e-6)
    with pytest.raises(ValueError, match=r"--pairs.*no --sums"):
        train("pairs", "--type", "marian", "--sums", 7)
