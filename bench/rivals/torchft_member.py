"""One replica of torchft: quorum, all-reduce over its reconfigurable gloo, commit.

On a CPU that means `ProcessGroupGloo` and `use_async_quorum=False`, with a store of its own for each replica, so that
none depends on another's. A lighthouse, which must not die, runs on host 0. `timeout` has to be guessed: it must exceed
the longest round, and is what survivors wait for that are no neighbours of a dead replica in gloo's ring.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from bench.rivals import member
from bench.rivals.vector import Vector
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found]

LIGHTHOUSE_PORT = 29510


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-bytes", type=int, required=True)
    parser.add_argument("--timeout-s", type=float, required=True, help="of everything that torchft waits for")
    parser.add_argument("--members-min", type=int, required=True)
    options = parser.parse_args()
    here = member.place()
    vector = Vector(here, options.size_bytes)
    manager = replica(
        here,
        options.timeout_s,
        options.members_min,
        load=lambda state: vector.values.copy_(state["values"]),
        state=lambda: {"values": vector.values},
    )

    def exchange(number: int) -> member.Exchanged:
        version = manager.current_step()
        manager.start_quorum()
        members = manager.num_participants()
        manager.allreduce(vector.values).wait()
        ok = manager.should_commit()
        return member.Exchanged(ok=ok, members=members, group=f"step {version} of {members}")

    member.play(vector, exchange)


def replica(
    here: member.Place,
    timeout_s: float,
    members_min: int,
    *,
    load: Callable[[Any], object],
    state: Callable[[], dict[str, Any]],
) -> Manager:
    """Return what keeps this host's replica in step with the others."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    timeout = timedelta(seconds=timeout_s)
    store = TCPStore(here.ip, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=members_min,
        use_async_quorum=False,
        timeout=timeout,
        quorum_timeout=timeout,
        connect_timeout=timeout,
        rank=0,
        world_size=1,
        store_addr=here.ip,
        store_port=store.port,
        lighthouse_addr=f"http://{here.ips[0]}:{LIGHTHOUSE_PORT}",
        replica_id=f"replica_{here.index}",
        hostname=here.ip,
        init_sync=False,
    )
    manager.kept_store = store  # it must live as long as the manager
    return manager


if __name__ == "__main__":
    main()
