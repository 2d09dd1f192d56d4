"""The model of one peer on torch: what `Engine` promises, on a CPU or one CUDA device.

All trainable weights are views of one flat fp32 tensor in the order of the spec, so a vector is one copy.
On CUDA the arithmetic is bf16 under autocast with fp32 weights, compiled, recorded and replayed (`graph.py`), and
nothing waits for the device inside a slice: batches are copied ahead from pinned memory, losses are summed there and
read once.
On a CPU everything is fp32 and, for a given number of threads, the same to the bit in every process.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.errors import LocalError, SpecError
from atoll.model import folder, plain
from atoll.model.behind import Behind, Slots
from atoll.model.compute import Cost, Encoder, Moments, Rounder, Step, Trained, Transforms, Vector, together
from atoll.model.encoding.encoder import Began, TorchEncoder, at_hand
from atoll.model.encoding.rounding import RowsThere, rounds_on
from atoll.model.encoding.transforms import TorchTransforms
from atoll.model.graph import Recorded, warming
from atoll.model.held import Held
from atoll.model.inner import opened, optimizers_of, saved, slots_of
from atoll.model.inputs import second_moments
from atoll.model.llama import IGNORED, Llama, bind, blank
from atoll.model.lora import adapt
from atoll.model.moments import stepped_by, travelling
from atoll.model.shape import Shape, Shapes, elements, initial, is_big, parts, step_cost, train_cost
from atoll.spec.axes.codec import Codec
from atoll.spec.run import Folder, Fresh, Lora, Run

AUTOMATIC = "auto"
"""The device: CUDA where there is some."""

Loss = Callable[[Tensor, Tensor], Tensor]


class Batches(Protocol):
    """Where tokens come from."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def held_out_samples(self) -> int: ...

    def batch(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """Return training samples by position in the global order: (B, context + 1) token ids."""

    def held_out(self, first: int, count: int) -> NDArray[np.int64]:
        """Return held-out samples [first, first + count): (B, context + 1) token ids."""


def build_engine(
    run: Run,
    data: Batches,
    *,
    device: str = AUTOMATIC,
    threads: int = 1,
    compile: bool | None = None,
    recompute: bool | None = None,
    record: bool | None = None,
    encode: bool | None = None,
) -> TorchEngine:
    """Return an engine holding the run's initial weights; None lets the machine decide.

    `recompute` trades a third more work for the memory of activations (activation checkpointing); `record` launches a
    step's kernels all at once, which only CUDA can; `encode` makes chunks on the device, which pays where
    that is not the processor.
    """
    where = pick_device(device)
    shape, layout = folder.layout_of(run, data.vocab_size)
    shape = msgspec.structs.replace(shape, context=data.context)
    if data.vocab_size > shape.vocab:
        raise SpecError(
            f"data: its tokenizer has {data.vocab_size} tokens, the model {shape.vocab}",
            hint="prepare the data with the model's own tokenizer",
        )
    adapter = run.model.adapter if isinstance(run.model, Folder) else None
    with say_memory():
        behind = elements(travelling(run.recipe, layout)) - elements(layout)
        model, flat = _make(run, shape, layout, adapter, where, behind)
        model.model.recompute = _is_big(shape, run.recipe.work.at_once, where) if recompute is None else recompute
        compiled = _wants_compile(where, compile)
        records = where.type == "cuda" and record is not False
        encodes = where.type == "cuda" if encode is None else encode
        return TorchEngine(run, data, shape, layout, model, flat, threads, compiled, records, encodes)


def pick_device(name: str) -> torch.device:
    """Return the device a flag names; "auto" is CUDA where there is some."""
    if name == AUTOMATIC:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise SpecError(f"--device: {name!r} is not a device Atoll trains on", hint="choose auto, cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise LocalError("--device: torch sees no CUDA device", hint="choose cpu, or install torch with CUDA")
    return torch.device(name)


class TorchEngine:
    """`Engine` on torch; made by `build_engine`."""

    def __init__(
        self,
        run: Run,
        data: Batches,
        shape: Shape,
        layout: Shapes,
        model: Llama,
        flat: Tensor,
        threads: int,
        compiled: bool,
        records: bool,
        encodes: bool,
    ) -> None:
        self.shape, self.model, self.compiled = shape, model, compiled
        self.device = flat.device
        self._data, self._threads, self._flat = data, threads, flat
        self._adapter = run.model.adapter if isinstance(run.model, Folder) else None
        self._work = run.recipe.work
        self._micro = self._work.at_once
        self._trained = {name: model.get_parameter(name) for name in layout}
        self._optimizers = optimizers_of(self._work.inner, self._trained)
        self._shapes, self._layout = travelling(run.recipe, layout), layout
        self._behind = self._put_behind() if len(self._shapes) > len(layout) else None
        """None: what optimizers remember never travels."""
        # One graph for all: short micro-batches are padded, so a second shape is never compiled or recorded.
        self._loss: Loss = torch.compile(model.loss_sum, dynamic=False) if compiled else model.loss_sum
        self._pads, self._records = compiled or records, records
        self._encodes, self._began, self._has_stepped = encodes, Began(), False
        self._recorded: Recorded | None = None
        """None before the first step, which is taken without."""

    @property
    def size(self) -> int:
        return self._flat.numel()

    @property
    def layout(self) -> dict[str, int]:
        return {name: math.prod(shape) for name, shape in self._shapes.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    @property
    def tokens_per_sample(self) -> int:
        return self.shape.context

    def cost(self, samples: int, steps: int = 0) -> Cost:
        stepping = step_cost(self._layout, self._work.inner).flop if steps else 0.0
        return Cost(flop=train_cost(self.shape, samples, self._adapter).flop + steps * stepping)

    def weights(self, first: int = 0, end: int | None = None) -> Vector:
        vector: Vector = self._flat[first:end].to("cpu", copy=True).numpy()
        return vector

    def assign(
        self, weights: Vector, first: int = 0, name: object = None, less: Held | None = None, part: float = 1.0
    ) -> None:
        assert weights.dtype == np.float32
        with torch.no_grad():
            self._flat[first : first + weights.size].copy_(torch.from_numpy(np.require(weights, requirements="W")))
            if name is not None and self._encodes and self._has_stepped:  # and so it is known what a step needs
                self._began.keep(name, self._flat)
            if less is not None:
                self._flat -= self._held(less) if part == 1.0 else self._held(less) * part
            if self._behind is not None:
                self._behind.hear(first, first + weights.size)

    def _held(self, less: Held) -> Tensor:
        """Return what is held back, on the device: where it stays there, if it is known what a step needs."""
        stays = self._encodes and self._has_stepped
        return (at_hand(less, self.device) if stays else torch.from_numpy(less.read())).to(self.device)

    def train(self, steps: Sequence[Step]) -> Trained:
        """Take one optimizer step per entry; the device is waited for once, at the end."""
        assert self._optimizers, "the recipe only accumulates gradients: use `gradient`"
        with self._on_device():
            loss_sum = torch.zeros((), device=self.device)
            for step in steps:
                with self._warm():
                    loss_sum += self._backward(step, 1.0)
                    self._set_rates(step.rate)
                    self._step()
                    self._drop_gradients()
            if self._behind is not None:
                self._behind.tell()
            return self._trained_by(steps, loss_sum)

    def gradients(self, steps: Sequence[Step], total: Held | None) -> tuple[Trained, Held]:
        parts = []
        for step in steps:
            trained, mean = self._gradient([step])
            parts.append(trained)
            begins = total is None
            total = Held(self.size) if total is None else total
            there = at_hand(total, self.device)
            with torch.no_grad():
                there.copy_(mean) if begins else there.add_(mean.to(there.device))
        assert total is not None, "there is at least one step"
        return together(parts), total

    def gradient(self, steps: Sequence[Step]) -> tuple[Trained, Vector]:
        """Return the mean gradient over the steps' samples, its norm limited by the recipe's clip."""
        trained, mean = self._gradient(steps)
        vector: Vector = mean.cpu().numpy()
        return trained, vector

    def _gradient(self, steps: Sequence[Step]) -> tuple[Trained, Tensor]:
        samples = sum(len(step.samples) for step in steps)
        with self._on_device():
            loss_sum = torch.zeros((), device=self.device)
            with self._warm():
                for step in steps:
                    loss_sum += self._backward(step, len(step.samples) / samples)
                self._clip()
                mean = torch.cat([_gradient_of(p).flatten() for p in self._trained.values()])
                self._drop_gradients()
            return self._trained_by(steps, loss_sum), mean

    def inputs(self, names: Collection[str], samples: Sequence[int]) -> dict[str, Moments]:
        return {name: found.cpu().numpy() for name, found in self._moments(names, samples).items()}

    def _moments(self, names: Collection[str], samples: Sequence[int]) -> dict[str, Tensor]:
        wanted = [name for name in names if name in self._trained]
        with self._on_device(), torch.no_grad(), self._precision():
            batch = self._to_device(self._data.batch(samples), len(samples))
            return dict(second_moments(self.model, wanted, batch[:, :-1]))

    def rounder(self, names: Collection[str], samples: Sequence[int], damping: float) -> Rounder | None:
        return RowsThere(self._moments(names, samples), damping) if rounds_on(self.device) else None

    def encoder(self, codec: Codec) -> Encoder | None:
        return TorchEncoder(codec, self._flat, self._began) if self._encodes else None

    def transforms(self) -> Transforms | None:
        return TorchTransforms(self._flat, self._began) if self._encodes else None

    def evaluate(self, first: int, count: int) -> tuple[float, int]:
        count = max(0, min(count, self.held_out() - first))
        with self._on_device(), torch.no_grad():
            total = torch.zeros((), dtype=torch.float64, device=self.device)
            for at in range(first, first + count, self._micro):
                rows = min(self._micro, first + count - at)
                batch = self._to_device(self._data.held_out(at, rows), rows)
                for tokens, targets in self._micro_batches(batch):
                    with self._precision():
                        total += self._loss(tokens, targets)
            return float(total), count * self.shape.context

    def held_out(self) -> int:
        return self._data.held_out_samples

    def private(self) -> bytes:
        """Return the optimizer's state, exact, with a digest of its own against damage; not what is in the vector."""
        tensors = {}
        for optimizer in self._optimizers:
            for name, parameter in self._trained.items():
                own = self._own_slots(name)
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor) and key in own:
                        tensors[f"{key}/{name}"] = value.detach().cpu().contiguous()
        return saved(self._work.inner, tensors)

    def restore(self, private: bytes) -> None:
        tensors = opened(self._work.inner, private)
        states: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            slot, _, name = key.partition("/")
            states.setdefault(name, {})[slot] = value
        for name, state in states.items():
            self._check_state(name, state)
        self._recorded = None  # it knows the state that there was
        self._drop_gradients()
        for optimizer in self._optimizers:
            optimizer.state.clear()
        steps = {p: optimizer for optimizer in self._optimizers for g in optimizer.param_groups for p in g["params"]}
        for name, state in states.items():
            parameter = self._trained[name]
            steps[parameter].state[parameter] = {slot: v.to(self.device, copy=True) for slot, v in state.items()}
        if self._behind is not None:
            self._behind.take_over()

    def _put_behind(self) -> Behind:
        """Let the optimizers remember in the vector."""
        slots = {name: self._all_slots(name) for name in self._trained}
        return Behind(self._flat, self._shapes, self._trained, self._optimizers, slots)

    def _all_slots(self, name: str) -> Slots:
        """Return what is remembered of a tensor."""
        shape = self._trained[name].shape
        return slots_of(stepped_by(self._work.inner, name, tuple(shape)), shape)

    def _own_slots(self, name: str) -> Slots:
        """Return what of it is not in the vector."""
        return self._all_slots(name) if self._behind is None else self._behind.own(name)

    def _check_state(self, name: str, state: dict[str, Tensor]) -> None:
        slots = self._own_slots(name) if name in self._trained else None
        shapes = {slot: value.shape for slot, value in state.items()}
        if shapes != slots or any(value.dtype != torch.float32 for value in state.values()):
            raise LocalError(
                f"the saved optimizer state of {name} does not fit this model",
                hint="it belongs to another run; it can be dropped, at the price of a few slow steps",
            )

    def _backward(self, step: Step, share: float) -> Tensor:
        """Add the gradient of a step's mean loss, times `share`; return the mean loss, still on the device."""
        self._has_stepped = True
        count = len(step.samples)
        batch = self._to_device(self._data.batch(step.samples), count)
        scale = 1.0 / (count * self.shape.context)
        total = torch.zeros((), device=self.device)
        add = self._accumulate if self._recorded is None else self._recorded.add
        for tokens, targets in self._micro_batches(batch):
            total += add(tokens, targets, scale * share)
        return total * scale

    def _accumulate(self, tokens: Tensor, targets: Tensor, scale: float | Tensor) -> Tensor:
        """Add the gradient of a micro-batch's scaled loss; return the loss."""
        with self._precision():
            loss = self._loss(tokens, targets)
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _set_rates(self, factor: float) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(group["base_lr"] * factor)
                else:
                    group["lr"] = group["base_lr"] * factor

    def _step(self) -> None:
        """Step with the gradients that there are."""
        if self._recorded is not None and all(each.defaults.get("capturable") for each in self._optimizers):
            self._recorded.update()
        else:
            self._update()

    def _update(self) -> None:
        self._clip()
        for optimizer in self._optimizers:
            plain.step(optimizer)

    @contextmanager
    def _warm(self) -> Iterator[None]:
        """Do some work; where a step is to be recorded and none was taken yet, in a way that lets the next one be."""
        if not self._records or self._recorded is not None:
            yield
            return
        with warming(self.device):
            yield
        parameters = list(self._trained.values())
        rows, context = self._micro, self.shape.context
        self._recorded = Recorded(self.device, rows, context, parameters, self._accumulate, self._update)

    def _micro_batches(self, batch: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (tokens, targets) of at most `at_once` samples, padded to exactly that where shapes are fixed."""
        for at in range(0, batch.shape[0], self._micro):
            rows = batch[at : at + self._micro]
            tokens, targets = rows[:, :-1], rows[:, 1:]
            missing = self._micro - rows.shape[0]
            if self._pads and missing:
                tokens = torch.cat((tokens, tokens.new_zeros(missing, tokens.shape[1])))
                targets = torch.cat((targets, targets.new_full((missing, targets.shape[1]), IGNORED)))
            yield tokens.contiguous(), targets.contiguous()

    def _to_device(self, batch: NDArray[np.int64], samples: int) -> Tensor:
        assert batch.shape == (samples, self.shape.context + 1), "the data gave another shape than it promised"
        if samples and not 0 <= int(batch.min()) <= int(batch.max()) < self.shape.vocab:
            raise LocalError("the data holds tokens beyond the vocabulary", hint="prepare or fetch the data again")
        tensor = torch.tensor(batch, dtype=torch.int64)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor

    def _clip(self) -> None:
        if self._work.clip > 0:
            torch.nn.utils.clip_grad_norm_(self._trained.values(), self._work.clip)

    def _drop_gradients(self) -> None:
        if self._recorded is not None:
            self._recorded.drop()
            return
        for parameter in self._trained.values():
            parameter.grad = None

    def _trained_by(self, steps: Sequence[Step], loss_sum: Tensor) -> Trained:
        samples = sum(len(step.samples) for step in steps)
        tokens = samples * self.shape.context
        return Trained(steps=len(steps), samples=samples, tokens=tokens, loss_sum=float(loss_sum))

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Work with this engine's threads and device; leave no gradients behind when something fails."""
        if self.device.type == "cpu" and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)  # per thread of the process: results must not depend on the caller's
        try:
            with say_memory():
                yield
        finally:
            self._drop_gradients()


@contextmanager
def say_memory() -> Iterator[None]:
    """Turn a device out of memory into an error that says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise LocalError(
            f"the device ran out of memory: {str(error).partition('.')[0]}",
            hint="set a smaller work.micro_batch (results stay the same), or use a larger device",
        ) from error


# making the model


def _make(
    run: Run, shape: Shape, layout: Shapes, adapter: Lora | None, device: torch.device, behind: int
) -> tuple[Llama, Tensor]:
    """Return the decoder and the flat tensor that its trainable parameters are views of, with zeros behind them."""
    model = blank(shape.size, shape.vocab)
    frozen: dict[str, Tensor] = {}
    if isinstance(run.model, Fresh):
        start = torch.from_numpy(initial(layout, run.seeds.model, shape.size.layers))
    else:
        base = _load_base(run.model, shape)
        if adapter is None:
            start = torch.cat([base[name].flatten() for name in layout])
        else:
            adapt(model, adapter)
            start = torch.from_numpy(initial(layout, run.seeds.model, shape.size.layers))
            frozen = {name: tensor.to(device, copy=True) for name, tensor in base.items()}
    flat = torch.cat([start, start.new_zeros(behind)]).to(device) if behind else start.to(device)
    bind(model, frozen | views(layout, flat[: len(start)]), frozenset(layout))
    return model, flat


def _load_base(model: Folder, shape: Shape) -> dict[str, Tensor]:
    path = Path(model.path)
    if model.digest and folder.digest(path) != model.digest:
        raise LocalError(
            f"{path}: the weights are not those of the run (digest {model.digest[:12]}...)",
            hint="download the model that the run names",
        )
    return folder.read_weights(path, shape)


def views(layout: Shapes, flat: Tensor) -> dict[str, Tensor]:
    """Return views of a flat tensor's parts by parameter name."""
    assert flat.numel() == elements(layout)
    return {name: flat[part].view(layout[name]) for name, part in parts(layout).items()}


def _gradient_of(parameter: torch.nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _is_big(shape: Shape, micro: int, device: torch.device) -> bool:
    """Return whether the activations of a forward pass would fill more than half of the device's free memory."""
    return device.type == "cuda" and is_big(shape, micro, torch.cuda.mem_get_info(device)[0])


def _wants_compile(device: torch.device, asked: bool | None) -> bool:
    if asked is not None:
        return asked
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None and _can_compile(str(device))


@cache
def _can_compile(device: str) -> bool:
    """Return whether kernels can be built here: a machine without a C compiler trains uncompiled."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(8, device=device))
    except RuntimeError:
        return False
    return True
