"""First rounds in a finer form: they are what that form would be throughout, and later ones what they always were."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.sim.retell import commits
from atoll.spec.axes.codec import Bf16, Codec, Fp32, Quaternary, Sign
from atoll.spec.axes.merge import Merge
from atoll.spec.axes.optimizer import AdamW, Assign, Sgd
from atoll.spec.axes.what import ByInputs, Delta, Feedback, Hold, Params
from atoll.spec.axes.when import Every, Named
from atoll.spec.recipe import Channel, Finer
from atoll.spec.run import Run
from tests.identity.small import digest_of, diloco, engine_of, trained
from tests.peer.world import events, log_of

PEERS, H = 2, 2
BIT = Sign(block=64)
NAMED = Named(steps=2 * H, names=("embed_tokens", "layers.0.self_attn"))


def beginning(*finer: Finer, rounds: int, codec: Codec = BIT, when: Every | Named | None = None) -> Run:
    """Return a run of held bits, fed back by owners, whose first rounds may be finer."""
    what = Delta(codec=codec, residual=Hold(), owners=Feedback(decay=0.7))
    inner, outer = AdamW(lr=3e-3), Sgd(lr=1.4, momentum=0.3, nesterov=True)
    run = diloco(inner=inner, outer=outer, steps=H, rounds=rounds, start_with=PEERS, what=what)
    channel = replace(run.recipe.channel["outer"], finer=finer, **({} if when is None else {"when": when}))
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


def sent_bytes(run: Run) -> list[int]:
    """Return what all peers sent of their contributions to each round."""
    outcome = trained(run, PEERS)
    found: dict[int, int] = {}
    for each in events(outcome, journal.ContributionSent):
        found[each.version] = found.get(each.version, 0) + each.sent_bytes
    return [found[version] for version in sorted(found)]


@pytest.mark.parametrize("form", [Fp32(), Quaternary(block=64)], ids=str)
def test_first_rounds_are_those_of_a_run_in_that_form(form: Codec) -> None:
    finer = Finer(rounds=2, codec=form)
    assert digest_of(trained(beginning(finer, rounds=2), PEERS)) == digest_of(
        trained(beginning(rounds=2, codec=form), PEERS)
    )
    assert digest_of(trained(beginning(finer, rounds=3), PEERS)) != digest_of(
        trained(beginning(rounds=3, codec=form), PEERS)
    ), "the third has a bit again"


def test_a_form_that_is_no_finer_changes_nothing() -> None:
    same = Finer(rounds=2, codec=BIT)
    assert digest_of(trained(beginning(same, rounds=3), PEERS)) == digest_of(trained(beginning(rounds=3), PEERS))


def test_of_named_tensors_and_all_others_each_part_has_first_rounds_of_its_own() -> None:
    """Both have their turn twice; the named ones are finer when they have it first."""
    finer = Finer(rounds=1, codec=Bf16(), part=1)
    channel = beginning(finer, rounds=4, when=NAMED).recipe.channel["outer"]
    forms = [channel.in_round(number).what.codec for number in range(1, 5)]
    assert forms == [Bf16(), BIT, BIT, BIT]
    assert [channel.unit(number) for number in range(1, 4)] == ["named tensors", "all others", "named tensors"]
    other = replace(channel, finer=(replace(finer, part=2),))
    assert [other.in_round(number).what.codec for number in range(1, 5)] == [BIT, Bf16(), BIT, BIT]


def test_parts_by_name_are_exchanged_in_turn_and_move_what_is_theirs() -> None:
    """Sixteen bits of the named tensors in their first turn, then a bit of these; of all others a bit each time."""
    run = beginning(Finer(rounds=1, codec=Bf16()), rounds=4, when=NAMED)
    layout = engine_of(run).layout
    named = sum(size for name, size in layout.items() if any(each in name for each in NAMED.names))
    first, others, then, again = sent_bytes(run)
    assert first > 10 * then
    assert others == again
    assert others / then == pytest.approx((sum(layout.values()) - named) / named, rel=0.2)


def test_results_that_are_no_signs_are_rounded_each_by_itself() -> None:
    channel = beginning(Finer(rounds=1, codec=Quaternary()), Finer(rounds=2, codec=Sign(block=32)), rounds=3)
    outer = channel.recipe.channel["outer"]
    outer = replace(outer, what=replace(outer.what, rounding=ByInputs()))
    kinds = [type(outer.in_round(number).what.rounding).__name__ for number in (1, 2, 3)]
    assert kinds == ["Nearest", "ByInputs", "ByInputs"]


def test_averaged_parts_by_name_end_with_a_round_of_all() -> None:
    run = beginning(rounds=3)
    average = Channel(when=NAMED, what=Params(), merge=Merge(outer=Assign()))
    run = replace(run, recipe=replace(run.recipe, channel={"outer": average}))
    units = {each.version: each.announced.key.unit for each in commits(log_of(trained(run, PEERS)))}
    assert [units[version] for version in (1, 2, 3)] == ["named tensors", "all others", "model"]
