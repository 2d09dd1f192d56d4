"""The trials of docs/convergence.md, in the order in which they are played: what is trained, on what, how.

All of them read the same samples in the same order and take the same number of tokens, whatever they exchange; one peer
alone (`solo`) gets an eighth of them. A trial is data: its run is made from a recipe of the project and the changes
named here, so that one line of the record is enough to play it again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from atoll.spec.load import load_run
from atoll.spec.run import Run

SIZE = {"dim": 512, "layers": 5, "heads": 8, "kv_heads": 8, "ffn": 1408}
"""16.1 million parameters besides the vocabulary."""
CONTEXT = 512
BATCH = 192
"""Samples of a step of all peers together, where a trial does not say otherwise."""
SAMPLES = 2040 * BATCH
"""In all: 200.5 million tokens; rounds of 30 and of 60 steps fit in."""
CHECKPOINT_EVERY = 6
"""Rounds; results are kept until a checkpoint has them, by every peer, and all peers share one memory here."""
WARM = 1 / 16
"""Part of the steps over which the rate rises."""
FLOOR = 0.05
"""Part of the peak rate that is left at the end."""


class How(StrEnum):
    """In which way a trial is played."""

    PLAIN = "plain"
    """One model in a plain loop, proven equal to the recipe `ddp`."""
    WORLD = "world"
    """Peers in the simulated world."""


class Trial(Struct, frozen=True, kw_only=True):
    """One training, and what is special about it."""

    name: str
    recipe: str
    peers: int
    how: How = How.WORLD
    batch: int = BATCH
    """Samples of a step of all peers together."""
    alone: int = 1
    """Of so many equal shares of the samples one is trained on."""
    every: int = 1
    """Steps between exchanges of the whole model."""
    fragments: int = 1
    """Parts in which it is exchanged, one after the other."""
    changes: dict[str, Any] = {}
    """Keys of the run file, by path."""
    seed: int = 0

    @property
    def rounds(self) -> int:
        return SAMPLES // self.batch // self.every * self.fragments

    @property
    def steps(self) -> int:
        return self.rounds * self.every // self.fragments


def run_of(trial: Trial, shards: Path) -> Run:
    """Return a trial's run."""
    warm = max(1, round(WARM * trial.steps))
    keys: dict[str, Any] = {
        "name": trial.name,
        "model.kind": "fresh",
        **{f"model.size.{key}": value for key, value in SIZE.items()},
        "data.context": CONTEXT,
        "data.source.kind": "shards",
        "data.source.path": str(shards.resolve()),
        "recipe.base": trial.recipe,
        "recipe.work.batch": trial.batch // trial.alone // trial.peers,
        "recipe.work.schedule.kind": "cosine",
        "recipe.work.schedule.warmup_steps": warm,
        "recipe.work.schedule.floor": FLOOR,
        "recipe.channel.outer.when.steps": trial.every,
        **({"recipe.channel.outer.when.count": trial.fragments} if trial.fragments > 1 else {}),
        "budget.rounds": trial.rounds,
        "membership.start_with": trial.peers,
        "membership.contributors_min": trial.peers,
        "upkeep.checkpoint_every": CHECKPOINT_EVERY,
        "seeds.model": trial.seed,
        "seeds.data": trial.seed,
        **trial.changes,
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.toml"
        file.write_text("".join(f"{path} = {json.dumps(value)}\n" for path, value in keys.items()))
        return load_run(file)


# the list

Changes = dict[str, Any]

CHANNEL = "recipe.channel.outer"
RATES = (2e-3, 4e-3, 1e-3, 8e-3)
"""Peak rates of DDP, likely ones first."""
SIGN = {
    f"{CHANNEL}.what.codec.kind": "sign",
    f"{CHANNEL}.what.result.kind": "sign",
    f"{CHANNEL}.what.residual.kind": "feedback",
    f"{CHANNEL}.what.residual.decay": 1.0,
    f"{CHANNEL}.what.owners.kind": "feedback",
    f"{CHANNEL}.whom.route.kind": "butterfly",
}
"""A bit an element both ways; what that leaves out of a contribution or of a result goes into the next."""
FINE_SIGN = {**SIGN, f"{CHANNEL}.what.codec.block": 512, f"{CHANNEL}.what.result.block": 512}
"""Likewise, with a magnitude for every 512 values, a row of most matrices: what did not move stays where it is."""
HOLD = {f"{CHANNEL}.what.residual.kind": "hold", f"{CHANNEL}.what.owners.kind": "feedback"}
"""What contributions leave out stays in their peers' own weights until it is sent: nobody learns it a second time."""
HELD_SIGN = {key: value for key, value in FINE_SIGN.items() if ".residual." not in key} | HOLD
HALVES = {
    f"{CHANNEL}.what.codec.kind": "fp16",
    f"{CHANNEL}.what.result.kind": "fp16",
    f"{CHANNEL}.what.residual.kind": "forget",
    f"{CHANNEL}.whom.route.kind": "butterfly",
}
"""Next to nothing is left out."""
ALONE_STEPS = {
    **HALVES,
    f"{CHANNEL}.merge.outer.lr": 1.0,
    f"{CHANNEL}.merge.outer.momentum": 0.0,
    f"{CHANNEL}.merge.outer.nesterov": False,
}
"""The outer step takes the way as it is: one peer then trains as if it exchanged with nobody."""
MUON = {"recipe.work.inner.adamw.lr": 2e-3}
"""Beside Muon, for what is not a matrix inside the model."""
MEAN = {f"{CHANNEL}.merge.combine.kind": "mean", f"{CHANNEL}.merge.combine.weights": "uniform"}
TEN_THOUSAND = 53
"""Values of a block of 4096 that are sent every 60 steps by owners too, for ten thousand times fewer bytes than DDP."""
ADAMW = {"recipe.work.inner.kind": "adamw", "recipe.work.clip": 1.0}
"""Recipes whose own inner optimizer is SGD are also played with the one all others have."""


def ddp(lr: float, batch: int, seed: int = 0, decay: float | None = None) -> Trial:
    """Return all peers' batches through one AdamW, perhaps with another decay than everybody's."""
    changes = {f"{CHANNEL}.merge.outer.lr": lr}
    if decay is not None:
        changes[f"{CHANNEL}.merge.outer.weight_decay"] = decay
    special = [] if decay is None else [f"firm{decay:g}"]
    name = _name("ddp", *special, f"b{batch}", f"lr{lr:g}", seed=seed)
    return Trial(name=name, recipe="ddp", peers=1, how=How.PLAIN, batch=batch, changes=changes, seed=seed)


def solo(lr: float, seed: int = 0) -> Trial:
    """Return one peer of eight with its own share."""
    changes = {f"{CHANNEL}.merge.outer.lr": lr}
    name = _name("solo", f"b{BATCH // 8}", f"lr{lr:g}", seed=seed)
    return Trial(name=name, recipe="ddp", peers=1, how=How.PLAIN, alone=8, changes=changes, seed=seed)


def delta(
    recipe: str,
    every: int,
    lr: float,
    changes: Changes | None = None,
    *,
    also: str = "",
    peers: int = 8,
    batch: int = BATCH,
    fragments: int = 1,
    seed: int = 0,
) -> Trial:
    """Return peers that exchange deltas every so many steps."""
    changes = {"recipe.work.inner.lr": lr, **(changes or {})}
    special = [*([also] if also else []), *([f"b{batch}"] if batch != BATCH else [])]
    name = _name(recipe, *special, f"n{peers}", f"h{every}", f"lr{lr:g}", seed=seed)
    return Trial(
        name=name,
        recipe=recipe,
        peers=peers,
        batch=batch,
        every=every,
        fragments=fragments,
        changes=changes,
        seed=seed,
    )


def sparseloco(every: int, lr: float, changes: Changes | None = None, **more: Any) -> Trial:
    """Return peers with SparseLoCo as its paper has it: the plain mean of all contributions."""
    return delta("sparseloco", every, lr, {**MEAN, **(changes or {})}, **more)


def outer(lr: float, momentum: float) -> Changes:
    """Return another outer rate and momentum."""
    return {f"{CHANNEL}.merge.outer.lr": lr, f"{CHANNEL}.merge.outer.momentum": momentum}


def bits(up: int, down: int) -> Changes:
    """Return bins for contributions and for results, fed back by peers and by owners.

    Contributions' errors are averaged over all peers, results' reach everybody: the same bytes are better spent there.
    """
    return {
        f"{CHANNEL}.what.codec.kind": "buckets",
        f"{CHANNEL}.what.codec.bits": up,
        f"{CHANNEL}.what.codec.width": 6.0,
        f"{CHANNEL}.what.residual.kind": "feedback",
        f"{CHANNEL}.what.result.kind": "buckets",
        f"{CHANNEL}.what.result.bits": down,
        f"{CHANNEL}.what.result.width": 6.0,
        f"{CHANNEL}.what.owners.kind": "feedback",
        f"{CHANNEL}.whom.route.kind": "butterfly",
    }


def muloco(every: int, changes: Changes, *, also: str, lr: float = 0.02, batch: int = 96, **more: Any) -> Trial:
    """Return Muon inside, at half the batch of most recipes."""
    return delta("muloco", every, lr, {**MUON, **changes}, also=also, batch=batch, **more)


def held(every: int, momentum: float = 0.5, changes: Changes | None = None, also: str = "", **more: Any) -> Trial:
    """Return a bit an element both ways, held back, with a calm outer step."""
    words = f"sign-held-outer1-{momentum:g}{also}"
    return muloco(every, {**HELD_SIGN, **outer(1.0, momentum), **(changes or {})}, also=words, **more)


def firm(decay: float, lr: float = 4e-3) -> Changes:
    """Return another decay of matrices, and another rate of what is none."""
    return {"recipe.work.inner.weight_decay": decay, "recipe.work.inner.adamw.lr": lr}


LONG_MEAN = {"recipe.work.inner.momentum": 0.97}
"""Muon steps as far whatever it is sure of: over more steps the mean of gradients says more."""


def keep(values: int) -> Changes:
    """Return so many values of each block of 4096."""
    return {f"{CHANNEL}.what.codec.keep": values}


def _name(*words: str, seed: int) -> str:
    return "-".join([*words, *([f"seed{seed}"] if seed else [])])


Scores = Mapping[str, float | None]
"""Bits per byte of what was played so far, by name; none: it failed."""
NOTHING: Scores = {}


def trials(scores: Scores = NOTHING) -> list[Trial]:
    """Return all of them, the most telling first; those at a best rate at the one that is best so far."""
    return [trial for trial, _ in _listed(scores)]


def due(scores: Scores) -> list[Trial]:
    """Return those that can be played: a best rate is known when all that decide about it were played."""
    return [trial for trial, settled in _listed(scores) if settled]


def _listed(scores: Scores) -> list[tuple[Trial, bool]]:
    """Return all trials in their order, and whether it is settled that they are those."""
    diloco = [delta("diloco", 30, lr) for lr in (2e-3, 4e-3, 1e-3)]
    fewer = _settled(diloco, scores, lambda lr: [delta("diloco", 30, lr, peers=peers) for peers in (4, 2)])
    firm = [[(trial, True) for trial in some] for some in (_first(diloco), _second(), _third(), _rest())]
    listed = [
        *firm[0],
        *((trial, True) for trial in EDGE),
        *((trial, True) for trial in FIRM),
        *_seeds_of_best([*NEAR, *EDGE, *FIRM], scores),
        *((trial, True) for tried in FEW.values() for trial in tried),
        *(pair for tried in FEW.values() for pair in _seeds_of_best(tried, scores)),
        *((trial, True) for trial in FOUR),
        *firm[1],
        *_settled(TWO, scores, lambda lr: [delta("diloco", 30, lr, batch=96, peers=2, seed=seed) for seed in SEEDS]),
        *_seeds_of_best([*THOUSAND, *HELD], scores),
        *_seeds_of_best([each for each in (*SIXTY, *STEADY) if "held" in each.name], scores),
        *fewer,
        *firm[2],
        *_at_best(diloco, scores),
        *firm[3],
    ]
    return [(trial, settled) for at, (trial, settled) in enumerate(listed) if _new(trial, listed[:at])]


SPARSE = [sparseloco(30, lr) for lr in (2e-3, 1e-3)]
BETWEEN = 2.8e-3
"""With a batch of 96 the rates that DiLoCo and DDP are best at are a factor of two apart; this lies between them."""
NEAR = [ddp(2e-3, 96), ddp(4e-3, 96), ddp(8e-3, 96), ddp(4e-3, 48), ddp(4e-3, 192), ddp(BETWEEN, 96)]
EDGE = [
    ddp(8e-3, 48),
    ddp(16e-3, 48),
    ddp(8e-3, 24),
    ddp(4e-3, 24),
    ddp(5.6e-3, 48),
    ddp(BETWEEN, 24),
    ddp(11.2e-3, 48),
]
"""The best of DDP's grid was at its edge: around that it is wider, and closer."""
FIRM = [ddp(8e-3, 48, decay=decay) for decay in (0.2, 0.05)]
"""DDP at its best, with twice and half the decay: Muon was given another, so DDP is too."""
ALONE = [solo(lr) for lr in (2e-3, 4e-3, 1e-3)]
SEEDS = (1, 2)
THOUSAND = [
    muloco(96, bits(2, 4), also="2-4bits"),
    muloco(80, bits(2, 3), also="2-3bits"),
    delta("diloco", 96, 2e-3, bits(2, 4), also="2-4bits", batch=96),
]
"""A thousand times fewer bytes than DDP, of few bits and fewer rounds."""
HELD = [held(34)]
"""As few, of one bit and more rounds."""
SIXTY = [
    held(136, batch=48),
    held(136, changes=firm(0.03), also="-firm0.03", batch=48),
    muloco(136, {**HALVES, **outer(1.0, 0.5), **firm(0.03)}, also="fp16-outer1-0.5-firm0.03", batch=48),
    held(136, changes=firm(0.1), also="-firm0.1", batch=48),
    held(136, changes=firm(0.06), also="-firm0.06", batch=48, lr=0.01),
    muloco(30, {**ALONE_STEPS, **firm(0.03)}, also="alone-firm0.03", batch=48, peers=1),
]
"""Four thousand times fewer bytes than DDP has at its best batch: sixty rounds, with a decay that counts."""
STEADY = [
    held(136, changes={**firm(0.06), **LONG_MEAN}, also="-firm0.06-m0.97", batch=48, lr=0.01),
    held(136, changes=firm(0.12), also="-firm0.12", batch=48, lr=0.005),
    muloco(136, {**HALVES, **outer(1.0, 0.5), **firm(0.06)}, also="fp16-outer1-0.5-firm0.06", batch=48, lr=0.01),
    held(136, changes={**firm(0.12), **LONG_MEAN}, also="-firm0.12-m0.97", batch=48, lr=0.005),
]
"""As many rounds, for peers whose own batches are small."""
TWO = [delta("diloco", 30, lr, batch=96, peers=2) for lr in (2e-3, 4e-3, BETWEEN)]
"""Two peers, each with half of a batch of 96: at the rate that DDP is best at with that, too."""
CALM = outer(1.0, 0.5)


def calm(peers: int, batch: int) -> Trial:
    """Return DiLoCo with twice its best rate and an outer step that makes less of it."""
    return delta("diloco", 30, 4e-3, CALM, also="outer1-0.5", batch=batch, peers=peers)


FEW = {
    2: [TWO[0], delta("diloco", 30, 2e-3, batch=48, peers=2), calm(2, 48), calm(2, 96)],
    4: [delta("diloco", 30, 2e-3, batch=96, peers=4), calm(4, 48), calm(4, 96)],
}
"""Two and four peers at DDP's best batch, and with a calm outer step, which leaves room for a higher inner rate."""

FOUR = [delta("diloco", 30, 2e-3, batch=48, peers=4, seed=seed) for seed in (0, *SEEDS)]
"""Four peers where two turned out to be best."""


def _first(diloco: Sequence[Trial]) -> list[Trial]:
    """Where the scale begins and ends, and the claims on it; then DiLoCo by rates, exchange beside training."""
    return [
        diloco[0],
        SPARSE[0],
        sparseloco(60, 2e-3, keep(32), also="k32"),
        delta("sparse-butterfly", 30, 2e-3),
        *ALONE,
        *NEAR,
        *diloco[1:],
        delta("sparse-butterfly", 60, 2e-3, keep(TEN_THOUSAND), also=f"k{TEN_THOUSAND}"),
        delta("eager", 30, 2e-3),
        delta("streaming", 30, 2e-3, fragments=3),
    ]


def _second() -> list[Trial]:
    """After those: a bit for a value instead of few values, more rounds of fewer samples; then Muon inside."""
    return [
        delta("diloco", 34, 2e-3, SIGN, also="sign"),
        delta("diloco", 30, 2e-3, batch=96),
        *(delta("diloco", 30, 2e-3, batch=96, peers=peers) for peers in (2, 4)),
        muloco(30, HALVES, also="fp16"),
        *(delta("diloco", 30, 2e-3, batch=96, seed=seed) for seed in SEEDS),
        *(delta("diloco", 30, 2e-3, batch=96, peers=peers, seed=seed) for seed in SEEDS for peers in (2, 4)),
        THOUSAND[0],
        muloco(136, FINE_SIGN, also="sign512"),
        *THOUSAND[1:],
        muloco(30, ALONE_STEPS, also="alone", peers=1),
        HELD[0],
        *(held(34, seed=seed) for seed in SEEDS),
        held(136),
        muloco(136, HALVES, also="fp16"),
        TWO[1],
        delta("diloco", 34, 2e-3, {**HELD_SIGN, **CALM}, also="sign-held-outer1-0.5", batch=96),
        TWO[2],
        muloco(136, {**HALVES, **CALM}, also="fp16-outer1-0.5"),
        *SIXTY,
        *STEADY,
        *(muloco(30, HALVES, also="fp16", seed=seed) for seed in SEEDS),
    ]


def _third() -> list[Trial]:
    """Other recipes at eight peers; a calmer outer step."""
    return [
        delta("opendiloco", 30, 2e-3),
        delta("slowmo", 30, 0.1),
        delta("fedavg", 30, 2e-3, ADAMW, also="adamw"),
        sparseloco(30, 2e-3, batch=96),
        *SPARSE[1:],
        delta("eager", 30, 2e-3, outer(0.4, 0.5), also="outer0.4-0.5"),
        delta("eager", 30, 2e-3, peers=2),
    ]


def _seeds_of_best(tried: Sequence[Trial], scores: Scores) -> list[tuple[Trial, bool]]:
    """Other seeds of the best of some: a claim names it."""
    best, settled = _best(tried, scores), all(each.name in scores for each in tried)
    return [(replace(best, name=_name(best.name, seed=seed), seed=seed), settled) for seed in SEEDS]


def _at_best(diloco: Sequence[Trial], scores: Scores) -> list[tuple[Trial, bool]]:
    """At the best rate of what has one by now: other seeds of what a claim names."""
    return [
        *_settled(ALONE, scores, lambda lr: [solo(lr, seed) for seed in SEEDS]),
        *_settled(diloco, scores, lambda lr: [delta("diloco", 30, lr, seed=seed) for seed in SEEDS]),
        *_settled(SPARSE, scores, lambda lr: [sparseloco(30, lr, seed=seed) for seed in SEEDS]),
        *_settled(SPARSE, scores, lambda lr: [delta("sparse-butterfly", 30, lr)]),
        *_settled(SPARSE, scores, lambda lr: [delta("sparse-butterfly", 30, lr, seed=seed) for seed in SEEDS]),
    ]


def _rest() -> list[Trial]:
    """The rest of DDP's grid; more tries, so that none is judged by its first."""
    return [
        *(ddp(lr, batch) for batch in (96, 48, 192) for lr in RATES),
        sparseloco(60, 2e-3, keep(13), also="k13"),
        delta("fedavg", 30, 0.1),
        sparseloco(30, 4e-3),
        sparseloco(60, 1e-3, keep(32), also="k32"),
        solo(8e-3),
        *(sparseloco(60, 2e-3, keep(32), also="k32", seed=seed) for seed in SEEDS),
    ]


def _best(tried: Sequence[Trial], scores: Scores) -> Trial:
    """Return the best of some trials so far, the first where none was played."""
    return min(tried, key=lambda trial: _score(trial, scores))


def _score(trial: Trial, scores: Scores) -> float:
    score = scores.get(trial.name)
    return math.inf if score is None else score


def _settled(
    tried: Sequence[Trial], scores: Scores, later: Callable[[float], Sequence[Trial]]
) -> list[tuple[Trial, bool]]:
    """Return trials at the best rate of others, and whether all of those were played."""
    return [(trial, all(one.name in scores for one in tried)) for trial in later(_rate(_best(tried, scores)))]


def _rate(trial: Trial) -> float:
    """Return a trial's peak rate."""
    inner = trial.changes.get("recipe.work.inner.lr")
    return float(trial.changes[f"{CHANNEL}.merge.outer.lr"] if inner is None else inner)


def _new(trial: Trial, before: Sequence[tuple[Trial, bool]]) -> bool:
    return all(trial.name != other.name for other, _ in before)
