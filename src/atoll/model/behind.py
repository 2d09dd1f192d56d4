"""An engine's moments where they travel: its optimizers remember in the vector itself, behind the weights.

So giving them away and taking others in is what it is with weights, and a step costs what it did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from atoll.model.moments import FIRST, SECOND, STEPS
from atoll.model.shape import Shapes, parts

SLOTS = {"exp_avg": FIRST, "momentum_buffer": FIRST, "exp_avg_sq": SECOND, "row_squares": SECOND}
"""What optimizers call what."""
COUNT = "step"

Slots = Mapping[str, Sequence[int]]
"""What an optimizer remembers of a tensor, and in which shape."""


class Behind:
    """What some optimizers remember, in a vector."""

    def __init__(
        self,
        flat: Tensor,
        shapes: Shapes,
        trained: Mapping[str, torch.nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
        slots: Mapping[str, Slots],
    ) -> None:
        self._flat, self._shapes, self._places = flat, shapes, parts(shapes)
        self._trained, self._optimizers, self._slots = trained, optimizers, slots
        self.take_over()

    def take_over(self) -> None:
        """Let the optimizers go on in the vector's memory with what they remember, which may be nothing."""
        for name, state in self._states():
            for slot, shape in self._slots[name].items():
                there = self._view(slot, name)
                kept = state.get(slot)
                if there is None:
                    state[slot] = torch.zeros(tuple(shape), device=self._flat.device) if kept is None else kept
                    continue
                if kept is None:
                    there.zero_()
                else:
                    there.copy_(kept)
                state[slot] = there
        self.tell()

    def tell(self) -> None:
        """Write down how many steps the moments are of."""
        counts = self._counts()
        if STEPS in self._places and counts:
            self._flat[self._places[STEPS]] = counts[0]

    def hear(self, first: int, end: int) -> None:
        """Let moments be of as many steps as is written, where that is among elements that were; of none, forget."""
        if STEPS not in self._places or not first <= self._places[STEPS].start < end:
            return
        steps = self._flat[self._places[STEPS]].squeeze()
        if not steps:
            for _, state in self._states():
                for remembered in state.values():
                    remembered.zero_()
        for count in self._counts():
            count.copy_(steps)

    def _states(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield what is remembered of each tensor, by its name."""
        of = {p: optimizer for optimizer in self._optimizers for g in optimizer.param_groups for p in g["params"]}
        for name, parameter in self._trained.items():
            yield name, of[parameter].state[parameter]

    def _counts(self) -> list[Tensor]:
        return [state[COUNT] for _, state in self._states() if COUNT in state]

    def _view(self, slot: str, name: str) -> Tensor | None:
        """Return where in the vector something is that is remembered of a tensor; None: it never travels."""
        named = SLOTS.get(slot, "") + name
        if slot == COUNT or named not in self._places:
            return None
        return self._flat[self._places[named]].view(self._shapes[named])
