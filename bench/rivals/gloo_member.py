"""One member of an all-reduce by torch.distributed over gloo: what plain TCP between fixed members can do.

No encryption, no membership: whoever is missing, everybody fails. The sum is divided by the count, since an average is
what the others make too.
"""

from __future__ import annotations

import argparse
import os

import torch.distributed as dist
from bench.rivals import member
from bench.rivals.vector import Vector

PORT = 29500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-bytes", type=int, required=True)
    options = parser.parse_args()
    here = member.place()
    vector = Vector(here, options.size_bytes)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method=f"tcp://{here.ips[0]}:{PORT}", rank=here.index, world_size=here.count)

    def exchange(number: int) -> member.Exchanged:
        dist.all_reduce(vector.values)
        vector.values.div_(here.count)
        return member.Exchanged(ok=True, members=here.count, group=str(number))

    member.play(vector, exchange)


if __name__ == "__main__":
    main()
