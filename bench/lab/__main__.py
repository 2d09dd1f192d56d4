"""Run one command on every host of a pretended network.

    sudo python -m bench.lab homes -- python peer.py          a shipped fleet, or the path of a fleet file
    sudo python -m bench.lab fleet.toml --hosts 4 -- bash     its first four machines

The command runs once per host, sees the same files, and finds out who it is from its environment:

    ATOLL_HOST_INDEX   0, 1, ...           ATOLL_HOST_IP      its own address
    ATOLL_HOST_COUNT   how many there are  ATOLL_HOST_IPS     all addresses, by index
                                           ATOLL_PUBLIC_IPS   what others see of them: a router's, behind one

Lines that it prints begin with its index. Exits with the first failure's status; Ctrl-C ends all and leaves nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys

from bench.lab import Lab, everywhere, of_fleet
from bench.stage import leave

from atoll.errors import AtollError
from atoll.spec.fleet import load_fleet


def main(words: list[str]) -> int:
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="bench.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fleet", help="a fleet file, or the name of a shipped fleet")
    parser.add_argument("--hosts", type=int, default=0, help="only so many of its machines; 0: all")
    options = parser.parse_args(words[:cut])
    if cut >= len(words) - 1:
        parser.error("say what to run: bench.lab FLEET -- COMMAND [ARGUMENT...]")
    signal.signal(signal.SIGTERM, leave)
    try:
        hosts, between = of_fleet(load_fleet(options.fleet))
        with Lab(hosts[: options.hosts or None], between) as lab:
            return everywhere(lab, words[cut + 1 :])
    except AtollError as error:
        print(f"error: {error.what}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
