"""Predicted bytes beside bytes counted: the formula is held to what the same peers move in the simulated world."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.plan.lines import MEMBERS_MAX, Line, lines_of
from atoll.plan.traffic import every_step_fp32, traffic
from atoll.sim.faults import SlowCompute
from atoll.sim.scenario import key_of
from atoll.spec.axes.codec import Codec, Significance, Threshold
from atoll.spec.axes.control import Auto, Knobs, Nobody
from atoll.spec.axes.optimizer import AdamW, Muon
from atoll.spec.axes.what import LowRank
from atoll.spec.axes.when import Every
from atoll.spec.axes.whom import All, AllGather, Butterfly
from atoll.spec.fleet import expand, load_fleet
from atoll.spec.knobs import turned
from atoll.spec.load import load_recipe, recipe_names, recipe_text
from atoll.spec.recipe import Recipe
from atoll.swarm.policy import forecast
from atoll.sync.codec import wire_bytes
from atoll.sync.grid import grid_of
from tests.peer.world import counting_run, events, once, play, round_bytes, sized

OVERHEAD = 0.02
ROUNDS = 3
"""As many as a model may have fragments here: they are not of the same size."""


def with_group(recipe: Recipe, group: int) -> Recipe:
    """Return a recipe whose members exchange directly in groups of at most so many."""
    channel = recipe.channel["outer"]
    route = Butterfly(group=group)
    return replace(recipe, channel={"outer": replace(channel, whom=replace(channel.whom, route=route))})


@pytest.mark.parametrize(
    ("name", "parameters", "peers"),
    [
        ("ddp", 300_000, 4),
        pytest.param("deco", 300_000, 3, marks=pytest.mark.long),
        ("diloco", 300_000, 3),
        pytest.param("opendiloco", 600_000, 3, marks=pytest.mark.long),
        pytest.param("muloco", 2_000_000, 3, marks=pytest.mark.long),
        pytest.param("sparseloco", 4_000_000, 3, marks=pytest.mark.long),
        pytest.param("sparse-butterfly", 8_000_000, 3, marks=pytest.mark.long),
        pytest.param("held-bit", 4_000_000, 3, marks=pytest.mark.long),
        pytest.param("demo-sgd", 8_000_000, 3, marks=pytest.mark.long),
        pytest.param("intellect-1", 1_000_000, 4, marks=pytest.mark.long),
        pytest.param("eager", 300_000, 3, marks=pytest.mark.long),
        *(
            pytest.param(name, 300_000, 3, marks=pytest.mark.long)
            for name in ("fedavg", "slowmo", "dga", "co-learning", "qsr")
        ),
        pytest.param("dedloc", 600_000, 3, marks=pytest.mark.long),
        pytest.param("howcw", 600_000, 3, marks=pytest.mark.long),
        ("auto", 600_000, 3),
        ("sagq", 300_000, 3),
        pytest.param("hierarchical", 1_000_000, 6, marks=pytest.mark.long),
        pytest.param("loscar", 1_200_000, 3, marks=pytest.mark.long),
        pytest.param("streaming", 3_000_000, 3, marks=pytest.mark.long),
        pytest.param("stellatrain", 4_000_000, 3, marks=pytest.mark.long),
    ],
)
def test_predicted_bytes_are_those_counted_within_two_percent(name: str, parameters: int, peers: int) -> None:
    """Where a policy turns knobs, as the run begins: `auto` with fp16, `sagq` with 32 bits for everybody."""
    run = counting_run(name, rounds=ROUNDS, start_with=peers, checkpoint_every=100)
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    counted = [events(outcome, journal.TrafficCounted, peer=peer)[-1] for peer in range(peers)]
    sent = max(each.round_sent_bytes for each in counted) / ROUNDS
    control = sum(each.sent_bytes - each.round_sent_bytes for each in counted)
    received = (sum(each.received_bytes for each in counted) - control) / ROUNDS
    assert predicted.worst.sent_bytes == pytest.approx(sent, rel=OVERHEAD)
    assert sum(each.received_bytes for each in predicted.moved) == pytest.approx(received, rel=OVERHEAD)


@pytest.mark.parametrize(
    ("name", "rung", "parameters"),
    [
        ("stellatrain", 0, 300_000),
        pytest.param("stellatrain", 2, 1_000_000, marks=pytest.mark.long),
        pytest.param("stellatrain", 5, 6_000_000, marks=pytest.mark.long),
        pytest.param("deco", 1, 300_000, marks=pytest.mark.long),
        pytest.param("deco", 3, 1_000_000, marks=pytest.mark.long),
        pytest.param("deco", 5, 4_000_000, marks=pytest.mark.long),
        pytest.param("auto", 1, 1_000_000, marks=pytest.mark.long),
        pytest.param("auto", 2, 2_000_000, marks=pytest.mark.long),
        pytest.param("auto", 3, 4_000_000, marks=pytest.mark.long),
    ],
)
def test_wherever_a_policy_turns_the_knobs_bytes_are_those_predicted(name: str, rung: int, parameters: int) -> None:
    peers = 3
    run = counting_run(name, rounds=ROUNDS, start_with=peers, checkpoint_every=100)
    ((channel_name, channel),) = run.recipe.channel.items()
    knobs = Knobs(rung=rung, steps=channel.when.round_steps)
    stays = replace(run.recipe, channel={channel_name: turned(run.recipe, knobs)}, control=Nobody())
    outcome = play(replace(run, recipe=stays), peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = round_bytes(outcome)
    predicted = traffic(run.recipe, parameters, [Line()] * peers, knobs)
    assert ROUNDS * sum(each.sent_bytes for each in predicted.moved) == pytest.approx(sum(counted), rel=OVERHEAD)


@pytest.mark.parametrize("rungs", [(1, 2, 5), pytest.param((0, 4, 10), marks=pytest.mark.long)])
def test_where_each_peer_has_bits_of_its_own_bytes_are_those_predicted(rungs: tuple[int, ...]) -> None:
    """16, 12 and 7 bits of `sagq`'s ladder, or 32, 8 and 2; results are as coarse as the coarsest."""
    parameters, peers = 600_000, len(rungs)
    run = counting_run("sagq", rounds=ROUNDS, start_with=peers, checkpoint_every=100)
    in_the_world, in_the_plan = (
        Knobs(rung=max(rungs), steps=1, each=tuple(zip(members, rungs, strict=True)))
        for members in ([key_of(0, place).peer for place in range(peers)], [_place(place) for place in range(peers)])
    )
    ((channel, _),) = run.recipe.channel.items()
    stays = replace(run.recipe, channel={channel: turned(run.recipe, in_the_world)}, control=Nobody())
    outcome = play(replace(run, recipe=stays), peers, build=sized(parameters), rate_bytes_s=1e9)
    predicted = traffic(run.recipe, parameters, [Line()] * peers, in_the_plan)
    counted = round_bytes(outcome)
    assert ROUNDS * sum(each.sent_bytes for each in predicted.moved) == pytest.approx(sum(counted), rel=OVERHEAD)


def _place(place: int) -> bytes:
    """Return how a plan calls a member."""
    return place.to_bytes(4, "big")


@pytest.mark.long
def test_of_two_channels_each_moves_its_own_bytes_in_its_own_rounds() -> None:
    """The prediction is of a mean round: here every other one is the rarer channel's."""
    parameters, peers, rounds = 400_000, 3, 4
    run = counting_run("sparta-diloco", rounds=rounds, start_with=peers, checkpoint_every=100)
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = round_bytes(outcome)
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    assert sum(each.sent_bytes for each in predicted.moved) * rounds == pytest.approx(sum(counted), rel=OVERHEAD)
    alone = {
        name: traffic(replace(run.recipe, channel={name: channel}), parameters, [Line()] * peers)
        for name, channel in run.recipe.channel.items()
    }
    payloads = {name: sum(each.sent_bytes for each in one.moved) for name, one in alone.items()}
    sent = [(event.channel, event.sent_bytes) for event in events(outcome, journal.ContributionSent)]
    for name, payload in payloads.items():
        contributions = sum(size_bytes for channel, size_bytes in sent if channel == name)
        assert contributions == pytest.approx(rounds / 2 * payload / 2, rel=0.01), "half goes out, half comes back"


@pytest.mark.long
def test_parts_by_lot_move_their_own_bytes_and_in_the_end_those_of_all() -> None:
    parameters, peers, rounds = 1_200_000, 3, 4
    run = counting_run("sparta", rounds=rounds, start_with=peers, checkpoint_every=100)
    every = replace(run.recipe.channel["outer"], when=Every(steps=2))
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = round_bytes(outcome)
    parts, all_ = (
        sum(each.sent_bytes for each in traffic(recipe, parameters, [Line()] * peers).moved)
        for recipe in (run.recipe, replace(run.recipe, channel={"outer": every}))
    )
    assert (rounds - 1) * parts + all_ == pytest.approx(sum(counted), rel=OVERHEAD)


def test_sparse_averaging_below_an_outer_step_adds_p_times_h_of_its_bytes_at_most() -> None:
    """As shipped, p H = 0.5: of H steps one has no sparse round, so it is a little less than half as much again."""
    recipe, parameters = load_recipe("sparta-diloco"), 125_000_000
    both = traffic(recipe, parameters, [Line()] * 8).step_bytes
    rare = traffic(replace(recipe, channel={"outer": recipe.channel["outer"]}), parameters, [Line()] * 8).step_bytes
    p, h = 1 / 200, 100
    assert 0.97 * p * (h - 1) < both / rare - 1 < p * h


@pytest.mark.long
def test_factors_are_the_rank_times_both_sides_of_each_matrix_and_the_rest_is_whole() -> None:
    """2 (N-1)/N r (n + m) 4 bytes for each matrix and step, in two rounds."""
    rank, side, layers, peers, steps = 64, 512, 8, 3, 2
    parameters = layers * side * side
    run = counting_run("powersgd", rounds=2 * steps, start_with=peers, checkpoint_every=100)
    channel = run.recipe.channel["outer"]
    channel = replace(channel, what=replace(channel.what, transform=LowRank(rank=rank)))
    run = replace(run, recipe=replace(run.recipe, channel={"outer": channel}))
    predicted = traffic(run.recipe, parameters, [Line()] * peers, shapes=sized(parameters)(run).shapes)
    formula = 2 * (peers - 1) / peers * layers * rank * 2 * side * 4
    assert predicted.steps == 0.5
    assert sum(each.sent_bytes for each in predicted.moved) / peers == pytest.approx(formula / 2, rel=1e-6)
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = round_bytes(outcome)
    assert sum(counted) / peers / steps == pytest.approx(formula, rel=OVERHEAD)


@pytest.mark.long
def test_a_period_of_tensors_in_turn_moves_what_its_turns_add_up_to() -> None:
    parameters, peers, periods = 800_000, 3, 2
    run = counting_run("dreamddp", rounds=5 * periods, start_with=peers, checkpoint_every=100)
    predicted = traffic(run.recipe, parameters, [Line()] * peers, shapes=sized(parameters)(run).shapes)
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = round_bytes(outcome)
    sent = sum(each.sent_bytes for each in predicted.moved)
    assert sent * 5 * periods == pytest.approx(sum(counted), rel=OVERHEAD)
    whole = 2 * (peers - 1) * parameters * 4
    assert 5 * sent >= whole, "each tensor has a turn in every period"


def test_moments_move_their_own_bytes_when_it_is_their_turn() -> None:
    """Of three parts of a vector the weights go in every round, first moments in a third and second ones in a sixth."""
    parameters, peers, rounds = 300_000, 3, 6
    run = counting_run("desloc", rounds=rounds, start_with=peers, checkpoint_every=100)
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    outcome = play(run, peers, build=sized(3 * parameters), rate_bytes_s=1e9)
    sent = sum(each.sent_bytes for each in predicted.moved)
    assert sent * rounds == pytest.approx(sum(round_bytes(outcome)), rel=OVERHEAD)
    assert sent == pytest.approx(1.5 * 2 * (peers - 1) * parameters * 4, rel=1e-4), "half of what local Adam moves"
    with_muon = replace(run.recipe, work=replace(run.recipe.work, inner=Muon(lr=0.02, adamw=AdamW(lr=4e-4))))
    larger = 400_000
    less = sum(each.sent_bytes for each in traffic(with_muon, larger, [Line()] * peers).moved)
    assert less == pytest.approx(4 / 3 * 2 * (peers - 1) * larger * 4, rel=1e-3), "matrices have no second ones"


def test_a_model_of_which_only_the_size_is_known_is_taken_to_be_made_of_squares() -> None:
    found = traffic(load_recipe("powersgd"), 100 * 1024**2, [Line()] * 2)
    assert found.step_bytes == 2 * 100 * 4 * 2 * 1024 * 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "peers"),
    [
        ("noloco", 4),
        ("moshpit", 6),
        pytest.param("gossip", 5, marks=pytest.mark.long),
        pytest.param("sgp", 5, marks=pytest.mark.long),
        pytest.param("bacombo", 5, marks=pytest.mark.long),
    ],
)
def test_in_circles_bytes_are_those_of_the_circles_and_in_the_end_of_one_round_of_all(name: str, peers: int) -> None:
    parameters, rounds = 300_000, 5
    run = counting_run(name, rounds=rounds, start_with=peers, checkpoint_every=100)
    (channel,) = run.recipe.channel.values()
    together = replace(run.recipe, channel={"outer": replace(channel, whom=All())})
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = round_bytes(outcome)
    circles, all_ = (traffic(recipe, parameters, [Line()] * peers).moved for recipe in (run.recipe, together))
    predicted = sum((rounds - 1) * one.sent_bytes + other.sent_bytes for one, other in zip(circles, all_, strict=True))
    assert predicted == pytest.approx(sum(counted), rel=OVERHEAD)


@pytest.mark.parametrize("name", ["wagma", pytest.param("gossip-pga", marks=pytest.mark.long)])
def test_rounds_of_all_now_and_then_are_in_the_mean(name: str) -> None:
    """And where nobody is late, who would lend its weights sends no more than it would otherwise."""
    parameters, rounds, peers = 300_000, 4, 4
    run = counting_run(name, rounds=rounds, start_with=peers, checkpoint_every=100)
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = round_bytes(outcome)
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    assert rounds * sum(each.sent_bytes for each in predicted.moved) == pytest.approx(sum(counted), rel=OVERHEAD)


def test_what_a_pair_moves_does_not_depend_on_how_many_there_are() -> None:
    recipe = load_recipe("noloco")
    few, many = (traffic(recipe, 1_000_000, [Line()] * peers).worst.total_bytes for peers in (4, 64))
    assert few == many == 2 * 4_000_000


@pytest.mark.parametrize(
    ("name", "few"),
    [("fedht", Threshold(least=1e-2)), pytest.param("gaia", Significance(least=10.0), marks=pytest.mark.long)],
)
def test_where_what_is_sent_depends_on_values_the_prediction_is_the_most(
    name: str, few: Threshold | Significance
) -> None:
    """With a threshold of nothing all of it is sent, so that bytes are known."""
    parameters, peers = 100_000, 3
    shipped = counting_run(name, rounds=ROUNDS, start_with=peers, checkpoint_every=100)
    predicted = traffic(shipped.recipe, parameters, [Line()] * peers)
    assert not predicted.exact

    def worst(codec: Threshold | Significance) -> float:
        channel = shipped.recipe.channel["outer"]
        channel = replace(channel, what=replace(channel.what, codec=codec))
        run = replace(shipped, recipe=replace(shipped.recipe, channel={"outer": channel}))
        outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
        counted = [events(outcome, journal.TrafficCounted, peer=peer)[-1] for peer in range(peers)]
        return max(each.round_sent_bytes for each in counted) / ROUNDS

    everything = worst(replace(few, least=0.0))
    assert everything == pytest.approx(predicted.worst.sent_bytes, rel=OVERHEAD), "all of it is large enough"
    assert worst(few) < 0.9 * predicted.worst.sent_bytes


@pytest.mark.long
def test_a_part_that_all_are_in_time_for_moves_as_much_as_where_all_are_waited_for() -> None:
    parameters, peers, rounds = 3_000_000, 3, 16
    run = counting_run("decoupled", rounds=rounds, start_with=peers, checkpoint_every=100)
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = round_bytes(outcome)
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    assert sum(each.sent_bytes for each in predicted.moved) * rounds == pytest.approx(sum(counted), rel=OVERHEAD)


@pytest.mark.long
def test_where_each_contributes_alone_results_go_to_all_and_contributions_to_owners_once() -> None:
    """However many are at work: each sends its own once for N results that it receives."""
    parameters, peers, rounds = 300_000, 3, 24
    run = counting_run("async-local-sgd", rounds=rounds, steps=8, start_with=peers, checkpoint_every=100)
    faults = [SlowCompute(at_s=0.0, peer=place, for_s=1e6, factor=factor) for place, factor in ((1, 1.3), (2, 1.7))]
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9, faults=faults)
    counted = round_bytes(outcome)
    pushes = sum(len(event.contributors) for _, event in once(outcome, journal.RoundCommitted))
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    assert predicted.steps == 8 / peers
    part = (peers - 1) / peers * 4 * parameters  # what a contribution more than one in a round adds
    total = sum(each.sent_bytes for each in predicted.moved) * rounds + (pushes - rounds) * part
    assert total == pytest.approx(sum(counted), rel=OVERHEAD)


def test_with_groups_the_sum_over_all_members_is_the_one_counted() -> None:
    parameters, peers = 300_000, 6
    run = counting_run("diloco", rounds=ROUNDS, start_with=peers, checkpoint_every=100)
    run = replace(run, recipe=with_group(run.recipe, 3))
    outcome = play(run, peers, build=sized(parameters), rate_bytes_s=1e9)
    counted = round_bytes(outcome)
    predicted = traffic(run.recipe, parameters, [Line()] * peers)
    assert sum(each.sent_bytes for each in predicted.moved) == pytest.approx(sum(counted) / ROUNDS, rel=OVERHEAD)


@pytest.mark.parametrize("name", recipe_names())
def test_what_all_members_send_all_members_receive(name: str) -> None:
    moved = traffic(load_recipe(name), 1_000_000, lines_of(expand(load_fleet("town")))).moved
    assert sum(each.sent_bytes for each in moved) == sum(each.received_bytes for each in moved) > 0


@pytest.mark.parametrize("fleet", ["lan", "homes", "volunteers"])
def test_a_policys_forecast_is_what_the_slowest_line_needs_on_every_rung(fleet: str) -> None:
    """Up to whole chunks, and to that a policy knows the slower direction of each line only."""
    recipe, parameters = load_recipe("auto"), 60_000_000
    machines = expand(load_fleet(fleet))
    slower = [min(m.up_bytes_s, m.down_bytes_s) for m in machines]
    pairs = list(zip(slower, machines, strict=True))
    evenly = [Line(up_bytes_s=rate, down_bytes_s=rate, reached=not m.nat) for rate, m in pairs]
    assert isinstance(recipe.control, Auto)
    for number, rung in enumerate(recipe.control.ladder):
        found = traffic(recipe, parameters, evenly, Knobs(rung=number, steps=rung.steps))
        size_bytes = sum(wire_bytes(rung.codec, count) for count in _chunks(parameters, rung.codec))
        lines = [forecast.Line(rate, not m.nat) for rate, m in pairs]
        predicted_s = forecast.wire_s(rung.route, size_bytes, lines)
        assert found.steps == rung.steps
        assert found.slowest.least_s == pytest.approx(predicted_s, rel=0.25), rung.codec


def _chunks(size: int, codec: Codec) -> list[int]:
    grid = grid_of(size, codec)
    return [end - first for first, end in map(grid.bounds, range(grid.chunks))]


def test_a_ring_moves_what_every_all_reduce_does_in_the_form_of_a_contribution() -> None:
    peers, chunks = 8, 64
    parameters = chunks * 65536
    found = traffic(load_recipe("intellect-1"), parameters, [Line()] * peers)
    table_bytes = 1024
    each_way = 2 * (peers - 1) / peers * chunks * (65536 + table_bytes)
    assert {(one.sent_bytes, one.received_bytes) for one in found.moved} == {(each_way, each_way)}
    less = every_step_fp32(parameters, peers) / found.step_bytes
    assert less == pytest.approx(400, rel=0.02), "as its header says"


def test_ddp_by_the_codec_is_ddp_by_the_formula() -> None:
    peers, parameters = 8, 64 * 8 * 1000
    found = traffic(load_recipe("ddp"), parameters, [Line()] * peers)
    assert found.step_bytes == every_step_fp32(parameters, peers)


def test_a_trillion_parameters_are_counted_as_a_million_are() -> None:
    parameters, peers = 10**12, 8
    assert traffic(load_recipe("ddp"), parameters, [Line()] * peers).step_bytes == pytest.approx(
        every_step_fp32(parameters, peers), rel=1e-5
    )
    for name in ("powersgd", "dreamddp", "intellect-1"):
        assert traffic(load_recipe(name), parameters, [Line()] * peers).step_bytes > 10**9


@pytest.mark.parametrize("name", ["ddp", "held-bit", "sparse-butterfly", "streaming", "sparseloco", "dlion", "noloco"])
def test_some_that_stand_for_a_crowd_move_what_its_members_do(name: str) -> None:
    """Also where sums between groups in fp32 are most of it."""
    recipe, parameters, crowd, few = load_recipe(name), 100_000_000, 200, MEMBERS_MAX
    whole = traffic(recipe, parameters, [Line()] * crowd)
    some = traffic(recipe, parameters, [Line(count=crowd / few)] * few)
    assert some.step_bytes == pytest.approx(whole.step_bytes, rel=0.01)
    assert some.steps == pytest.approx(whole.steps)


def test_a_round_of_fedavg_moves_what_a_step_of_ddp_does() -> None:
    fedavg, ddp = (traffic(load_recipe(name), 1_000_000, [Line()] * 5) for name in ("fedavg", "ddp"))
    assert fedavg.moved == ddp.moved
    assert fedavg.steps > ddp.steps == 1


def test_owners_that_choose_again_keep_the_bytes_of_a_peer_where_they_are_however_many_there_are() -> None:
    parameters = 125_000_000
    less = [
        every_step_fp32(parameters, peers) / traffic(load_recipe(name), parameters, [Line()] * peers).step_bytes
        for peers in (8, 16)
        for name in ("sparse-butterfly", "sparseloco")
    ]
    assert [round(each) for each in less] == [4387, 1097, 4387, 548]
    header = recipe_text("sparse-butterfly")
    assert all(figure in header for figure in (f"{less[0]:,.0f} times less", f"at {less[1]:,.0f}"))
    assert f"--parameters {parameters} --peers 8" in header


def test_a_held_bit_is_a_thousand_times_less() -> None:
    parameters, peers = 125_000_000, 8
    sent = traffic(load_recipe("held-bit"), parameters, [Line()] * peers)
    less = every_step_fp32(parameters, peers) / sent.step_bytes
    assert less > 1000
    assert f"{less:,.0f} times less" in recipe_text("held-bit")


def test_who_gathers_all_receives_more_the_more_peers_there_are() -> None:
    recipe = load_recipe("sparseloco")
    assert isinstance(recipe.channel["outer"].whom.route, AllGather)
    few, many = (traffic(recipe, 1_000_000, [Line()] * peers).worst.received_bytes for peers in (3, 9))
    assert many == 4 * few


def test_shares_follow_lines_and_the_slowest_line_bounds_the_round() -> None:
    fast, slow = (
        Line(name="fast", up_bytes_s=1e9, down_bytes_s=1e9),
        Line(name="slow", up_bytes_s=1e6, down_bytes_s=1e7),
    )
    found = traffic(load_recipe("diloco"), 1_000_000, [fast, fast, slow])
    by_name = {each.line.name: each for each in found.moved}
    assert by_name["slow"].sent_bytes == 4_000_000, "it owns nothing: only its own contribution goes out"
    assert found.slowest.line.name == "slow"
    assert found.slowest.least_s == pytest.approx(4.0)
    assert found.worst.line.name == "fast"


def test_who_cannot_be_called_owns_nothing() -> None:
    found = traffic(load_recipe("diloco"), 1_000_000, [Line(), Line(), Line(reached=False)])
    assert found.moved[2].sent_bytes == found.moved[2].received_bytes == 4_000_000


def test_alone_nothing_moves() -> None:
    for name in ("diloco", "sparseloco"):
        assert traffic(load_recipe(name), 1000, [Line()]).worst.total_bytes == 0
