"""Who owns what in a round: from what members measured of their lines, and who can be reached by everybody.

Shares follow rates, but not noise: they stay as they are until others would make a round clearly shorter. Rates can be
wrong, as a line that waits for others, or for one far path, looks slow: shares that made a round longer are taken back,
and for a while rates are not listened to. A member that somebody in the round cannot reach owns nothing, since every
contributor must get its chunks to every owner; it takes part all the same, because it reaches the owners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from atoll import journal
from atoll.net.identity import short
from atoll.spec.axes.whom import AllGather, Route, Star
from atoll.swarm.log import OpenRound
from atoll.swarm.routes.circles import Circle, circles_in
from atoll.swarm.routes.shares import (
    Shard,
    Shards,
    by_region,
    cap_of,
    cut,
    fill_in,
    group_slices,
    groups_needed,
    owners_of,
    slowest,
    solve,
    take_over,
)
from atoll.swarm.state import Action, Broker, Note, Round, Trial

GAIN_MIN = 1.1
"""Shares change when the slowest member needs so many times longer with the present ones than it would with others,"""
GAIN_S_MIN = 0.25
"""and at least so much longer."""
WORSE = 1.05
"""Shares that rates spoke for are taken back if a round takes so many times longer with them than with those before,"""
DEAF_ROUNDS, DEAF_ROUNDS_MAX = 4, 64
"""and then so many rounds pass before rates are listened to again, twice as many each time."""
DOUBTS_MAX = 64
"""Members whose failure to reach one peer is remembered."""


def share_out(broker: Broker, announced: OpenRound) -> tuple[Broker, Shards, list[Action]]:
    """Return the shards of a round, the broker that remembers their shares, and what there is to say about them."""
    if isinstance(_route(broker), Star):
        return broker, _everything(broker, [broker.me]), []
    able = _able(broker, announced)
    if isinstance(_route(broker), AllGather) and len(able) > 1:
        return broker, _everything(broker, able), []
    if circles := circles_in(broker.whom, announced):
        return broker, _by_circle(broker, circles, able), []
    sharings = _sharings(broker, announced, able)
    before = broker.shares
    broker, why = _decided(broker, announced.key.version, able, sharings)
    notes: list[Action] = []
    if why and (before or any(len(set(one.best.values())) > 1 for one in sharings)):
        told = {short(p): round(share, 3) for p, share in broker.shares.items()}
        key = announced.key
        notes.append(Note(journal.SharesChanged(channel=key.channel, version=key.version, shares=told, why=why)))
    shards = [
        shard
        for group, one in enumerate(sharings)
        for shard in cut(broker.bulk.chunks, list(one.best), list(one.shares(broker.shares).values()), group)
    ]
    return broker, tuple(shards), notes


def _by_circle(broker: Broker, circles: Sequence[Circle], able: Sequence[bytes]) -> Shards:
    """Return shards by the rates measured, circle by circle; one in which nobody can own is served by the broker.

    They are other circles in every round: there is nothing to hold on to, and nothing to say about it.
    """
    shards: list[Shard] = []
    for number, circle in enumerate(circles):
        owners = [p for p in able if p in circle.takers] or [broker.me]
        rates, _ = _rates(broker, owners)
        caps = [cap_of(_memory_bytes(broker, p), broker.bulk.size_bytes, len(circle.givers)) for p in owners]
        run = circle.chunks(broker.bulk.chunks)
        shards += cut(len(run), owners, solve(rates, len(circle.givers), caps), number, run.start)
    return tuple(shards)


class Sharing(Struct, frozen=True):
    """One group's owners: what they measured, and the shares that would make its slowest the fastest."""

    rates: dict[bytes, float]
    caps: dict[bytes, float]
    best: dict[bytes, float]
    carries: float
    """Contributions that pass through an owner of everything, in and out."""
    home: bool = True
    """They are of the group; else others serve it, since nobody of it can, beside what they own in their own."""

    def shares(self, present: Mapping[bytes, float]) -> Mapping[bytes, float]:
        """Return what each owns: as much as at present, if it is their own group."""
        return {p: present[p] for p in self.best} if self.home else self.best

    def slowest_s(self, shares: Mapping[bytes, float], size_bytes: int) -> float:
        times = [self.rates[p] for p in self.best], [shares[p] for p in self.best]
        return size_bytes * slowest(*times, self.carries)


def _sharings(broker: Broker, announced: OpenRound, able: Sequence[bytes]) -> list[Sharing]:
    """Return how each group would best share the grid out; one in which nobody can own is served by all who can."""
    groups = _groups(broker, announced)
    # Between groups an owner sends a sum and a result, and receives as much, for all but its own group.
    between = 2 * (len(groups) - 1) / len(groups)
    sharings = []
    for group in groups:
        own = [p for p in able if p in group]
        owners = own or (list(able) if len(groups) > 1 else [broker.me])
        rates, known = _rates(broker, owners)
        caps = [cap_of(_memory_bytes(broker, p), broker.bulk.size_bytes, len(group)) for p in owners]
        best = solve(rates, len(group) + between, caps)
        sharings.append(
            Sharing(
                rates=dict(zip(owners, rates if known else [0.0] * len(owners), strict=True)),
                caps=dict(zip(owners, caps, strict=True)),
                best=dict(zip(owners, best, strict=True)),
                carries=len(group) + between,
                home=bool(own) or len(groups) == 1,
            )
        )
    return sharings


def _groups(broker: Broker, announced: OpenRound) -> tuple[tuple[bytes, ...], ...]:
    """Return who adds up together: those of a region, or as many as may exchange directly."""
    members = announced.members
    if announced.regions:
        return by_region(members, announced.regions)
    return group_slices(members, groups_needed(len(members), broker.setting.group_max(len(members))))


def _decided(broker: Broker, version: int, able: Sequence[bytes], sharings: Sequence[Sharing]) -> tuple[Broker, str]:
    """Return the broker with the shares of a round, and why they are others than before; empty: they are not."""
    best = {peer: share for one in sharings if one.home for peer, share in one.best.items()}
    if why := _must(broker, able, sharings):
        return replace(broker, shares=best, trial=None, deaf=(0, 0)), why
    broker, why = _judged(broker, version)
    if why or version < broker.deaf[0]:
        return broker, why
    why = _by_rates(broker, sharings)
    if why:
        trial = Trial(since=version, before=broker.shares, took=broker.took)
        broker = replace(broker, shares=best, trial=trial)
    return broker, why


def _judged(broker: Broker, version: int) -> tuple[Broker, str]:
    """Return the broker with the shares of before, and why, if those on trial have made a round longer."""
    trial = broker.trial
    if trial is None:
        return broker, ""
    since = {kind: told for kind, told in broker.took.items() if told[0] >= trial.since and kind in trial.took}
    if not since:
        return broker, ""  # no round of a kind that there was before
    kind, (newest, took_s) = max(since.items(), key=lambda each: each[1])
    before_s = trial.took[kind][1]
    broker = replace(broker, trial=None)
    if took_s < WORSE * before_s or took_s - before_s < GAIN_S_MIN:
        return broker, ""
    rounds = min(max(DEAF_ROUNDS, 2 * broker.deaf[1]), DEAF_ROUNDS_MAX)
    why = f"round {newest} took {took_s:.1f} s with the others, {before_s:.1f} s was the last before them"
    return replace(broker, shares=trial.before, deaf=(version + rounds, rounds)), why


def _must(broker: Broker, able: Sequence[bytes], sharings: Sequence[Sharing]) -> str:
    """Return why shares cannot stay as they are; empty: they can."""
    came = [short(p) for p in able if p not in broker.shares]
    went = [short(p) for p in broker.shares if p not in able]  # or cannot be reached by everybody any more
    if came or went:
        names = [f"{', '.join(came)} came" if came else "", f"{', '.join(went)} went" if went else ""]
        return " and ".join(name for name in names if name)
    sharings = [one for one in sharings if one.home]
    if any(abs(sum(broker.shares[p] for p in one.best) - 1) > 1e-6 for one in sharings):
        return "members are in other groups than before"
    for one in sharings:
        full = [p for p, best in one.best.items() if broker.shares[p] > max(one.caps[p], best) + 1e-9]
        if full:
            return f"{', '.join(map(short, full))} has no memory for more"
    return ""


def _by_rates(broker: Broker, sharings: Sequence[Sharing]) -> str:
    """Return why other shares would be better by the rates measured; empty: they would hardly be."""
    for one in sharings:
        if one.home and all(one.rates.values()):
            present_s = one.slowest_s(broker.shares, broker.bulk.size_bytes)
            best_s = one.slowest_s(one.best, broker.bulk.size_bytes)
            if present_s >= GAIN_MIN * best_s and present_s - best_s >= GAIN_S_MIN:
                return (
                    f"by the rates measured the slowest would need {present_s:.1f} s with the shares before, "
                    f"{best_s:.1f} s now"
                )
    return ""


def _route(broker: Broker) -> Route:
    return broker.whom.route


def gathers(broker: Broker, shards: Shards) -> bool:
    """Return whether everybody who owns gets everything, which is of use to more than one only."""
    return isinstance(_route(broker), AllGather) and len(owners_of(shards)) > 1


def _everything(broker: Broker, owners: Sequence[bytes]) -> Shards:
    return tuple(Shard(owner, 0, broker.bulk.chunks, number) for number, owner in enumerate(owners))


def alone(broker: Broker, round_: Round) -> Shards:
    """Return shards with which the broker does everything: whoever is here reaches it."""
    chunks = broker.bulk.chunks
    if round_.circles:
        runs = [circle.chunks(chunks) for circle in round_.circles]
        return tuple(Shard(broker.me, run.start, len(run), number) for number, run in enumerate(runs) if run)
    groups = 1 if round_.gather or round_.carried else 1 + max(shard.group for shard in round_.shards)
    return tuple(Shard(broker.me, 0, chunks, group) for group in range(groups))


def _able(broker: Broker, announced: OpenRound) -> tuple[bytes, ...]:
    """Return who can own something: members that are here and that every member of the round can reach."""
    here = [p for p in announced.members if p in broker.present]
    reached = [p for p in here if not any(by in announced.members for by in broker.present[p].unreached)]
    if here and not reached:
        return (broker.me,)
    return tuple(reached) or announced.members


def _rates(broker: Broker, peers: Sequence[bytes]) -> tuple[list[float], bool]:
    """Return each peer's rate, and whether any is measured: the slower direction counts, as both carry as much."""
    measured = [rate_of(broker, peer) for peer in peers]
    return fill_in(measured), any(measured)


def rate_of(broker: Broker, peer: bytes) -> float:
    """Return the rate of a member's line as far as it has measured it, or as it is taken to be; 0: not known."""
    if peer in broker.lines:
        return broker.lines[peer].owner_bytes_s
    presence = broker.present.get(peer)
    standing = presence.standing if presence is not None else None
    known = [rate for rate in (standing.up_bytes_s, standing.down_bytes_s) if rate > 0] if standing is not None else []
    return float(min(known, default=0))


def _memory_bytes(broker: Broker, peer: bytes) -> int:
    """Return what of a member's memory is for one of the rounds that may be open; 0: no limit."""
    presence = broker.present.get(peer)
    own = presence.standing.memory_bytes if presence is not None and presence.standing is not None else 0
    return own // broker.setting.room


def without(broker: Broker, round_: Round, gone: list[bytes]) -> Shards:
    """Return the shards with those of some owners spread over the others that are here, in the end over the broker."""
    here = [p for p in round_.announced.members if p in broker.present and p not in (*gone, *round_.shunned)]
    reached = [p for p in here if not broker.present[p].unreached]
    left = [p for p in owners_of(round_.shards) if p in here]
    if isinstance(_route(broker), AllGather):  # nobody makes a part of a result where each makes all of it
        return _everything(broker, left) if len(left) > 1 else alone(broker, round_)
    if isinstance(_route(broker), Star):  # who led is gone, and leads no more
        return alone(broker, round_)
    shards: list[Shard] = []
    for group in range(1 + max(shard.group for shard in round_.shards)):
        own = tuple(shard for shard in round_.shards if shard.group == group)
        others = [] if round_.circles else left or reached  # what a circle makes is no business of the others
        heirs = [p for p in owners_of(own) if p in here] or _takers(round_, group, reached) or others or [broker.me]
        rates, _ = _rates(broker, heirs)
        shards += take_over(own, gone, heirs, dict(zip(heirs, rates, strict=True)))
    return tuple(shards)


def _takers(round_: Round, group: int, reached: Sequence[bytes]) -> list[bytes]:
    """Return who of a circle, or of a region, could own what nobody of it does."""
    announced = round_.announced
    among = [circle.takers for circle in round_.circles]
    among = among or list(by_region(announced.members, announced.regions) if announced.regions else ())
    return [p for p in reached if p in among[group]] if among else []


def doubt(broker: Broker, owner: bytes, by: bytes, version: int, *, never: bool) -> tuple[Broker, list[Action]]:
    """Remember, for as long as the owner stays connected, that a member cannot reach it: never could, or twice not."""
    presence = broker.present.get(owner)
    if presence is None or owner == broker.me or by in presence.unreached:
        return broker, []  # everybody reaches the broker, or would not be here
    before = [when for who, when in presence.doubts if who == by and when != version]
    if not never and not before:
        presence = replace(presence, doubts=(*presence.doubts[-DOUBTS_MAX:], (by, version)))
        return replace(broker, present=broker.present | {owner: presence}), []
    presence = replace(presence, unreached=(*presence.unreached, by))
    what = "has never reached" if never else f"could not reach, as in round {before[-1]},"
    why = (
        f"{short(by)} {what} {short(owner)}, though both are connected here: "
        f"{short(owner)} takes part but owns nothing in rounds with {short(by)}"
    )
    note = Note(journal.PeerUnreachable(who=short(owner), by=short(by), why=why))
    return replace(broker, present=broker.present | {owner: presence}), [note]
