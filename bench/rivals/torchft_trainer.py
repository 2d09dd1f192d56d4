"""One replica of torchft's DiLoCo: local AdamW, then its outer optimizer on the mean of everybody's pseudo-gradient.

As in `torchft_member.py`: `ProcessGroupGloo`, a synchronous quorum (its DiLoCo asks for one), a store of its own for
each replica. `--fragments` and `--delay` are its streaming form, in which a part of the model travels while the others
are trained on.
"""

from __future__ import annotations

import argparse
import time
from itertools import count
from pathlib import Path

import torch
from bench.rivals import member
from bench.rivals.torchft_member import replica
from bench.rivals.trainee import Trainee, train
from torch import nn
from torchft import Manager  # type: ignore[import-not-found]
from torchft.local_sgd import DiLoCo  # type: ignore[import-not-found]

TIMEOUT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--outer-lr", type=float, required=True)
    parser.add_argument("--outer-momentum", type=float, required=True)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--delay", type=int, default=0, help="local steps for which a fragment is on its way")
    options = parser.parse_args()
    trainee = Trainee(options.folder, member.place())
    model, here = trainee.model, trainee.here
    manager = replica(here, TIMEOUT_S, here.count, load=model.load_state_dict, state=model.state_dict)
    fragments = _fragments(trainee, options.fragments)
    lr, momentum = options.outer_lr, options.outer_momentum
    outer = [torch.optim.SGD(f.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0) for f in fragments]
    diloco = DiLoCo(
        manager,
        fragments,
        trainee.optimizer,
        outer,
        sync_every=trainee.plan.steps,
        fragment_sync_delay=options.delay,
    )
    train(lambda: play(trainee, manager, diloco, options.fragments))


def play(trainee: Trainee, manager: Manager, diloco: DiLoCo, fragments: int) -> None:
    """Train for ever."""
    with diloco:
        for number in count(1):
            began_s, before = time.time(), manager.current_step()
            for _ in range(trainee.plan.steps):
                trainee.local_step(trainee.optimizer)
            trainee.told(number, began_s, ok=manager.current_step() == before + fragments, members=trainee.here.count)


def _fragments(trainee: Trainee, count: int) -> list[nn.Module]:
    """Return the model in parts of whole layers; what is not a layer goes with the last."""
    decoder = trainee.model.model
    if count == 1:
        return [trainee.model]
    each = len(decoder.layers) // count
    parts = [list(decoder.layers[at * each : (at + 1) * each]) for at in range(count)]
    parts[-1] += [*decoder.layers[count * each :], decoder.norm, decoder.embed_tokens]
    return [nn.ModuleList(part) for part in parts]


if __name__ == "__main__":
    main()
