"""One peer of hivemind's `Optimizer` with local updates: own AdamW steps, then the mean of everybody's weights.

Its round begins when the samples that peers report through the DHT reach the target, here N x H x batch, so that it is
about H steps long; how long peers look for each other then (`matchmaking_time`) has to be guessed, and so has the limit
of one averaging. The true rate of the line is declared. With `--delayed`, its default, the average is made in the
background and applied when it is there.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import hivemind  # type: ignore[import-not-found]
from bench.rivals import member
from bench.rivals.hivemind_member import introduced
from bench.rivals.trainee import Trainee, train
from hivemind.compression import Float16Compression, NoCompression  # type: ignore[import-not-found]

AVERAGING_S_MAX = 60.0
"""Its users' guide: about twice what the averaging takes, or more."""
ASK_S = 1.0
"""For how long a peer waits for a leader's answer; hivemind wants it shorter than the matchmaking."""
REFRESH_S_MAX = 1.0
"""Between two looks at the others' progress. Left at 10 s, peers notice the end of a round of this length so far apart
that they average in parts, count different rounds, and download each other's state to agree again."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rate", type=float, required=True, help="of this member's line, bytes/s")
    parser.add_argument("--matchmaking-s", type=float, required=True)
    parser.add_argument("--delayed", action="store_true", help="average in the background")
    parser.add_argument("--half", action="store_true", help="send weights in 16 bits")
    options = parser.parse_args()
    trainee = Trainee(options.folder, member.place())
    plan, peers = trainee.plan, trainee.here.count
    optimizer = hivemind.Optimizer(
        dht=introduced(trainee.here, options.folder / "addresses"),
        run_id="train",
        batch_size_per_step=plan.batch,
        target_batch_size=peers * plan.steps * plan.batch,
        optimizer=trainee.optimizer,
        use_local_updates=True,
        matchmaking_time=options.matchmaking_s,
        averaging_timeout=AVERAGING_S_MAX,
        delay_state_averaging=options.delayed,
        state_averaging_compression=(Float16Compression if options.half else NoCompression)(),
        averager_opts={"bandwidth": options.rate, "target_group_size": peers, "request_timeout": ASK_S},
        tracker_opts={"max_refresh_period": REFRESH_S_MAX},
        verbose=True,
    )
    train(lambda: play(trainee, optimizer))


def play(trainee: Trainee, optimizer: hivemind.Optimizer) -> None:
    """Train for ever; a round is done when the epoch has changed."""
    number, began_s = 0, time.time()
    while True:
        trainee.local_step(optimizer)
        if optimizer.local_epoch > number:
            number = optimizer.local_epoch
            trainee.told(number, began_s, members=optimizer.tracker.global_progress.num_peers)
            began_s = time.time()


if __name__ == "__main__":
    main()
