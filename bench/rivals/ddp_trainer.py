"""One worker of DistributedDataParallel over gloo: the mean gradient of everybody at every update.

Gradients of some batches are accumulated before they are exchanged (`no_sync`), which is how its users save traffic; a
communication hook can send them in 16 bits.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import torch.distributed as dist
from bench.rivals import member
from bench.rivals.trainee import Trainee, train
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

PORT = 29500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--half", action="store_true", help="send gradients in 16 bits")
    options = parser.parse_args()
    trainee = Trainee(options.folder, member.place())
    here = trainee.here
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method=f"tcp://{here.ips[0]}:{PORT}", rank=here.index, world_size=here.count)
    shared = DistributedDataParallel(trainee.loss, gradient_as_bucket_view=True)
    if options.half:
        shared.register_comm_hook(None, fp16_compress_hook)
    train(lambda: play(trainee, shared))


def play(trainee: Trainee, shared: DistributedDataParallel) -> None:
    """Update for ever."""
    batches = trainee.plan.steps
    for number in count(1):
        began_s = time.time()
        trainee.warm(number - 1)
        trainee.optimizer.zero_grad(set_to_none=True)
        for left in reversed(range(batches)):
            with shared.no_sync() if left else nullcontext():
                (shared(trainee.rows()) / batches).backward()
        trainee.clip()
        trainee.optimizer.step()
        trainee.told(number, began_s)


if __name__ == "__main__":
    main()
