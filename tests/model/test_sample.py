"""Generation: seeded, with a cache that changes nothing but the time it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from atoll.cli import generate
from atoll.data.tokenizer import bytes_tokenizer
from atoll.errors import SpecError
from atoll.model.engine import TorchEngine, build_engine
from atoll.model.folder import save_folder
from atoll.model.sample import generate_tokens, pick
from atoll.model.shape import initial, shapes
from tests.model.toys import CONTEXT, GROUPED, PLAIN, ToyData, toy_run, toy_steps


@pytest.fixture(scope="module", params=[GROUPED, PLAIN], ids=["grouped", "plain"])
def engine(request: pytest.FixtureRequest) -> TorchEngine:
    made = build_engine(toy_run(request.param), ToyData(), device="cpu")
    made.train(toy_steps(20))
    return made


def test_the_cache_changes_no_token(engine: TorchEngine) -> None:
    for temperature in (0.0, 1.0):
        drawn = [
            list(generate_tokens(engine.model, [1, 4, 7], 12, temperature=temperature, seed=3, cached=cached))
            for cached in (True, False)
        ]
        assert drawn[0] == drawn[1]


def test_the_cache_gives_the_logits_of_the_whole_text(engine: TorchEngine) -> None:
    from atoll.model.llama import Cache

    tokens = torch.from_numpy(ToyData().batch([0]))
    with torch.no_grad():
        whole = engine.model(tokens)
        cache = Cache(engine.model.size, tokens.shape[1], torch.device("cpu"))
        parts = [engine.model(tokens[:, :5], cache)]
        parts += [engine.model(tokens[:, at : at + 1], cache) for at in range(5, tokens.shape[1])]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)


def test_a_seed_gives_its_text_and_another_seed_another(engine: TorchEngine) -> None:
    def draw(seed: int) -> list[int]:
        return list(generate_tokens(engine, [1], 3 * CONTEXT, temperature=1.0, seed=seed))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len(draw(1)) == 3 * CONTEXT  # beyond the context: the window slides


def test_generation_ends_after_the_stop_token(engine: TorchEngine) -> None:
    text = list(generate_tokens(engine, [1], 10, temperature=0))
    stopped = list(generate_tokens(engine, [1], 10, temperature=0, stop=text[3]))
    assert stopped == text[: text.index(text[3]) + 1]


def test_only_the_likeliest_tokens_are_drawn() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.tensor([0.0, 3.0, 1.0, 2.9])
    assert {pick(logits, 5.0, 2, draw) for _ in range(50)} == {1, 3}
    assert {pick(logits, 0.0, 0, draw) for _ in range(3)} == {1}
    assert {pick(logits, 50.0, 0, draw) for _ in range(200)} == {0, 1, 2, 3}


def test_a_prompt_the_model_cannot_read_is_refused(engine: TorchEngine) -> None:
    for prompt in ([], [-1], [10**6]):
        with pytest.raises(SpecError):
            next(generate_tokens(engine, prompt, 1))


def test_the_command_prints_the_prompt_and_seeded_text(tmp_path: Path) -> None:
    import typer

    tokenizer = bytes_tokenizer()
    vector = initial(shapes(GROUPED, tokenizer.vocab_size), 0, GROUPED.layers)
    path = save_folder(toy_run(), vector, tmp_path / "out", tokenizer.files(), vocab_size=tokenizer.vocab_size)
    app = typer.Typer()
    app.command()(generate.command)
    texts = [
        CliRunner().invoke(app, [str(path), "--prompt", "Once", "--tokens", "9", "--seed", seed, "--device", "cpu"])
        for seed in ("1", "1", "2")
    ]
    assert [text.exit_code for text in texts] == [0, 0, 0]
    assert texts[0].stdout.startswith("Once")
    assert len(texts[0].stdout) > len("Once\n")
    assert texts[0].stdout == texts[1].stdout != texts[2].stdout
