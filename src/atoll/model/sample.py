"""Text from a model: one token after another, from a seed.

A cache of keys and values makes each token cost one position. When the text outgrows what the model was
trained on, the cache starts again from the newest half of it. The draw happens on the CPU in fp32 from its
own generator, so a seed gives the same text wherever the logits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from atoll.errors import SpecError
from atoll.model import folder
from atoll.model.engine import TorchEngine
from atoll.model.llama import Cache, Llama, bind, blank
from atoll.model.lora import merged
from atoll.model.shape import Shape


def open_model(path: Path, device: str = "cpu") -> tuple[Llama, Shape]:
    """Return the model of a folder, ready to run; an adapter folder is folded into the model it names."""
    base = path
    if (path / "adapter_config.json").is_file():
        lora, adapter, name = folder.read_adapter(path)
        base = Path(name)
        shape = folder.read_shape(base)
        folder.check_adapter(path, shape.size, lora, adapter)
        weights = merged(folder.read_weights(base, shape), adapter, lora)
    else:
        shape = folder.read_shape(base)
        weights = folder.read_weights(base, shape)
    model = blank(shape.size, shape.vocab)
    bind(model, {name: tensor.to(device, copy=True) for name, tensor in weights.items()}, frozenset())
    return model, shape


def generate_tokens(
    source: TorchEngine | Llama,
    prompt: Sequence[int],
    count: int,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    seed: int = 0,
    stop: int | None = None,
    window: int | None = None,
    cached: bool = True,
) -> Iterator[int]:
    """Yield up to `count` tokens that follow `prompt`, ending after `stop`; temperature 0 takes the likeliest.

    `window` is how many tokens the model looks back at most (an engine knows its own; otherwise no limit).
    """
    model = source.model if isinstance(source, TorchEngine) else source
    if window is None:
        window = source.shape.context if isinstance(source, TorchEngine) else len(prompt) + count
    if not prompt or not all(0 <= token < model.vocab for token in prompt):
        raise SpecError("the prompt is empty or holds tokens the model does not know", hint="give at least one token")
    draw = torch.Generator().manual_seed(seed)
    text = list(prompt)
    step = _Reader(model, max(2, window)) if cached else _Rereader(model, max(2, window))
    for _ in range(count):
        token = pick(step(text), temperature, top_k, draw)
        text.append(token)
        yield token
        if token == stop:
            return


def pick(logits_V: Tensor, temperature: float, top_k: int, draw: torch.Generator) -> int:
    """Return one token drawn from logits."""
    if temperature <= 0:
        return int(logits_V.argmax())
    logits_V = logits_V / temperature
    if 0 < top_k < logits_V.numel():
        worst = logits_V.topk(top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < worst, float("-inf"))
    return int(torch.multinomial(logits_V.softmax(-1), 1, generator=draw))


class _Reader:
    """Reads a growing text with a cache."""

    def __init__(self, model: Llama, window: int) -> None:
        self._model, self._window = model, window
        self._device = next(model.parameters()).device
        self._restart()

    def _restart(self) -> None:
        self._cache = Cache(self._model.size, self._window, self._device)
        self._read = 0

    @torch.no_grad()
    def __call__(self, text: list[int]) -> Tensor:
        """Return the logits of what follows `text`, which only ever grows by one token."""
        fresh = text[self._read :]
        if self._cache.length + len(fresh) > self._window:
            self._restart()
            fresh = text[-max(1, self._window // 2) :]
        self._read = len(text)
        tokens_BT = torch.tensor([fresh], device=self._device)
        return self._model.next_logits(tokens_BT, self._cache)[0].float().cpu()


class _Rereader:
    """Reads the whole text anew for every token: slow, and the measure of the other."""

    def __init__(self, model: Llama, window: int) -> None:
        self._model, self._window = model, window

    @torch.no_grad()
    def __call__(self, text: list[int]) -> Tensor:
        device = next(self._model.parameters()).device
        tokens_BT = torch.tensor([text[-self._window :]], device=device)
        return self._model.next_logits(tokens_BT)[0].float().cpu()
