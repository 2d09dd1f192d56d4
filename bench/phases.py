"""What encoding costs of the work it is about: for every recipe that is shipped, on one device.

A recipe's inner phase is its local steps between two exchanges of the same weights, each of `batch` samples of 1,024
tokens; where a round ends at a number of samples that all work through together, of eight peers' an eighth. How long a
token takes is measured with a model of a named size on the device at hand, and encoding with `bench.codec`: the
contribution's codec with its residual, of as many elements as that model has, and its transform. What goes over each
link by itself is all of it, to everybody else, with the search for how much of it fits (`bench.meshed`). Codecs that go
by size send one value in a hundred here. Where a recipe may climb from one form of exchange to another, the dearest one
is shown.

Three figures: encoding where it is done, as long as chunks are there; the whole way to the host's memory, where the
network takes them, which on a device is mostly the bus; and the limit, which is reading and writing once whatever has
to be read and written, at the speed of a copy. What a limit forbids no kernel can mend. And from how many samples
between two exchanges on encoding is a hundredth of the work at most: there are as many values to encode.

What is not in it: decoding results, and what owners do with contributions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from bench.inner import Stream
from bench.show import asked_for

from atoll.model.compute import Step
from atoll.model.engine import TorchEngine, build_engine
from atoll.peer.private import goes_on
from atoll.spec.axes.codec import Codec, Fp32, MaxN, Significance
from atoll.spec.axes.control import Form, Nobody, Rung
from atoll.spec.axes.merge import Merge
from atoll.spec.axes.optimizer import AdamW, Sgd
from atoll.spec.axes.what import Dct, Delta, Feedback, Grad, Hold, LowRank
from atoll.spec.axes.when import Every, TargetBatch
from atoll.spec.axes.work import Work
from atoll.spec.load import load_recipe, recipe_names
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import Budget, Data, Fresh, Run
from atoll.spec.say import kind

if TYPE_CHECKING:
    from bench.codec import Bench, Row

CONTEXT = 1024
PEERS = 8
SIZES = {"cpu": "5m", "cuda": "125m"}
STEPS = 4
HUNDREDTH = 0.01


@dataclass
class Share:
    """One recipe."""

    recipe: str
    codec: str
    where: str
    """The kind of device that encodes."""
    steps: float
    """Of its inner phase."""
    batch: int
    """Samples of each."""
    inner_s: float
    encode_s: float
    """Of that device."""
    whole_s: float
    """From there to the host's memory."""
    limit_s: float
    """If memory alone decided."""
    same_bits: bool = True
    """Whether a device makes what the processor makes."""

    @property
    def samples(self) -> float:
        """Return how many a peer works on between two exchanges."""
        return self.steps * self.batch

    @property
    def enough(self) -> int:
        """Return from how many samples between two exchanges on encoding is at most a hundredth of the work on them."""
        return math.ceil(self.samples * self.encode_s / (HUNDREDTH * self.inner_s))


@dataclass(frozen=True)
class Model:
    """What was measured of a model."""

    engine: TorchEngine
    token_s: float


def shares(bench: Bench, only: str, size: str | None) -> Iterator[Share]:
    """Yield what encoding is of the work of recipes with such names."""
    names = [name for name in recipe_names() if asked_for(name, only)]
    if not names:
        return
    rates = Rates(bench, measured(bench.device, size or SIZES[bench.device.type]))
    for name in names:
        recipe = load_recipe(name)
        forms = [rates.share(name, recipe, *form) for form in _forms(recipe)]
        yield max(forms, key=lambda each: each.whole_s / each.inner_s)


class Rates:
    """What is measured once for all recipes."""

    def __init__(self, bench: Bench, model: Model) -> None:
        self._bench, self._model = bench, model
        self._row = cache(partial(bench.row, ""))
        self._transform = cache(self._transformed)

    def share(self, name: str, recipe: Recipe, channel: Channel, codec: Codec, steps: float) -> Share:
        """Return what encoding is of the work of one form of a recipe's exchanges."""
        row = self._coded(channel, codec)
        kept = row.contribute_gb_s if _kept_there(channel) else row.from_host_gb_s
        encode_s, whole_s = self._takes_s(row.encode_gb_s), self._takes_s(kept or row.encode_gb_s)
        where, bits, same_bits = row.where, row.bits, row.same_bits
        if (how := channel.what.transform) is not None:
            made = self._transform(how)
            takes_s = self._takes_s(made.encode_gb_s)
            where, same_bits = made.where, same_bits and made.same_bits
            # Factors are a hundredth of the values: what their codec takes is nothing beside making them.
            factors = isinstance(how, LowRank)
            encode_s, whole_s = (takes_s, takes_s) if factors else (takes_s + encode_s, takes_s + whole_s)
            bits = made.bits if factors else bits
        limit_s = self._takes_s(2 * row.copy_gb_s) * _passes(channel, codec, bits)
        inner_s = steps * recipe.work.batch * CONTEXT * self._model.token_s
        return Share(
            recipe=name,
            codec=_words(channel, codec),
            where=where,
            steps=steps,
            batch=recipe.work.batch,
            inner_s=inner_s,
            encode_s=encode_s,
            whole_s=whole_s,
            limit_s=limit_s,
            same_bits=same_bits,
        )

    def _takes_s(self, rate_gb_s: float) -> float:
        return 4e-9 * self._model.engine.size / rate_gb_s

    def _coded(self, channel: Channel, codec: Codec) -> Row:
        if channel.mesh is not None and isinstance(codec, MaxN):
            return self._bench.linked(codec, PEERS - 1)
        rule = Feedback() if isinstance(channel.what.residual, Feedback) else channel.what.residual  # of any decay
        return self._row(self._bench.usual(codec), rule)

    def _transformed(self, how: Dct | LowRank) -> Row:
        return self._bench.dct() if isinstance(how, Dct) else self._bench.low_rank(how, self._model.engine.shapes)


def share_text(row: Share) -> str:
    """Return a recipe's line."""
    work = f"{row.steps:6.0f} steps of {row.batch:<2} {row.inner_s:10.2f} s"
    phase = f"{row.recipe:<18}{row.codec:<34}{row.where:<6}{work}"
    ways = (("encoding", row.encode_s), ("to the host", row.whole_s), ("limit", row.limit_s))
    wrong = "" if row.same_bits else "   OTHER BITS"
    shares = "".join(f"   {what} {took_s / row.inner_s:9.4%}" for what, took_s in ways)
    return f"{phase}{shares}   a hundredth from {row.enough} samples, here {row.samples:.0f}{wrong}"


def _passes(channel: Channel, codec: Codec, bits: float) -> float:
    """Return how often an element is read or written at least, of so many bits on the wire."""
    links = PEERS - 1 if channel.mesh is not None and isinstance(codec, MaxN) else 1
    left_out = {Feedback: 2, Hold: 1}.get(type(channel.what.residual), 0)  # before, and now
    if isinstance(codec, Fp32) and not left_out:
        return 0.0  # it goes out as it lies there
    way = 2 if isinstance(channel.what, Delta) else 1  # from where work began to where it came
    beside = 1 if isinstance(codec, Significance) and way == 1 else 0  # else that is what values are held against
    # One factor is made of the other, and what is left out of both: all values are there again, twice.
    again = 3 if isinstance(channel.what.transform, LowRank) else 0
    return way + beside + again + links * left_out + bits / 32


def _kept_there(channel: Channel) -> bool:
    """Return whether contributions are made of what a device has: gradients, or the way from where work began there."""
    return isinstance(channel.what, Grad) or (isinstance(channel.what, Delta) and not goes_on(channel))


def measured(device: torch.device, size: str) -> Model:
    """Return how long a token takes to train on."""
    batch, context, vocab = (8, 128, 4096) if device.type == "cpu" else (32, CONTEXT, 32000)
    run = Run(
        name="bench",
        recipe=Recipe(
            work=Work(inner=AdamW(lr=3e-4), batch=batch, clip=1.0),
            channel={"outer": Channel(when=Every(steps=1), what=Delta(), merge=Merge(outer=Sgd(lr=1.0)))},
        ),
        budget=Budget(rounds=1),
        model=Fresh(size=size),
        data=Data(context=context),
    )
    engine = build_engine(run, Stream(vocab, context, 64 * batch), device=str(device), threads=1)
    steps = [Step(samples=tuple(range(at * batch, (at + 1) * batch))) for at in range(STEPS)]
    engine.train(steps)
    now_s = time.process_time if device.type == "cpu" else time.perf_counter
    took_s = []
    for _ in range(3):
        began_s = now_s()
        engine.train(steps)
        took_s.append(now_s() - began_s)
    return Model(engine, min(took_s) / (STEPS * batch * context))


def _forms(recipe: Recipe) -> Iterator[tuple[Channel, Codec, float]]:
    """Yield the forms that a recipe's exchanges may take, and how many steps lie between two of them."""
    for channel in recipe.channel.values():
        steps = _steps(recipe, channel)
        yield channel, channel.what.codec, steps
        ladder: tuple[Form, ...] = () if isinstance(recipe.control, Nobody) else recipe.control.ladder
        for form in ladder:
            yield channel, form.codec, form.steps if isinstance(form, Rung) else steps


def _steps(recipe: Recipe, channel: Channel) -> float:
    match channel.when:
        case TargetBatch(samples=samples):
            return samples / PEERS / recipe.work.batch
        case when:
            return when.steps


def _words(channel: Channel, codec: Codec) -> str:
    values = getattr(codec, "values", Fp32())
    inside = "" if isinstance(values, Fp32) else f" of {kind(values)}"
    fed = {Feedback: ", fed back", Hold: ", held"}.get(type(channel.what.residual), "")
    before = "" if channel.what.transform is None else f"{kind(channel.what.transform)}, "
    return f"{before}{kind(codec)}{inside}{fed}"
