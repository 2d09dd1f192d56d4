"""A thousand peers for an hour of DiLoCo rounds, in virtual time: what happened, and what it cost to simulate.

    python -m bench.thousand                          1,000 peers, one hour, a round in 10 minutes
    python -m bench.thousand --peers 100 --profile    a smaller one, and where the time goes

Every peer is the real one: its own process, disk, log, links and control messages. Only bulk is aggregated: the model
is a stand-in of a few chunks, so a member has one flow to each of a group's few owners where the real model would have
one to every member; bytes are scaled so that an owner's links carry what they would carry for real. Machines come and
go: a tenth of them leaves in an hour. Prints CPU seconds and what happened; exits 1 when a promise was broken or a
round is missing.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
from collections import Counter
from random import Random

from msgspec.structs import replace

from atoll.journal import Line
from atoll.model.compute import Cost
from atoll.sim.check import violations
from atoll.sim.compute import CountingEngine
from atoll.sim.scenario import Outcome, Scenario, World, simulate
from atoll.spec.axes.when import Every
from atoll.spec.fleet import Always, Churn, Device, Machine
from atoll.spec.load import load_recipe
from atoll.spec.run import Budget, Data, Membership, Run, Upkeep
from atoll.sync.grid import GROUP_MAX, grid_of

ROUND_S = 600.0
STEP_S = 60.0
WORK_S = 360.0
"""Of a round; the rest is the exchange."""
PATIENCE_S = 150.0
"""After the first contribution; who comes back in the middle of a round and begins anew misses it."""
SIZE = 256
"""Elements of the stand-in: four chunks."""
PARAMETERS = 125e6
CHURN_HOUR = 0.1
REGIONS = ("us-west", "us-east", "eu", "asia")
DELAYS_S = {
    ("us-west", "us-east"): 0.035,
    ("us-east", "eu"): 0.045,
    ("us-west", "eu"): 0.075,
    ("us-west", "asia"): 0.06,
    ("us-east", "asia"): 0.09,
    ("eu", "asia"): 0.11,
}


def fleet(peers: int, rng: Random) -> list[Machine]:
    """Return machines in four regions that differ a little; all but the organiser's come and go."""
    away = Churn(up_s=3600.0 / CHURN_HOUR, down_s=1200.0)
    return [
        Machine(
            name=f"peer-{place}",
            region=rng.choice(REGIONS),
            device=Device(flop_s=20e12 * rng.uniform(0.95, 1.05), efficiency=0.4),
            up_bytes_s=12.5e6 * rng.uniform(0.8, 2.0),
            down_bytes_s=62.5e6 * rng.uniform(0.5, 2.0),
            disk_bytes=10**12,
            availability=away if place else Always(),
        )
        for place in range(peers)
    ]


def run_of(peers: int, rounds: int) -> Run:
    """Return a DiLoCo run in which a round is WORK_S of steps of STEP_S."""
    shipped = load_recipe("diloco")
    ((name, channel),) = shipped.channel.items()
    steps = round(WORK_S / STEP_S)
    return Run(
        name="thousand",
        recipe=replace(
            shipped, work=replace(shipped.work, batch=1), channel={name: replace(channel, when=Every(steps=steps))}
        ),
        budget=Budget(rounds=rounds),
        data=Data(context=1024),
        membership=Membership(start_with=round(0.95 * peers)),
        upkeep=Upkeep(checkpoint_every=3, patience_s_max=PATIENCE_S),
    )


def scenario(peers: int, minutes: float, seed: int, seen: Counter[str]) -> Scenario:
    """Return an hour of it, or as many minutes as asked for."""
    rounds = max(1, round(60 * minutes / ROUND_S))
    owners = grid_of(SIZE).chunks
    engine_cost = Cost(flop=STEP_S * 20e12 * 0.4)

    def build(run: Run) -> CountingEngine:
        return CountingEngine(
            seed=run.seeds.data, size=SIZE, tokens_per_sample=run.data.context, sample_cost=engine_cost
        )

    def see(line: Line) -> None:
        seen[type(line.event).__name__] += 1

    def enough(world: World) -> bool:
        return world.now_s() >= 60 * minutes + ROUND_S / 2 or world.committed >= rounds

    return Scenario(
        run=run_of(peers, 10**6),
        machines=fleet(peers, Random(seed)),
        delays_s=DELAYS_S | {(region, region): 0.008 for region in REGIONS},
        seed=seed,
        build=build,
        scale=PARAMETERS / SIZE * owners / min(peers, GROUP_MAX),
        quantum_s=0.5,
        enough=enough,
        calm_s=60.0,
        limit_s=86400.0,
        sees=see,
    )


def summary(outcome: Outcome, seen: Counter[str], cpu_s: float, peers: int) -> dict[str, object]:
    """Return what happened, as plain numbers."""
    versions = Counter(host.version for host in outcome.hosts if host.here)
    return {
        "peers": peers,
        "cpu_s": round(cpu_s, 1),
        "virtual_s": round(outcome.took_s, 1),
        "rounds": max(versions, default=0),
        "alive": sum(versions.values()),
        "on_the_newest": versions[max(versions, default=0)],
        "left": seen["PeerStopped"],
        "lost": seen["PeerLost"],
        "replanned": seen["RoundReplanned"],
        "callbacks": outcome.callbacks,
        "journal_lines": len(outcome.lines),
        "trace": outcome.trace,
    }


def main() -> None:
    """Play it and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    seen: Counter[str] = Counter()
    play = scenario(options.peers, options.minutes, options.seed, seen)
    profile = cProfile.Profile()
    began_s = time.process_time()
    if options.profile:
        profile.enable()
    outcome = simulate(play)
    profile.disable()
    cpu_s = time.process_time() - began_s
    broken = violations(play.run, outcome)
    print(json.dumps(summary(outcome, seen, cpu_s, options.peers) | {"broken": broken[:5]}, indent=1))
    print(f"{seen.most_common(12)}", file=sys.stderr)
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        pstats.Stats(profile).sort_stats("cumtime").print_stats(70)
    wanted = int(60 * options.minutes / ROUND_S)
    if broken or max((host.version for host in outcome.hosts), default=0) < wanted - 1:
        sys.exit(1)


if __name__ == "__main__":
    main()
