"""The control stream to the broker: the log comes in, reports go out.

Reports are derived from the desk, not queued: after a lost link the new session simply says again whatever
still matters. So nothing is lost with a connection and nothing is reported out of date.
"""

from __future__ import annotations

import asyncio

from atoll import journal as events
from atoll.errors import PeerError, PeerLost, PeerRefused, SpecError
from atoll.net.identity import short
from atoll.net.ticket import ADDRESSES_MAX
from atoll.net.transport import PeerId, Stream
from atoll.net.wire import Wire
from atoll.peer.council import Council
from atoll.peer.links import cancelled, hear, say, within
from atoll.peer.member import Member, unless
from atoll.peer.office import Office
from atoll.spec.load import decode_run
from atoll.spec.run import PROTOCOL, identity
from atoll.swarm.messages import (
    Append,
    Farewell,
    FromBroker,
    FromMember,
    Hello,
    Leave,
    Plan,
    Redirect,
    Refused,
    Spoiled,
    Welcome,
)
from atoll.swarm.routes.shares import covers
from atoll.swarm.routes.tree import is_tree

BrokerTalk: Wire[FromBroker] = Wire(FromBroker, remember=8)
RETRY_S = 0.25
RETRY_S_MAX = 15.0
GREETING_S_MAX = 30.0
ALL_DOORS_EVERY = 3
MISSING_S = 30.0
"""So long nobody lets us in before we say that nobody leads: longer than choosing another leader takes."""
_WHAT_HELPS = {
    True: "; if they never are, `atoll train --reform` goes on without them, or `atoll export` has what is here",
    False: "; ask who organises it whether it will; leaving loses nothing",
}
"""What the organiser of a run can do about it, and what others can."""
SAID_MAX = 32
"""Reports remembered as said; more than one plan can ask for."""


async def follow(member: Member, council: Council) -> None:
    """Keep a session with the broker until farewell, or until we leave; raises `PeerRefused`."""
    wait_s = RETRY_S
    turned_away_by: Office | None = None  # the office here, if it has done so since we last learned anything
    member.attended_s = member.now_s()
    while not member.farewell:
        broker, member.summoned = member.broker, False
        known, here = member.history.next_index, council.office if member.broker == member.me else None
        try:
            # A session ends also when another peer leads: it may still be open, to somebody who has not noticed.
            await unless(_session(member, council, broker), _moved(member, broker))
        except PeerRefused:
            raise
        except PeerError as lost:
            if member.farewell or member.leaving or _complete(member):
                break
            member.box.journal.write(events.PeerLost(who=short(broker), why=f"broker: {lost}"))
            council.lose(broker)
        if member.leaving:
            break
        if member.broker == broker and not member.farewell and not member.summoned:
            member.broker = _next_door(member, council)
            _complain(member)
            learned = member.history.next_index > known
            turned_away_by = None if learned else here or turned_away_by
            wait_s = RETRY_S if learned else min(2 * wait_s, RETRY_S_MAX)
            await _rest(member, council, wait_s, turned_away_by)
    member.farewell = True
    member.changes.notify()


async def _rest(member: Member, council: Council, wait_s: float, turned_away_by: Office | None) -> None:
    """Wait before the next knock; where a broker turns up meanwhile, perhaps here, there is nothing to wait for.

    That an office is here which has turned us away is no news.
    """
    door = member.broker
    found = member.changes.until(
        lambda: member.summoned or member.broker != door or council.office not in (None, turned_away_by)
    )
    await unless(asyncio.sleep(wait_s * (0.5 + member.box.random.random())), found)


async def _moved(member: Member, broker: PeerId) -> None:
    await member.changes.until(lambda: member.broker != broker)


def _next_door(member: Member, council: Council) -> PeerId:
    """Return whom to ask next: who leads if that is known, else the council, then all the others, in turn."""
    leader = PeerId(council.raft.leader)
    if leader and leader != member.broker and _is_door(member, leader):
        return leader
    known = [*member.history.council, *member.links.contacts]
    linked = [peer for peer in known if member.links.linked(PeerId(peer))]
    # Whoever has no link to us may be dead, and finding that out takes long: only every third time round.
    tried = linked if linked and member.rounds_of_knocking % ALL_DOORS_EVERY else [*linked, *known]
    doors = [PeerId(peer) for peer in dict.fromkeys(tried) if peer != member.me] or [member.broker]
    if member.broker not in member.knocked:
        member.knocked.append(member.broker)
    untried = [peer for peer in doors if peer not in member.knocked]
    if not untried:
        member.knocked = []
        member.rounds_of_knocking += 1
    return (untried or doors)[0]


def _complain(member: Member) -> None:
    """Say so when nobody has let us in for some time: once, until somebody does."""
    if member.attended_s is None or member.now_s() - member.attended_s < MISSING_S:
        return
    member.attended_s = None
    everybody = {*member.history.council, *member.links.contacts} - {member.me}
    hint = "it goes on when they are back" + _WHAT_HELPS[member.me == member.history.organiser]
    member.box.journal.write(events.BrokerMissing(asked=len(everybody), hint=hint))


def _is_door(member: Member, peer: PeerId) -> bool:
    """Return whether a broker is worth asking: one that we just lost is not, whatever others have not noticed yet."""
    return peer not in member.knocked or member.links.linked(peer)


def _complete(member: Member) -> bool:
    """Return whether we know that the run is over and hold all of it: then a silent broker is no loss."""
    return member.history.finished and member.anchor.version == member.history.version


async def _session(member: Member, council: Council, broker: PeerId) -> None:
    """Introduce ourselves, then listen and report until the stream ends or we are sent to another door."""
    async with member.links.talk(broker, "control") as stream:
        if not await _greet(member, stream):
            return
        member.knocked, member.rounds_of_knocking = [], 1
        member.attended, member.summoned = True, False
        member.followed = member.followed or broker != member.me
        reporting = asyncio.ensure_future(_report(member, stream))
        try:
            await _listen(member, council, stream)
        finally:
            member.attended, member.attended_s = False, member.now_s()
            await cancelled(reporting)


async def _greet(member: Member, stream: Stream) -> bool:
    """Return whether we were let in; False: we were sent to another broker."""
    addresses = tuple(member.links.transport.addresses())[:ADDRESSES_MAX]
    history = member.history
    await say(stream, Hello(member.run_id, PROTOCOL, history.next_index, history.epoch, addresses, member.name))
    match await within(GREETING_S_MAX, hear(stream, BrokerTalk)):
        case Welcome(run=told):
            if _identity(told) != member.run_id:
                raise PeerError("the broker described another run than the one we joined")
            return True
        case Redirect(broker=broker, addresses=there):
            if broker and broker != member.me and _is_door(member, PeerId(broker)):
                member.links.contacts.setdefault(PeerId(broker), there)
                member.broker = PeerId(broker)
            return False
        case Refused(why=why, hint=hint):
            raise PeerRefused(f"the broker refused us: {why}", hint=hint)
        case _:
            raise PeerError("the broker answered our greeting with something else")


def _identity(told: bytes) -> str:
    try:
        return identity(decode_run(told))
    except SpecError as error:
        raise PeerError(f"the broker described no run: {error}") from error


async def _listen(member: Member, council: Council, stream: Stream) -> None:
    """Take in log and plans as the broker sends them, until it says farewell."""
    while True:
        match await hear(stream, BrokerTalk):
            case Append(entries=entries):
                await council.learn(entries)
            case Plan() as plan:
                check_plan(member, plan)
                member.take_plan(plan)
                member.changes.notify()
            case Farewell():
                member.farewell = True
                member.changes.notify()
                return
            case _:
                raise PeerError("the broker sent what only a greeting is answered with")


def check_plan(member: Member, plan: Plan) -> None:
    """Refuse a plan that nobody could carry out."""
    desk = member.desk_of(plan.key)
    announced = desk.announced if desk is not None else None
    chunks = member.grid_of(plan.key).chunks if announced is None else member.given_grid(announced).chunks
    circles = member.circles_of(announced) if announced is not None else ()
    runs = [circle.chunks(chunks) for circle in circles]
    if announced is not None and announced.regions and not runs:
        runs = [range(chunks)] * (1 + max(announced.regions))
    if announced is None or not covers(plan.shards, chunks, runs):
        raise PeerError("the broker plans a round that is not open, or one without an owner for every chunk")
    if plan.settled is not None and (
        len(plan.settled) != len(announced.members) or all(serial is None for serial in plan.settled)
    ):
        raise PeerError("the broker settled a round on nobody, or on others than its members")
    if plan.trees:
        owners = frozenset(plan.owners)
        inside = [peer in owners for peer in announced.members]
        whole = sum(tree.chunks for tree in plan.trees) == member.grid_of(plan.key).chunks
        carriers = len(owners) == sum(inside) and all(is_tree(tree, inside) for tree in plan.trees)
        if not (whole and carriers):
            raise PeerError("the broker plans trees that are none, or not for every chunk")


async def _report(member: Member, stream: Stream) -> None:
    """Say what the broker must hear, whenever it changes."""
    said: list[FromMember] = []

    def unsaid() -> list[FromMember]:
        due = _due(member)
        # It names no plan: what was said of an earlier one, perhaps before the broker had any, must be said again.
        said[:] = [message for message in said if message in due or not isinstance(message, Spoiled)]
        return [message for message in due if message not in said]

    try:
        while True:
            for message in await member.changes.until(unsaid):
                await say(stream, message)
                said.append(message)
            said[:] = said[-SAID_MAX:]
    except PeerLost:
        return  # the listening side notices too, and starts the next session


def _due(member: Member) -> list[FromMember]:
    leave: list[FromMember] = [Leave(member.leaving)] if member.leaving else []
    wanted = member.wanted
    settings: list[FromMember] = [wanted] if wanted is not None and wanted.run != member.history.settings else []
    return [*settings, *member.standing(), *member.reports, *leave]
