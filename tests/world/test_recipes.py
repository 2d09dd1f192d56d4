"""Every shipped recipe: four real processes, and the same bits as in virtual time.

A third of them in `make test`, all of them in `make long`.
"""

from __future__ import annotations

import pytest

from atoll import journal
from atoll.cli.machine import Machine, build_torch, pinned
from atoll.journal import Line
from atoll.net.transport import LinkKind
from atoll.sim.scenario import Outcome, Scenario, key_of, simulate
from atoll.spec.axes.control import Nobody
from atoll.spec.axes.pace import StandIn
from atoll.spec.axes.what import Feedback
from atoll.spec.axes.when import TargetBatch
from atoll.spec.axes.whom import Regions, Rings, Trees
from atoll.spec.axes.work import BySpeed
from atoll.spec.fleet import Device
from atoll.spec.fleet import Machine as Imagined
from atoll.spec.load import load_recipe, recipe_names
from atoll.spec.run import Run
from atoll.spec.variant import variants
from atoll.swarm.routes.circles import weighs_lines
from tests.few import few_of
from tests.world.shore import Peer, Shore, one_history

SEED, PEERS, ROUNDS = 23, 4, 5
QUICK = (
    "decoupled",
    "dedloc",
    "demo-sgd",
    "desloc",
    "dlion",
    "eager",
    "halos",
    "intellect-1",
    "netstorm",
    "noloco",
    "powersgd",
    "sgp",
    "sparse-butterfly",
    "sparseloco",
    "sparta-diloco",
    "streaming",
)
"""A third of them: of every barrier, overlap and route, in circles, regions and over links, with masses, in fragments,
of two channels or two phases, with feedback, frequencies and moments."""


def run_of(shore: Shore, recipe: str) -> Run:
    """Return a run under a recipe: of three layers, so that it can go in three fragments."""
    path = shore.run_file(rounds=ROUNDS, start_with=PEERS, contributors_min=PEERS, steps=6)
    sets = ["model.size.layers=3"]
    if isinstance(load_recipe(recipe).channel["outer"].when, TargetBatch):
        sets.append(f"{recipe}:recipe.channel.outer.when.samples=24")
    if load_recipe(recipe).channel["outer"].mesh is not None:  # so that somebody teaches
        sets.append(f"{recipe}:recipe.channel.outer.whom.pattern.teach_every=2")
    if load_recipe(recipe).channel["outer"].regional is not None:  # so that a region tells
        sets.append(f"{recipe}:recipe.channel.outer.home.pushes=4")
    if len(load_recipe(recipe).channel) > 1:  # so that each has a round
        sets.append(f"{recipe}:recipe.channel.outer.when.steps=2")
    (variant,) = variants(path, [recipe], sets)
    return pinned(variant.run, Machine())


@pytest.mark.parametrize("recipe", few_of(recipe_names(), QUICK))
def test_four_processes_come_to_the_anchors_that_virtual_time_comes_to(shore: Shore, recipe: str) -> None:
    run = run_of(shore, recipe)
    peers = really(shore, run)
    real = anchors(lines_of(peers))
    assert {version for _, version in real} == set(range(1, ROUNDS + 1))
    whose = {peer for peer, _ in real}
    for peer in whose:
        assert len({real[peer, version] for version in range(1, ROUNDS + 1)}) == ROUNDS, "every round moved the anchor"
    assert len({real[peer, ROUNDS] for peer in whose}) == 1, "all have one model in the end"
    if run.recipe.channel["outer"].common:
        one_history(peers)
    quota, when = run.recipe.work.quota, run.recipe.channel["outer"].when
    by_speed = isinstance(when, TargetBatch) or isinstance(quota, BySpeed)
    by_lines = weighs_lines(run.recipe.channel["outer"].whom)
    along_links = isinstance(run.recipe.channel["outer"].whom.route, Trees | Rings | Regions)
    lent = isinstance(run.recipe.channel["outer"].late, StandIn)  # which depends on who is how fast
    turned = not isinstance(run.recipe.control, Nobody)
    # In what is measured this machine and that one differ, and sums along other trees are rounded in another order.
    measured = by_speed or by_lines or along_links or lent or turned
    if not measured:
        outcome = imagined(run)
        keep = isinstance(run.recipe.channel["outer"].what.owners, Feedback)  # what they left out of their own chunks
        if not keep or owners(lines_of(peers)) == owners(outcome.lines):
            assert anchors(outcome.lines) == real


@pytest.mark.long
def test_what_owners_see_of_inputs_is_the_same_in_processes_and_in_virtual_time(shore: Shore) -> None:
    path = shore.run_file(rounds=ROUNDS, start_with=PEERS, contributors_min=PEERS, steps=6)
    rounding = "recipe.channel.outer.what.rounding={kind='by-inputs'}"
    seen, nearest = (
        pinned(variants(path, ["held-bit"], sets)[0].run, Machine()) for sets in ([f"held-bit:{rounding}"], [])
    )
    peers = really(shore, seen)
    real, outcome = anchors(lines_of(peers)), imagined(seen)
    assert owners(lines_of(peers)) == owners(outcome.lines), "else what they left out is elsewhere"
    assert anchors(outcome.lines) == real
    assert anchors(imagined(nearest).lines)[min(real)] != real[min(real)]


def lines_of(peers: list[Peer]) -> list[Line]:
    return [line for peer in peers for line in peer.lines()]


def owners(lines: list[Line]) -> list[tuple[int, object]]:
    """Return since which rounds who owned what, which follows measured rates, and whose shares were taken over."""
    kinds = journal.SharesChanged | journal.RoundReplanned
    told = [line.event for line in lines if isinstance(line.event, kinds)]
    return [(event.version, event.shares if isinstance(event, journal.SharesChanged) else event.why) for event in told]


def really(shore: Shore, run: Run) -> list[Peer]:
    """Train with real processes, and return them when all have ended well."""
    shore.warm, shore.links = True, LinkKind.AUTO
    for place in range(PEERS):
        shore.give(shore.folder / str(place), key_of(SEED, place))
    first = shore.organise(run, shore.folder / "0")
    ticket = first.ticket()
    peers = [first, *(shore.join(ticket, shore.folder / str(place)) for place in range(1, PEERS))]
    assert [peer.ended() for peer in peers] == [0] * PEERS
    return peers


def imagined(run: Run) -> Outcome:
    here = Machine(device="cpu", threads=1)
    desk = Imagined(
        name="desk", region="here", device=Device(flop_s=1e8), up_bytes_s=1e7, down_bytes_s=1e7, disk_bytes=10**9
    )
    return simulate(
        Scenario(
            run=run,
            machines=[desk] * PEERS,
            delays_s={("here", "here"): 1e-3},
            seed=SEED,
            build=lambda run: build_torch(run, here),
        )
    )


def anchors(lines: list[Line]) -> dict[tuple[str, int], str]:
    """Return what everybody held after every round."""
    applied = [(line.peer, line.event) for line in lines if isinstance(line.event, journal.RoundApplied)]
    return {(peer, event.version): event.anchor for peer, event in applied}
