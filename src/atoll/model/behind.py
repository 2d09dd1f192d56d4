"""An engine's moments where they travel: its optimizers remember in the vector itself, behind the weights.

So giving them away and taking others in is what it is with weights, and a step costs what it did. What never travels
stays the optimizers' own, and is what an engine saves of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from atoll.model.moments import FIRST, MASS, SECOND, mass_of, steps_of
from atoll.model.shape import Shapes, parts

KINDS = {"exp_avg": FIRST, "momentum_buffer": FIRST, "exp_avg_sq": SECOND, "row_squares": SECOND}
"""Which moments are what optimizers call so."""
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
        self._beta = next((betas[1] for each in optimizers if (betas := each.defaults.get("betas"))), 0.0)
        self.take_over()

    def own(self, name: str) -> dict[str, Sequence[int]]:
        """Return what the optimizers keep of a tensor for themselves."""
        counted = MASS in self._places
        return {
            slot: shape
            for slot, shape in self._slots[name].items()
            if self._view(slot, name) is None and not (slot == COUNT and counted)
        }

    def take_over(self) -> None:
        """Let the optimizers remember in the vector's memory, and for themselves whatever never travels."""
        for name, state in self._states():
            for slot, shape in self._slots[name].items():
                there = self._view(slot, name)
                if there is not None:
                    state[slot] = there
                elif slot not in state:
                    state[slot] = torch.zeros(tuple(shape), device=self._flat.device)
        self._set_counts()

    def tell(self) -> None:
        """Write down which mass second moments have."""
        counts = self._counts()
        if MASS in self._places and counts:
            self._flat[self._places[MASS]] = mass_of(float(counts[0]), self._beta)

    def hear(self, first: int, end: int) -> None:
        """Take in which mass second moments have, where that is among elements that were written; of none, forget."""
        if MASS not in self._places or not first <= self._places[MASS].start < end:
            return
        if not self._flat[self._places[MASS]]:  # a mean of gradients would be divided by next to nothing
            for _, state in self._states():
                for remembered in state.values():
                    remembered.zero_()
        self._set_counts()

    def _set_counts(self) -> None:
        """Let moments be of as many steps as their mass is of."""
        if MASS in self._places:
            steps = steps_of(float(self._flat[self._places[MASS]]), self._beta)
            for count in self._counts():
                count.fill_(steps)

    def _states(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield what is remembered of each tensor, by its name."""
        of = {p: optimizer for optimizer in self._optimizers for g in optimizer.param_groups for p in g["params"]}
        for name, parameter in self._trained.items():
            yield name, of[parameter].state[parameter]

    def _counts(self) -> list[Tensor]:
        return [state[COUNT] for _, state in self._states() if COUNT in state]

    def _view(self, slot: str, name: str) -> Tensor | None:
        """Return where in the vector something is that is remembered of a tensor; None: it never travels."""
        named = KINDS[slot] + name if slot in KINDS else ""
        if named not in self._places:
            return None
        return self._flat[self._places[named]].view(self._shapes[named])
