"""Whether this peer holds what its region holds, where regions have states of their own; and coming home where not.

The log says where everybody is at home, and mostly what its region starts from in a round. Who is new there, or missed
what the region took in and nobody has any more, is astray: it follows what is told above, which is the same for all,
but reports no state of its region, saves none and gives none to others, until it has one from a mate. Who has been away
while its region took nothing in takes from anybody what is above, and keeps its region's own.
"""

from __future__ import annotations

from atoll import journal as events
from atoll.net.transport import PeerId
from atoll.peer.member import Member
from atoll.peer.messages import Snapshot
from atoll.swarm.homes import BEGINS
from atoll.swarm.log import AHEAD_MAX, ClosedRound, OpenRound
from atoll.sync.above import begin, is_above
from atoll.sync.merge import Anchor


def look(member: Member) -> None:
    """Find out whether an anchor that we took from a disk, ours or another's, is what our region holds."""
    if member.channel.regional is None:
        return
    homes, version = member.history.homes, member.anchor.version
    named = named_base(member, version)
    if named:
        member.at_home = member.digest == named
    else:  # what is saved, and what mates give, is right from the round on with which somebody comes home
        member.at_home = not homes.of or (member.me in homes.of and homes.since[member.me] <= version)


def named_base(member: Member, version: int) -> str:
    """Return the digest that the log names for our state of a version; empty: it names none."""
    later = (member.past.get(each) for each in range(version + 1, version + 2 + AHEAD_MAX))
    named = next((past.base for past in later if past is not None and past.start == version), "")
    return named if named != BEGINS else ""


def passed(member: Member, committed: ClosedRound, *, lost: bool = False) -> None:
    """Note that we have come to a version: with all that our region took in, unless that is lost to us."""
    if member.channel.regional is not None:
        homeless = member.past[committed.key.version].home is None
        member.at_home = committed.part == "begins" or (member.at_home and not lost and not homeless)


def untouched(member: Member, version: int) -> bool:
    """Return whether our region is at a version as we have it: it took nothing in since, and told nothing."""
    since = [member.past.get(each) for each in range(member.anchor.version + 1, version + 1)]
    closed = [past.committed if past is not None else None for past in since]
    kept = all(each is not None and (each.part == "hears" if each.part else not each.result) for each in closed)
    return member.at_home and member.channel.regional is not None and kept


def usable(member: Member, donor: PeerId, offered: Snapshot) -> bool:
    """Return whether a state that a peer offers brings us to our region's; who is at home nowhere can use any.

    Where our region has not moved, only what is above it is wanted, which is with everybody.
    """
    homes = member.history.homes
    if member.channel.regional is None or member.me not in homes.of or untouched(member, offered.version):
        return True
    named = named_base(member, offered.version)
    if named:
        return offered.state == named
    return donor in homes.mates(member.me) and offered.version >= max(homes.since[donor], homes.since[member.me] - 1)


def brought(member: Member, fetched: Anchor) -> tuple[Anchor, bool]:
    """Return the anchor that a downloaded one makes, and whether our region is in it as we have it."""
    if member.me not in member.history.homes.of or not untouched(member, fetched.version):
        return fetched, False
    own = {name: vector for name, vector in member.anchor.outer.items() if not is_above(name)}
    return Anchor(fetched.version, member.anchor.weights, fetched.outer | own), True


async def comes_home(member: Member, announced: OpenRound) -> bool:
    """Return whether we hold what we are to start from in a round; what begins from the state above we make."""
    base = announced.base_of(member.me)
    if base == BEGINS and not member.at_home:
        async with member.stepping:
            await member.aside(lambda: begin(member.anchor), vectors=2)
            member.digest = await member.aside(member.anchor.digest)
        member.at_home = True
        event = events.RegionBegun(channel=announced.key.channel, version=member.anchor.version, anchor=member.digest)
        member.box.journal.write(event)
        member.changes.notify()
    if base not in ("", BEGINS):
        member.at_home = member.channel.regional is None or member.digest == base
        return member.digest == base
    return member.at_home
