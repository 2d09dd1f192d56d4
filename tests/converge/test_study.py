"""The study of ways to exchange: what is sent and what is left are what was wanted, and rounds end when they should."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bench.converge import study
from bench.converge.study import Study, Swarm
from bench.converge.ways import BLOCK, WAYS, Codec, Way, by_inputs, exact, four, sign, tenth, three
from torch import Tensor

from atoll.data.prepare import prepare
from atoll.sync.by_inputs import RowsHere, Seen, Segment

STEPS = 4


def peers_of(way: Way) -> tuple[dict[str, Tensor], Swarm]:
    """Return four peers that start together and have moved apart, and their swarm."""
    start = torch.randn(3, 700, generator=torch.Generator().manual_seed(1))
    weights = {"one": start.repeat(4, 1, 1)}
    swarm = Swarm(way, weights, STEPS)
    weights["one"] += torch.randn(weights["one"].shape, generator=torch.Generator().manual_seed(2))
    return weights, swarm


def test_in_full_and_without_momentum_everybody_goes_on_from_the_mean() -> None:
    weights, swarm = peers_of(Way(1, exact, exact, outer=(1.0, 0.0)))
    mean = weights["one"].mean(dim=0)
    swarm.after(STEPS - 1)
    assert torch.allclose(swarm.anchor["one"], mean, atol=1e-6)
    assert torch.equal(weights["one"], swarm.anchor["one"].expand(4, -1, -1))


@pytest.mark.parametrize("hold", [True, False])
def test_what_is_not_sent_is_held_in_ones_own_weights_or_fed_back(hold: bool) -> None:
    weights, swarm = peers_of(Way(1, sign, exact, outer=(1.0, 0.0), hold=hold))
    before, start = weights["one"].clone(), swarm.anchor["one"].clone()
    swarm.after(STEPS - 1)
    apart = weights["one"] - swarm.anchor["one"]
    if hold:  # all that anybody has moved is in the anchor or still in its own weights
        assert torch.allclose(swarm.anchor["one"] + apart.mean(dim=0), before.mean(dim=0), atol=1e-5)
        assert apart.abs().max() > 0.1
    else:
        assert not apart.any()
    assert not torch.equal(swarm.anchor["one"], start)


@pytest.mark.parametrize("shared", [0.0, 0.25, 1.0])
def test_what_results_leave_out_is_with_the_owner_or_with_the_peers_and_nowhere_twice(shared: float) -> None:
    weights, swarm = peers_of(Way(2, sign, sign, outer=(1.0, 0.0), shared=shared))
    for end in swarm._ends:
        learnt = torch.randn(weights["one"].shape, generator=torch.Generator().manual_seed(end))
        weights["one"] += learnt
        before = weights["one"].mean(dim=0) - swarm._left["one"].view(3, 700)
        swarm.after(end)
        apart = weights["one"] - swarm.anchor["one"]
        assert torch.allclose(
            swarm.anchor["one"] + apart.mean(dim=0) - swarm._left["one"].view(3, 700), before, atol=1e-5
        )
    assert bool(swarm._left["one"].abs().max() > 0.1) == (shared < 1.0)


def test_a_result_of_ones_own_says_what_ones_copy_lacks_beyond_what_one_has_sent() -> None:
    in_full, _ = swarm_after(Way(2, sign, exact, outer=(1.0, 0.0)))
    anchor, copies = swarm_after(Way(2, sign, sign, outer=(1.0, 0.0), own=True))
    common, _ = swarm_after(Way(2, sign, sign, outer=(1.0, 0.0)))
    assert torch.allclose(anchor, in_full, atol=1e-5), "owners have all of it, though peers set out from their copies"
    apart = (copies - anchor).square().mean(dim=(1, 2))
    assert apart.min() > 0 and apart.max() < 0.8 * (common - in_full).square().mean()
    assert (copies.mean(dim=0) - anchor).square().mean() < 0.5 * apart.mean(), "what copies lack is not the same"


def swarm_after(way: Way) -> tuple[Tensor, Tensor]:
    """Return the anchor and everybody's copy after two rounds."""
    weights, swarm = peers_of(way)
    for end in swarm._ends:
        swarm.after(end)
        weights["one"] += torch.randn(weights["one"].shape, generator=torch.Generator().manual_seed(end))
    return swarm.anchor["one"], swarm.copies["one"]


def test_signs_by_inputs_are_those_of_the_engine() -> None:
    given = torch.randn(400, 96, generator=torch.Generator().manual_seed(3)) / torch.arange(1, 97)
    moments = (given.T @ given / 400).numpy()
    known = study.known_of({"one": moments}, 0.5, torch.device("cpu"))
    rows = torch.randn(2, 64 * 96, generator=torch.Generator().manual_seed(4))
    made = by_inputs(rows, 96, *known["one"])
    whole = Segment("one", slice(0, 64 * 96), slice(0, 96))
    engine = Seen({0: [whole]}, RowsHere({"one": moments}, 0.5), block=BLOCK)
    for ours, values in zip(made, rows, strict=True):
        theirs = torch.from_numpy(engine.rounded(0, values.numpy()))
        assert float((ours - theirs).abs().max()) < 1e-3 and not torch.allclose(ours, sign(values[None])[0], atol=0.1)


def test_what_is_finer_is_so_both_ways_and_until_then_only() -> None:
    way = Way(2, sign, sign, finer=(("one", exact, 0.5),))
    _, swarm = peers_of(way)
    rows = torch.randn(1, 2100)
    assert torch.equal(swarm._coded("one", 0, rows, sign), rows)
    assert torch.equal(swarm._coded("one", 1, rows, sign), sign(rows))
    assert torch.equal(swarm._coded("other", 0, rows, sign), sign(rows))


def test_of_contributions_in_turns_each_block_is_sent_once() -> None:
    turns = [study._turn(3000, 3, nth, torch.device("cpu")) for nth in range(3)]
    assert torch.equal(sum(turns, torch.zeros(3000)), torch.ones(3000))


@pytest.mark.parametrize(
    ("codec", "lost"), [(sign, 0.363), (three, 0.190), (four, 0.1175), (tenth, 0.574), (exact, 0.0)]
)
def test_codecs_lose_of_a_bell_what_is_known_of_them(codec: Codec, lost: float) -> None:
    rows = torch.randn(4, 8 * 512 * 16, generator=torch.Generator().manual_seed(0))
    assert float((rows - codec(rows)).square().mean()) == pytest.approx(lost, abs=0.01)


@pytest.mark.parametrize("name", WAYS)
def test_every_way_has_its_rounds_and_ends_with_one(name: str) -> None:
    ends = study._ends(WAYS[name], 2040)
    assert len(set(ends)) == WAYS[name].rounds * WAYS[name].fragments
    assert sorted(ends) == ends and ends[-1] == 2039


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention under vmap, on a processor
def test_a_small_study_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.txt").write_text(
        "\n\n".join(f"The sea lies still on day {day}, and so do we. " * 9 for day in range(60))
    )
    prepare([tmp_path / "some.txt"], tmp_path / "shards", "bytes", split="blank-lines", held_out=0.2)
    for name, value in {"PEERS": 2, "CONTEXT": 16, "JUDGED": 8, "HEAD": 16}.items():
        monkeypatch.setattr(study, name, value)
    ways = {
        "full": Way(4, exact, exact, (1.0, 0.0)),
        "bit": Way(4),
        "fades": Way(4, decay=20.0),
        "stays": Way(4, decay=0.0, mean=1.0),
    }
    small = Study(ways, tmp_path / "shards", 24, torch.device("cpu"), epochs=2, batch=2, width=16)
    before = small.judge()
    assert len(set(before.values())) == 1
    matrix = "model.layers.0.mlp.up_proj.weight"
    began = small.swarms["stays"].anchor[matrix].clone()
    small.run()
    after = small.judge()
    assert all(after[name] < before[name] - 0.3 for name in ("full", "bit"))
    assert torch.equal(small.swarms["stays"].anchor[matrix], began), "a mean of no gradient moves nothing"
    norm = {name: float(swarm.anchor[matrix].norm()) for name, swarm in small.swarms.items()}
    assert norm["fades"] < 0.5 * norm["bit"]
