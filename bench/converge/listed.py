"""All trials of docs/convergence.md, in the order in which they are played, and which of them can be played now.

What follows at a best rate, and other seeds of what a claim names, depends on what was played before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from bench.converge.record import RECORD, done, scores
from bench.converge.trial import BATCH, Trial
from bench.converge.tries import (
    ADAMW,
    AHEAD,
    ALIKE,
    ALONE_STEPS,
    CALM,
    CHANNEL,
    FADING,
    FINE_SIGN,
    HALVES,
    HELD_SIGN,
    KEPT,
    PARTS,
    SHARED,
    SIGN,
    TEN_THOUSAND,
    THREE,
    TURNED,
    Changes,
    bits,
    ddp,
    decayed,
    delta,
    finer_first,
    firm,
    held,
    keep,
    longer,
    mean,
    muloco,
    named,
    outer,
    solo,
    sparseloco,
    words,
)
from msgspec.structs import replace

from atoll.errors import SpecError

Scores = Mapping[str, float | None]
"""Bits per byte of what was played so far, by name; none: it failed."""
NOTHING: Scores = {}
RATES = (2e-3, 4e-3, 1e-3, 8e-3)
"""Peak rates of DDP, likely ones first."""


def trials(scores: Scores = NOTHING) -> list[Trial]:
    """Return all of them, the most telling first; those at a best rate at the one that is best so far."""
    return [trial for trial, _ in _listed(scores)]


def due(scores: Scores) -> list[Trial]:
    """Return those that can be played: a best rate is known when all that decide about it were played."""
    return [trial for trial, settled in _listed(scores) if settled]


def trial_named(name: str) -> Trial:
    """Return the trial of such a name, as things stand in the record; raises `SpecError`."""
    for trial in trials(scores(done(RECORD))):
        if trial.name == name:
            return trial
    raise SpecError(f"{name}: there is no such trial", hint="`python -m bench.converge --list` has their names")


def _listed(scores: Scores) -> list[tuple[Trial, bool]]:
    """Return all trials in their order, and whether it is settled that they are those."""
    diloco = [delta("diloco", 30, lr) for lr in (2e-3, 4e-3, 1e-3)]
    fewer = _settled(diloco, scores, lambda lr: [delta("diloco", 30, lr, peers=peers) for peers in (4, 2)])
    firm = [[(trial, True) for trial in some] for some in (_first(diloco), _second(), _third(), _rest())]
    listed = [
        *firm[0],
        *((trial, True) for trial in EDGE),
        *((trial, True) for trial in (*FIRM, *ALONE_LONGER)),
        *((trial, True) for seed in MORE_SEEDS for trial in _two_best(seed)),
        *((ddp(5.2e-3, 64, decay=0.25, seed=seed), True) for seed in (*SEEDS, *MORE_SEEDS)),
        *((ddp(lr, 96, decay=0.3, seed=seed), True) for lr in (4.4e-3, 4.8e-3) for seed in SEEDS),
        *((ddp(5.6e-3, 48, decay=0.2, beta2=0.99, seed=seed), True) for seed in SEEDS),
        *((ddp(5.6e-3, 96, decay=0.3, seed=seed), True) for seed in SEEDS),
        *((ddp(5.6e-3, 48, decay=0.2, beta2=0.98, seed=seed), True) for seed in SEEDS),
        *_seeds_of_best([*NEAR, *EDGE, *FIRM], scores),
        *((trial, True) for tried in FEW.values() for trial in tried),
        *(pair for tried in FEW.values() for pair in _seeds_of_best(tried, scores)),
        *((trial, True) for trial in FOUR),
        *((trial, True) for trial in (*FIRMER, *DECAYED)),
        *firm[1],
        *_settled(TWO, scores, lambda lr: [delta("diloco", 30, lr, batch=96, peers=2, seed=seed) for seed in SEEDS]),
        *_seeds_of_best([*THOUSAND, *HELD], scores),
        *_seeds_of_best(
            [
                each
                for each in (*SIXTY, *STEADY, *FEWER, *TURNS, *LARGER, *FADES, *LOWER, *GROWN, *BETTER, *LARGE)
                if "held" in each.name
            ],
            scores,
        ),
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
FIRM = [
    *(ddp(8e-3, 48, decay=decay) for decay in (0.2, 0.05, 0.4)),
    ddp(4e-3, 24, decay=0.2),
    *(ddp(lr, 48, decay=0.2) for lr in (5.6e-3, 11.2e-3, 4e-3)),
    ddp(4e-3, 96, decay=0.2),
    ddp(5.6e-3, 96, decay=0.2),
    ddp(5.6e-3, 48, decay=0.3),
    ddp(4e-3, 96, decay=0.3),
    ddp(5.6e-3, 96, decay=0.3),
    ddp(4e-3, 96, decay=0.4),
    ddp(6.7e-3, 48, decay=0.2),
    ddp(5.6e-3, 48, decay=0.15),
    ddp(4e-3, 48, decay=0.3),
    ddp(8e-3, 96, decay=0.2),
    ddp(5.6e-3, 48, decay=0.2, beta2=0.98),
    ddp(5.6e-3, 96, decay=0.3, beta2=0.98),
    ddp(6.7e-3, 96, decay=0.3),
    ddp(5.6e-3, 96, decay=0.4),
    ddp(4.8e-3, 48, decay=0.2),
    ddp(5.6e-3, 48, decay=0.25),
    ddp(4.8e-3, 96, decay=0.3),
    ddp(5.6e-3, 48, decay=0.2, beta2=0.99),
    ddp(4e-3, 96, decay=0.3, beta2=0.98),
    ddp(5.6e-3, 48, decay=0.2, beta2=0.995),
    ddp(4.8e-3, 96, decay=0.3, beta2=0.99),
    ddp(4.8e-3, 96, decay=0.35),
    ddp(4.8e-3, 96, decay=0.25),
    ddp(4.4e-3, 96, decay=0.3),
    ddp(5.2e-3, 64, decay=0.25),
    ddp(4.6e-3, 64, decay=0.25),
    ddp(5.2e-3, 64, decay=0.2),
    ddp(5.2e-3, 96, decay=0.3),
    ddp(5.2e-3, 96, decay=0.25),
    ddp(4.4e-3, 96, decay=0.35),
    ddp(4.8e-3, 64, decay=0.3),
    ddp(5.6e-3, 64, decay=0.25),
    ddp(4.8e-3, 96, decay=0.3, beta2=0.98),
]
"""DDP at its best with other decays, and with the best of them at other batches and rates and with a longer memory."""
ALONE = [solo(lr) for lr in (2e-3, 4e-3, 1e-3)]
ALONE_LONGER = [solo(lr, batch=batch) for batch in (48, 96) for lr in (1e-3, 2e-3)]
"""In as many steps as DDP has at its two best batches."""
SEEDS = (1, 2)
MORE_SEEDS = (3, 4, 5)
"""Of DDP's two best, which three do not tell apart."""
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
    muloco(136, {**HALVES, **CALM, **firm(0.03)}, also="fp16-outer1-0.5-firm0.03", batch=48),
    held(136, changes=firm(0.1), also="-firm0.1", batch=48),
    held(136, changes=firm(0.06), also="-firm0.06", batch=48, lr=0.01),
    muloco(30, {**ALONE_STEPS, **firm(0.03)}, also="alone-firm0.03", batch=48, peers=1),
]
"""Four thousand times fewer bytes than DDP has at its best batch: sixty rounds, with a decay that counts."""
STEADY = [
    held(136, changes={**firm(0.06), **mean(0.97)}, also="-firm0.06-m0.97", batch=48, lr=0.01),
    held(136, changes=firm(0.12), also="-firm0.12", batch=48, lr=0.005),
]
"""As many rounds, for peers whose own batches are small."""
TWICE = {**firm(0.086, lr=5.6e-3), **mean(0.95)}
"""For twice the batch in half the steps: as much forgotten in all, and as many samples in a mean."""
TWICE_AGAIN = {**firm(0.12, lr=5.6e-3), **mean(0.95)}
"""For twice that: as much forgotten, and a mean of more samples."""
FEWER = [
    held(68, changes=TWICE, also="-firm0.086-m0.95", lr=0.014),
    held(68, changes={**TWICE, **PARTS}, also="-firm0.086-m0.95-parts4", lr=0.014, fragments=4),
    held(68, changes={**TWICE, **words(5.6e-3, 0.25)}, also="-firm0.086-m0.95-words0.25", lr=0.014),
]
"""Sixty rounds again, of fewer and larger steps; also in quarters of the model, and with words forgotten sooner."""
ROUNDS = [
    muloco(68, {**HALVES, **CALM, **TWICE}, also="fp16-outer1-0.5-firm0.086-m0.95", lr=0.014),
    held(34, changes=firm(0.06), also="-firm0.06"),
]
"""What as many rounds come to where next to nothing is left out, and twice as many of a bit."""
TURNS = [
    held(68, changes={**TWICE, **TURNED}, also="-turned-firm0.086-m0.95", lr=0.014),
    held(34, changes={**firm(0.17), **TURNED}, also="-turned-firm0.17", batch=192, lr=0.014),
]
"""Sixty rounds of a held bit in a basis that each chunk draws, at the best batch so far and at twice that."""
LARGER = [
    held(34, changes=firm(0.12, lr=5.6e-3), also="-firm0.12", batch=192),
    held(68, changes=firm(0.06), also="-firm0.06"),
    held(34, changes=firm(0.17), also="-firm0.17", batch=192, lr=0.014),
]
"""Sixty rounds once more: of twice the batch again, there at a lower rate too; with what a hundred and twenty had."""
FADES = [
    held(68, changes={**TWICE, **FADING}, also="-fade0.6-0.9-firm0.086-m0.95", lr=0.014),
    held(34, changes={**TWICE_AGAIN, **FADING}, also="-fade0.6-0.9-firm0.12-m0.95", batch=192),
]
"""Sixty rounds in which what a bit leaves out is not kept for ever: as the best so far, and with twice its batch."""
FADED = held(34, changes={**firm(0.06), **FADING}, also="-fade0.6-0.9-firm0.06")
"""Twice as many."""
HALF = words(2.8e-3, 0.2)
"""For what is no matrix: an outer step that makes twice of it what DDP is best at."""
LOWER = [
    held(68, changes={**firm(0.12), **mean(0.95), **HALF}, also="-firm0.12-m0.95-words0.2", lr=0.01),
    held(68, changes={**TWICE, **HALF}, also="-firm0.086-m0.95-words0.2", lr=0.014),
    held(68, changes={**firm(0.12), **mean(0.97), **HALF}, also="-firm0.12-m0.97-words0.2", lr=0.01),
    held(68, changes={**firm(0.06), **mean(0.95), **HALF}, also="-firm0.06-m0.95-words0.2", lr=0.01),
]
"""Sixty rounds at rates that come, by the outer step, to what one model with all of the batch is best at."""
GROWN = [
    held(41, changes={**TWICE, **longer(1.0, 120)}, also="-longer-firm0.086-m0.95", lr=0.014, grown=60),
    held(30, changes={**TWICE, **longer(2.0, 204)}, also="-longer2-firm0.086-m0.95", lr=0.014, grown=60),
]
"""Sixty rounds that grow, with the inverse of the rate or with its square."""


def _two_best(seed: int) -> list[Trial]:
    """Return DDP's best with a batch of 96 and with one of 48."""
    return [ddp(4.8e-3, 96, decay=0.3, seed=seed), ddp(5.6e-3, 48, decay=0.2, seed=seed)]


ROUND_SAMPLES = 68 * 96
"""Of which sixty rounds are a training."""
THREE_SAMPLES = 86 * 96
"""Of which 47 are: as many bytes, where results have three levels in place of two."""


def quick(
    name: str,
    changes: Changes,
    *,
    lr: float = 0.014,
    decay: float = 0.086,
    memory: float = 0.95,
    batch: int = 96,
    samples: int = ROUND_SAMPLES,
    seed: int = 0,
) -> Trial:
    """Return rounds of so many samples whose outer step answers at once: as far in the end, with less of what was."""
    changes = {**firm(decay, lr=5.6e-3), **mean(memory), **changes}
    words, every = f"{name}-firm{decay:g}-m{memory:g}", samples // batch
    return held(every, 0.3, changes, words, rate=1.4, lr=lr, batch=batch, seed=seed)


BETTER = [
    quick("-alike-ahead", {**ALIKE, **AHEAD}),
    held(68, changes={**TWICE, **ALIKE, **AHEAD}, also="-alike-ahead-firm0.086-m0.95", lr=0.014),
    quick("-ahead", AHEAD),
    quick("-alike", ALIKE),
    quick("-alike-ahead", {**ALIKE, **AHEAD}, lr=0.02, decay=0.06),
    quick("-alike-ahead", {**ALIKE, **AHEAD}, memory=0.9),
]
"""Sixty rounds with a better Muon, and an outer step that adds less to what a bit brings late."""


def large(decay: float, changes: Changes | None = None, *, also: str = "", **more: int) -> Trial:
    """Return the best of them with twice the batch in half the steps."""
    changes = {**ALIKE, **AHEAD, **(changes or {})}
    return quick(f"-alike-ahead{also}", changes, lr=0.02, decay=decay, batch=BATCH, **more)


LARGE = [large(0.12), large(0.17), large(0.12, THREE, also="-three", samples=THREE_SAMPLES)]
"""With as much decay in all, with more; and with fewer rounds of finer results."""
THIRTY = [
    *(large(0.12, samples=2 * ROUND_SAMPLES, seed=seed) for seed in (0, *SEEDS)),
    muloco(
        68,
        {**HALVES, **outer(1.4, 0.3), **TWICE_AGAIN, **ALIKE, **AHEAD},
        also="fp16-outer1.4-0.3-alike-ahead-firm0.12-m0.95",
        batch=BATCH,
    ),
]
"""Half as many rounds of the best of these, of a bit and of all there is."""


EARLIER = {**firm(0.12, lr=4.8e-3), **mean(0.95), **ALIKE, **AHEAD, **KEPT, **finer_first(5)}
SEEN = [
    held(
        68,
        0.3,
        EARLIER,
        "-alike-ahead-kept0.7-first5-firm0.12-m0.95",
        rate=1.65,
        lr=0.017,
        batch=BATCH,
        fragments=2,
        seed=seed,
    )
    for seed in (0, *SEEDS)
]
"""Thirty rounds of a bit, of which results are rounded by what layers are given and what is learnt first is finer."""


def forty_five(batch: int, every: int, lr: float, decay: float, seed: int) -> Trial:
    """Return larger batches: rates by their root, as much decay in all, rounds as long as in the best of sixty."""
    changes = {**ALIKE, **AHEAD}
    return quick("-alike-ahead", changes, lr=lr, decay=decay, batch=batch, samples=every * batch, seed=seed)


FORTY_FIVE = [
    *(forty_five(256, 34, 0.023, 0.14, seed) for seed in (0, *SEEDS)),
    *(forty_five(384, 23, 0.028, 0.17, seed) for seed in (0, 1)),
]
"""With a batch of 256 and, in rounds that are shorter still, with 384; of the worse of the two no third seed.

They have fewer steps than the protocol asks for, which was seen too late: no claim may name them.
"""

LONG_STEP = {**firm(0.17), **mean(0.95), **ALIKE, **AHEAD}
"""For an outer step that goes 1.4 times as far: inside rates that are so much lower, and as much decay in all."""
FARTHER = [
    held(68, 0.3, LONG_STEP, "-alike-ahead-firm0.17-m0.95", rate=2.0, lr=0.014, batch=BATCH),
    large(0.12, SHARED, also="-shared0.25", samples=2 * ROUND_SAMPLES),
    held(68, 0.3, {**LONG_STEP, **SHARED}, "-alike-ahead-shared0.25-firm0.17-m0.95", rate=2.0, lr=0.014, batch=BATCH),
]
"""Thirty rounds of a bit once more: shorter inner and longer outer steps, shared rests of results, and both."""
TWO = [delta("diloco", 30, lr, batch=96, peers=2) for lr in (2e-3, 4e-3, BETWEEN)]
"""Two peers, each with half of a batch of 96: at the rate that DDP is best at with that, too."""


def calm(peers: int, batch: int) -> Trial:
    """Return DiLoCo with twice its best rate and an outer step that makes less of it."""
    return delta("diloco", 30, 4e-3, CALM, also="outer1-0.5", batch=batch, peers=peers)


FEW = {
    2: [TWO[0], delta("diloco", 30, 2e-3, batch=48, peers=2), calm(2, 48), calm(2, 96)],
    4: [delta("diloco", 30, 2e-3, batch=96, peers=4), calm(4, 96)],
}
"""Two and four peers at DDP's best batch, and with a calm outer step, which leaves room for a higher inner rate."""

DECAYED = [
    delta("diloco", 30, 2e-3, decayed(0.2), also="firm0.2", batch=48, peers=2),
    *(
        delta("diloco", 30, 1e-3, decayed(0.2), also="firm0.2", batch=batch, peers=peers, seed=seed)
        for batch, peers in ((48, 2), (96, 8), (48, 4))
        for seed in (0, *SEEDS)
    ),
]
"""DiLoCo where it was best, with the decay that turned out to be DDP's; that is too much there, so at half the rate."""
FIRMER = [
    *(delta("diloco", 30, 7e-4, decayed(0.3), also="firm0.3", batch=96, seed=seed) for seed in (0, *SEEDS)),
    delta("diloco", 30, 1e-3, decayed(0.3), also="firm0.3", batch=96),
]
"""Eight peers with what DDP has come to since at that batch: a seventh of its rate, and its decay."""

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
        *FEWER,
        *ROUNDS,
        *TURNS,
        *LARGER,
        *FADES,
        *LOWER,
        *GROWN,
        *BETTER,
        *LARGE,
        *(large(0.12, seed=seed) for seed in SEEDS),
        *THIRTY,
        *FARTHER,
        *FORTY_FIVE,
        *SEEN,
        FADED,
        *(held(34, changes=firm(0.06), also="-firm0.06", seed=seed) for seed in SEEDS),
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
    return [(replace(best, name=named(best.name, seed=seed), seed=seed), settled) for seed in SEEDS]


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
