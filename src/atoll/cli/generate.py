"""`atoll generate`: text from a model folder, as it is drawn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import Device

Model = Annotated[
    Path, typer.Argument(help="A model or adapter folder, as `atoll export` writes it.", metavar="FOLDER")
]
Prompt = Annotated[str, typer.Option(help="The text to go on from; empty: begin a new document.")]
Tokens = Annotated[int, typer.Option(min=1, help="How many tokens to draw at most.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token; 1 draws as trained.")]
TopK = Annotated[int, typer.Option(min=0, help="Draw only from the K likeliest tokens; 0: from all.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same text.")]


def command(
    folder: Model,
    prompt: Prompt = "",
    tokens: Tokens = 100,
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Sample text from a model folder: the prompt and what follows it, on stdout."""
    from atoll.data import tokenizer as tokenizers
    from atoll.model.engine import pick_device
    from atoll.model.sample import generate_tokens, open_model

    model, shape = open_model(folder, str(pick_device(device)))
    tokenizer = tokenizers.load(folder)
    start = tokenizer.encode(prompt) or [tokenizer.end]
    drawn: list[int] = []
    shown = ""
    sys.stdout.write(prompt)
    for token in generate_tokens(
        model,
        start,
        tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        stop=tokenizer.end if shape.eos is None else shape.eos,
        window=shape.context,
    ):
        drawn.append(token)
        text = tokenizer.decode(drawn)
        # A character may take several tokens: until it is whole, it decodes to a replacement character.
        if text.startswith(shown) and not text.endswith("\ufffd"):
            sys.stdout.write(text[len(shown) :])
            sys.stdout.flush()
            shown = text
    sys.stdout.write(tokenizer.decode(drawn)[len(shown) :] + "\n")
