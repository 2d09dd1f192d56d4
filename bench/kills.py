"""Do rounds keep their word when peers die? Five real peers, each killed or cut off in the middle of rounds.

    python -m bench.kills                            on loopback: each kind of death 20 times
    sudo python -m bench.kills --where namespaces    machines of their own, lines of 30 Mbit/s and one of 8
    python -m bench.kills --audit                    20 kills in one run, then the ledger and the held-out loss

A moment is drawn uniformly over the undisturbed round (the median of the last ten). The victim is a `contributor` (one
that owns nothing where there is one), an `owner`, the `leader` (all by SIGKILL), or anybody whose `link` falls silent
for 20 s (on loopback: SIGSTOP). It stays away until the round is over, or with `--back soon` is started again after a
second. The promise, for the very round that was open: all survivors commit and apply it with one result and one
anchor, and the delay past the undisturbed commit is at most the time until the death was detected (by the broker; of
the leader: until the next one's epoch began) plus 1.2 times what must be sent again. That is, for contributions of B
bytes, a victim that owned the share s, n survivors, lines of r bytes/s, and survivors' shares s' after it:

    s B / r  of the slowest survivor (its part for the heirs)  +  (n - 1) s' B / r  of the busiest owner (all results)

On loopback, where no line has a rate, it is the undisturbed exchange: from the last one's work to the commit. Where
the survivors' own work took longer than usual (the machine was busy), the undisturbed commit is one such exchange after
it. Exits 1 if a promise is broken, and prints what the journals say of that round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.runs import FOR_EVER, run_text
from bench.stage import LINKS, PEERS, RATES_MBIT, Stage, alive, leave, staged
from bench.story import CALM_ROUNDS, Story

from atoll.net.transport import DEFAULT_LINKS, LinkKind

KINDS = ("contributor", "owner", "leader", "link")
TRIAL_S_MAX = 120.0
"""A round that takes longer hangs."""
GATHER_S_MAX = 300.0
"""Everybody is together again within this time, or the run hangs."""
NOTICE_S_MAX = 45.0
"""A death is noticed within this time, needed or not: links are given up after 30 s of silence at the latest."""
LOOK_S = 0.02
SLACK = 1.2
SIZE = "1m"
STEPS = 10
"""Local steps: with that size a round takes a few seconds on two cores."""
AUDIT_SIZE = "tiny"
AUDIT_STEPS = 60
AUDIT_ROUNDS = 40
AUDIT_SEEDS = (0, 1, 2)
AUDIT_S_MAX = 1800.0
DEVIATIONS_MAX = 3.0
"""A held-out loss that is off by more standard deviations of the seeds' is not noise."""


def run_of(size: str, steps: int, rounds: int, seed: int) -> str:
    """Return a run file."""
    inner = {"kind": "adamw", "lr": 2e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}
    schedule = {"kind": "cosine", "warmup_steps": 50, "floor": 0.1}
    return run_text(
        "mortals",
        {
            "model.size": size,
            "recipe.work.batch": 4,
            **{f"recipe.work.inner.{key}": value for key, value in inner.items()},
            **{f"recipe.work.schedule.{key}": value for key, value in schedule.items()},
            "recipe.channel.outer.when.steps": steps,
            "budget.rounds": rounds,
            "membership.start_with": PEERS,
            "seeds.model": seed,
            "seeds.data": seed,
            "upkeep.evaluate_samples": 512,
        },
    )


# trials


@dataclass
class Trial:
    """One death, and what became of its round."""

    kind: str
    version: int
    seat: int
    led: bool
    share: float
    at_s: float
    """When it died, from the announcement on."""
    undisturbed_s: float
    exchange_s: float
    """What an undisturbed round takes, and its exchange alone."""
    bound_s: float
    """What must be sent again takes so long."""
    kept: bool = False
    """All survivors committed and applied the very round."""
    identical: bool = False
    delay_s: float | None = None
    detected_s: float | None = None
    """From the death until the broker knew, or a new leader's epoch began."""
    noticed_s: float | None = None
    """Until the first survivor knew."""
    contributors: int = 0
    replanned: list[str] = field(default_factory=list)
    came_back: bool = False
    """The victim was at work again before the round was committed."""
    told: list[str] = field(default_factory=list)

    @property
    def within(self) -> bool:
        limit_s = (self.detected_s or 0.0) + SLACK * self.bound_s
        return self.delay_s is not None and self.delay_s <= limit_s

    @property
    def good(self) -> bool:
        return self.kept and self.identical and self.within


class Hang(Exception):
    """Something did not happen in time."""


class Director:
    """Lets peers die, one after the other."""

    def __init__(self, stage: Stage, size_bytes: int, *, stay: bool) -> None:
        self.stage, self.stay = stage, stay
        self.story = Story(stage.folder, PEERS)
        self._size_bytes = size_bytes
        self._after_s = 0.0
        """Only what began later is looked at."""

    def until(self, claim: Callable[[], bool], limit_s: float, what: str) -> None:
        """Read journals until something holds."""
        deadline_s = time.monotonic() + limit_s
        while not claim():
            if time.monotonic() > deadline_s:
                raise Hang(f"{what}: not within {limit_s:.0f} s")
            time.sleep(LOOK_S)
            self.story.look()

    def warm_up(self) -> None:
        """Wait until enough rounds went by undisturbed."""
        self.until(lambda: len(self.story.calm()) >= CALM_ROUNDS, GATHER_S_MAX, f"{CALM_ROUNDS} undisturbed rounds")

    def trial(self, kind: str) -> Trial:
        """Let somebody die at a moment of a round, and return what became of it."""
        while (trial := self._strike(kind)) is None:
            pass
        story, struck_s = self.story, story_time(self.story, trial)
        survivors = [peer for peer, seat in story.seats().items() if seat != trial.seat]
        victim = next(peer for peer, seat in story.seats().items() if seat == trial.seat)
        try:
            self.until(lambda: self._over(trial, survivors), TRIAL_S_MAX, "the end of the round")
            self.until(lambda: self._detected(trial, victim, struck_s), NOTICE_S_MAX, "the notice")
        except Hang as hang:
            trial.told.append(f"hang: {hang}")
        self._judge(trial, survivors, victim, struck_s)
        self.stage.let_back()
        self._after_s = time.time()
        return trial

    def _strike(self, kind: str) -> Trial | None:
        """Wait for the moment and let somebody die; None where the round was over before."""
        story = self.story
        self.until(self._together, GATHER_S_MAX, "a round with everybody in it")
        version = max(story.announced)
        announced_s, members = story.announced[version]
        undisturbed_s, exchange_s = story.undisturbed_s(), story.exchange_s()
        moment_s = announced_s + random.uniform(0.0, undisturbed_s)
        self.until(lambda: time.time() >= moment_s or version in story.committed, TRIAL_S_MAX, "the moment")
        if version in story.committed:
            self._after_s = announced_s
            return None
        victim = self._pick(kind, members)
        seat, led, share = story.seats()[victim], victim == story.leader, story.share(victim)
        bound_s = self._bound_s(victim, members)
        struck_s = self.stage.silence(seat) if kind == "link" else self.stage.kill(seat, stay=self.stay)
        return Trial(
            kind=kind,
            version=version,
            seat=seat,
            led=led,
            share=share,
            at_s=struck_s - announced_s,
            undisturbed_s=undisturbed_s,
            exchange_s=exchange_s,
            bound_s=bound_s,
        )

    def _together(self) -> bool:
        """Return whether a round is open with everybody in it, and the one before had everybody's contribution."""
        story = self.story
        version = max(story.announced, default=0)
        if version in story.committed or version - 1 not in story.calm() or len(story.seats()) < PEERS:
            return False
        return len(story.announced[version][1]) == PEERS and story.announced[version - 1][0] > self._after_s

    def _pick(self, kind: str, members: Sequence[str]) -> str:
        story = self.story
        others = [peer for peer in members if peer != story.leader]
        match kind:
            case "leader":
                return story.leader
            case "owner":
                return random.choice([peer for peer in others if story.share(peer) > 0] or others)
            case "contributor":
                return random.choice([peer for peer in others if not story.share(peer)] or others)
            case _:
                return random.choice(members)

    def _bound_s(self, victim: str, members: Sequence[str]) -> float:
        """Return how long it takes to send again what must be; see the module's docstring."""
        story = self.story
        if self.stage.lab is None:
            return story.exchange_s()
        rate_bytes_s = {peer: RATES_MBIT[seat] * 1e6 / 8 for peer, seat in story.seats().items()}
        survivors = [peer for peer in members if peer != victim]
        left = sum(story.share(peer) for peer in survivors) or 1.0
        parts_s = max(story.share(victim) * self._size_bytes / rate_bytes_s[peer] for peer in survivors)
        copies = (len(survivors) - 1) * self._size_bytes
        return parts_s + max(story.share(peer) / left * copies / rate_bytes_s[peer] for peer in survivors)

    def _over(self, trial: Trial, survivors: Sequence[str]) -> bool:
        return all(peer in self.story.applied.get(trial.version, {}) for peer in survivors)

    def _detected(self, trial: Trial, victim: str, struck_s: float) -> bool:
        """Note who knew of the death when; return whether it counts as detected."""
        story = self.story
        notices = [(at_s, by) for at_s, by, who in story.lost if who == victim and by != victim and at_s >= struck_s]
        epochs = [at_s for at_s, _, broker in story.epochs if broker != victim and at_s >= struck_s]
        decided = epochs if trial.led else [at_s for at_s, by in notices if by == story.leader]
        trial.noticed_s = min((at_s - struck_s for at_s, _ in notices), default=None)
        trial.detected_s = min((at_s - struck_s for at_s in decided), default=None)
        return trial.detected_s is not None

    def _judge(self, trial: Trial, survivors: Sequence[str], victim: str, struck_s: float) -> None:
        story, version = self.story, trial.version
        announced_s = story.announced[version][0]
        told = {peer: what for peer, what in story.committed.get(version, {}).items() if peer in survivors}
        held = {peer: what for peer, what in story.applied.get(version, {}).items() if peer in survivors}
        trial.kept = len(told) == len(held) == len(survivors) and version not in story.voided
        trial.identical = len({what[1:] for what in told.values()}) == len({a for _, a in held.values()}) == 1
        trial.contributors = max((len(what[2]) for what in told.values()), default=0)
        trial.replanned = story.replanned.get(version, [])
        committed_s = story.committed_s(version, survivors)
        if committed_s is not None:
            worked_s = max((story.worked_s.get(version, {}).get(peer, 0.0) for peer in survivors), default=0.0)
            undisturbed_s = max(announced_s + trial.undisturbed_s, worked_s + trial.exchange_s)
            trial.delay_s = committed_s - undisturbed_s
            trial.came_back = struck_s < story.started.get(victim, 0.0) < committed_s
        if not trial.good:
            trial.told += story.tell(announced_s, version)


def story_time(story: Story, trial: Trial) -> float:
    """Return when the victim died, on the journals' clock."""
    return story.announced[trial.version][0] + trial.at_s


def trials(where: str, times: int, kinds: Sequence[str], *, stay: bool, folder: Path) -> tuple[list[Trial], list[str]]:
    """Return all trials, and what else is wrong."""
    text = run_of(SIZE, STEPS, FOR_EVER, seed=0)
    done: list[Trial] = []
    wrong: list[str] = []
    with staged(folder, where, text) as stage:
        director = Director(stage, contribution_bytes(folder), stay=stay)
        try:
            director.warm_up()
            _say_calm(director.story)
            for number in range(times):
                for kind in kinds:
                    done.append(director.trial(kind))
                    _say(number, done[-1])
            director.until(director._together, GATHER_S_MAX, "everybody together again at the end")
        except Hang as hang:
            wrong += [f"hang: {hang}", *director.story.tell(time.time() - GATHER_S_MAX)[-80:]]
        except KeyboardInterrupt:
            wrong.append("interrupted")
        wrong += director.story.forks() + stage.fallen()
        _say_calm(director.story)
    return done, wrong


def contribution_bytes(folder: Path) -> int:
    """Return the size of one contribution in fp32."""
    from atoll.data.shards import read_manifest
    from atoll.model.shape import elements, shapes
    from atoll.spec.run import SIZES

    return 4 * elements(shapes(SIZES[SIZE], read_manifest(_shards(folder)).tokenizer.vocab_size))


def _shards(folder: Path) -> Path:
    """Return where the run's data lies."""
    return next((folder / "cache").rglob("manifest.json")).parent


def _say_calm(story: Story) -> None:
    if story.calm():
        print(
            f"undisturbed: {story.undisturbed_s():.2f} s a round, {story.exchange_s():.2f} s of it the exchange; "
            f"the longest of the last {len(story.calm())} took {story.spread_s():.2f} s more; "
            f"shares {sorted((story.seats()[p], round(story.share(p), 3)) for p in story.seats())}",
            file=sys.stderr,
            flush=True,
        )


def _say(number: int, trial: Trial) -> None:
    said = (
        f"{number + 1:>3} {trial.kind:<11} #{trial.seat} round {trial.version}, at {trial.at_s:.2f} of "
        f"{trial.undisturbed_s:.2f} s: delay {_seconds(trial.delay_s)}, detected {_seconds(trial.detected_s)}, "
        f"bound {trial.bound_s:.2f} s, {trial.contributors} in, {len(trial.replanned)} plans more"
        f"{', came back' if trial.came_back else ''}{'' if trial.good else '  BROKEN'}"
    )
    print("\n".join([said, *("      " + line for line in trial.told)]), file=sys.stderr, flush=True)


def _seconds(number: float | None) -> str:
    return "never" if number is None else f"{number:.2f} s"


def table(done: Sequence[Trial]) -> str:
    """Return what the trials come to, a line for each kind."""
    rows = [("kind", "trials", "kept", "identical", "delay: median", "worst", "detected: median", "within the bound")]
    for kind in dict.fromkeys(trial.kind for trial in done):
        mine = [trial for trial in done if trial.kind == kind]
        delays = [trial.delay_s for trial in mine if trial.delay_s is not None]
        found = [trial.detected_s for trial in mine if trial.detected_s is not None]
        rows.append(
            (
                kind,
                str(len(mine)),
                str(sum(trial.kept for trial in mine)),
                str(sum(trial.identical for trial in mine)),
                _seconds(statistics.median(delays) if delays else None),
                _seconds(max(delays, default=None)),
                _seconds(statistics.median(found) if found else None),
                str(sum(trial.within for trial in mine)),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


# the audit: many kills in one run


def one_run(folder: Path, seed: int, kills: int) -> tuple[dict[str, object], list[str]]:
    """Train to the end with so many kills on the way; return what came of it, and what is wrong."""
    text = run_of(AUDIT_SIZE, AUDIT_STEPS, AUDIT_ROUNDS, seed)
    wrong: list[str] = []
    dead: list[str] = []
    with staged(folder, "loopback", text) as stage:
        director = Director(stage, 0, stay=False)
        story = director.story
        try:
            for _ in range(kills):
                dead.append(_kill_somebody(director))
                print(f"seed {seed}: kill {len(dead)}: {dead[-1]}", file=sys.stderr, flush=True)
            director.until(lambda: len(story.finished) == PEERS, AUDIT_S_MAX, "the end of the run")
        except Hang as hang:
            wrong += [f"hang: {hang}", *story.tell(time.time() - 120.0)[-80:]]
        wrong += story.forks() + stage.fallen()
        outcome: dict[str, object] = {
            "seed": seed,
            "kills": dead,
            "rounds": story.version,
            "leaders": len(story.epochs),
            "losses": sorted({loss for loss in story.losses.values() if loss is not None}),
        }
    return outcome, wrong


def _kill_somebody(director: Director) -> str:
    """Wait until a round later, and a random while, and kill anybody who is up."""
    story, stage = director.story, director.stage
    version = story.version
    director.until(lambda: story.version > version and len(story.seats()) == PEERS, GATHER_S_MAX, "the next round")
    moment_s = time.time() + random.uniform(0.0, 2.0)
    director.until(lambda: time.time() >= moment_s, TRIAL_S_MAX, "the moment")
    up = [seat for seat in range(PEERS) if alive(stage.pid(seat))]
    seat = random.choice(up)
    stage.kill(seat, stay=False)
    leads = story.epochs[-1][2] == next(peer for peer, at in story.seats().items() if at == seat)
    return f"#{seat}{', the leader' if leads else ''}, round {max(story.announced)}"


def ledgers(folder: Path) -> tuple[list[dict[str, object]], list[str]]:
    """Audit every pair of journals with the command that people use; return the sums, and what is wrong."""
    found: list[dict[str, object]] = []
    wrong: list[str] = []
    for one in range(PEERS):
        for other in range(one + 1, PEERS):
            pair = [str(folder / "peers" / str(seat)) for seat in (one, other)]
            command = [sys.executable, "-m", "atoll.cli.main", "data", "ledger", *pair, "--data", str(_shards(folder))]
            asked = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
            if not asked.stdout:
                wrong.append(f"peers {one} and {other}: {asked.stderr.strip()[-500:]}")
                continue
            told = json.loads(asked.stdout)
            found.append({"peers": [one, other], **{key: told[key] for key in ("ok", "rounds", "positions", "tokens")}})
            wrong += [f"peers {one} and {other}: {finding}" for finding in told["findings"]]
    return found, wrong


def audit(folder: Path, kills: int) -> tuple[dict[str, object], list[str]]:
    """Compare one run full of kills with undisturbed ones of several seeds."""
    struck, wrong = one_run(folder / "struck", AUDIT_SEEDS[0], kills)
    sums, lost = ledgers(folder / "struck")
    print(f"audit: {sums}", file=sys.stderr, flush=True)
    wrong += lost
    calm = []
    for seed in AUDIT_SEEDS:
        outcome, faults = one_run(folder / f"calm-{seed}", seed, 0)
        print(f"undisturbed, seed {seed}: {outcome['losses']}", file=sys.stderr, flush=True)
        calm.append(outcome)
        wrong += [f"undisturbed, seed {seed}: {fault}" for fault in faults]
    outcome = {"struck": struck, "ledgers": sums, "calm": calm}
    losses = [_loss(each) for each in calm]
    if None in losses or _loss(struck) is None:
        return outcome, [*wrong, "a run has no held-out loss"]
    known = [loss for loss in losses if loss is not None]
    mean, spread = statistics.mean(known), statistics.stdev(known)
    off = (_loss(struck) or 0.0) - mean
    if abs(off) > DEVIATIONS_MAX * spread:
        wrong.append(f"the held-out loss is off by {off:.3f}, where seeds differ by {spread:.3f}")
    return outcome | {"mean": mean, "stdev": spread, "off": off}, wrong


def _loss(outcome: dict[str, object]) -> float | None:
    losses = outcome["losses"]
    assert isinstance(losses, list)
    return float(losses[0]) if len(losses) == 1 else None


# from outside


def _run_trials(options: argparse.Namespace, folder: Path) -> int:
    kinds = options.kinds.split(",")
    done, wrong = trials(options.where, options.times, kinds, stay=options.back == "after", folder=folder)
    if options.json:
        rows = [asdict(trial) | {"within": trial.within} for trial in done]
        print(json.dumps({"where": options.where, "back": options.back, "trials": rows, "wrong": wrong}))
    else:
        print(table(done))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong or not all(trial.good for trial in done) else 0


def _run_audit(options: argparse.Namespace, folder: Path) -> int:
    outcome, wrong = audit(folder, options.times)
    print(json.dumps(outcome) if options.json else "\n".join(f"{key:<8} {value}" for key, value in outcome.items()))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", choices=("loopback", "namespaces"), default="loopback")
    parser.add_argument("--times", type=int, default=20, help="deaths of each kind; with --audit: in all")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--back", choices=("soon", "after"), default="after", help="when the dead start again")
    parser.add_argument("--links", type=LinkKind, choices=list(LinkKind), default=DEFAULT_LINKS)
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--seed", type=int, default=None, help="draw the same moments and victims again")
    parser.add_argument("--keep", type=Path, help="an empty folder for the journals; else they are thrown away")
    parser.add_argument("--json", action="store_true", help="print all trials as JSON")
    options = parser.parse_args()
    if set(options.kinds.split(",")) - set(KINDS):
        parser.error(f"--kinds: known are {', '.join(KINDS)}")
    random.seed(options.seed)
    os.environ[LINKS] = options.links
    signal.signal(signal.SIGTERM, leave)  # so that nothing is left running
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell switches it off for background jobs
    with TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        return _run_audit(options, folder) if options.audit else _run_trials(options, folder)


if __name__ == "__main__":
    sys.exit(main())
