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
from atoll.peer.links import hear, say, within
from atoll.peer.member import Member
from atoll.spec.load import decode_run
from atoll.spec.run import PROTOCOL, canonical, identity
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
    Welcome,
)

BrokerTalk: Wire[FromBroker] = Wire(FromBroker)
RETRY_S = 1.0
RETRY_S_MAX = 15.0
GREETING_S_MAX = 30.0
SAID_MAX = 32
"""Reports remembered as said; more than one plan can ask for."""


async def follow(member: Member) -> None:
    """Keep a session with the broker until farewell, or until we leave; raises `PeerRefused`."""
    wait_s = RETRY_S
    while not member.farewell:
        try:
            if await _session(member):
                wait_s = RETRY_S
            else:  # sent on to another door: no faster than after a loss, lest two doors send us to and fro
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_S_MAX)
        except PeerRefused:
            raise
        except PeerError as lost:
            if member.farewell or member.leaving or _complete(member):
                break
            member.box.journal.write(events.PeerLost(who=short(member.broker), why=f"broker: {lost}"))
            member.broker = _next_door(member)
            await asyncio.sleep(wait_s * (0.5 + member.box.random.random()))
            wait_s = min(2 * wait_s, RETRY_S_MAX)
        if member.leaving:
            break
    member.farewell = True
    member.changes.notify()


def _next_door(member: Member) -> PeerId:
    """Return whom to try next: the broker that the log names; before we know any of it, our contacts in turn."""
    if member.history.broker:
        return PeerId(member.history.broker)
    doors = [peer for peer in member.links.contacts if peer != member.me] or [member.broker]
    return doors[(doors.index(member.broker) + 1) % len(doors)] if member.broker in doors else doors[0]


def _complete(member: Member) -> bool:
    """Return whether we know that the run is over and hold all of it: then a silent broker is no loss."""
    return member.history.finished and member.anchor.version == member.history.version


async def _session(member: Member) -> bool:
    """Introduce ourselves, then listen and report until the stream ends; False: we were sent to another door."""
    async with member.links.talk(member.broker, "control") as stream:
        if not await _greet(member, stream):
            return False
        reporting = asyncio.ensure_future(_report(member, stream))
        try:
            await _listen(member, stream)
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])
    return True


async def _greet(member: Member, stream: Stream) -> bool:
    """Return whether we were let in; False: we were sent to another broker."""
    addresses = tuple(member.links.transport.addresses())[:ADDRESSES_MAX]
    await say(stream, Hello(member.run_id, PROTOCOL, member.history.next_index, addresses, member.name))
    match await within(GREETING_S_MAX, hear(stream, BrokerTalk)):
        case Welcome(run=told):
            await _take_settings(member, told)
            return True
        case Redirect(broker=broker, addresses=there):
            member.broker = PeerId(broker)
            member.links.contacts[member.broker] = there
            return False
        case Refused(why=why, hint=hint):
            raise PeerRefused(f"the broker refused us: {why}", hint=hint)
        case _:
            raise PeerError("the broker answered our greeting with something else")


async def _take_settings(member: Member, told: bytes) -> None:
    """Follow the organiser where it changed what may change: budget, membership, upkeep."""
    if told == canonical(member.run):
        return
    try:
        run = decode_run(told)
    except SpecError as error:
        raise PeerError(f"the broker described no run: {error}") from error
    if identity(run) != member.run_id:
        raise PeerError("the broker described another run than the one we joined")
    member.run = run
    await member.store.keep_run(told)


async def _listen(member: Member, stream: Stream) -> None:
    """Take in log and plans as the broker sends them, until it says farewell."""
    while True:
        match await hear(stream, BrokerTalk):
            case Append(entries=entries):
                fresh = [e for e in entries if e.index >= member.history.next_index]
                for entry in fresh:
                    member.learn(entry)  # refuses what does not add up, before it is kept
                if member.keeps_log and fresh:
                    await member.store.append(fresh, durable=False)
            case Plan() as plan:
                _check_plan(member, plan)
                member.take_plan(plan)
            case Farewell():
                member.farewell = True
                member.changes.notify()
                return
            case _:
                raise PeerError("the broker sent what only a greeting is answered with")
        member.changes.notify()


def _check_plan(member: Member, plan: Plan) -> None:
    """Refuse a plan that nobody could carry out."""
    announced = member.history.open
    if announced is None or announced.key != plan.key or not plan.owners:
        raise PeerError("the broker plans a round that is not open, or one without owners")
    if plan.settled is not None and not 0 < len(plan.settled) == len({c.peer for c in plan.settled}):
        raise PeerError("the broker settled a round on nobody, or on somebody twice")
    if any(c.peer not in announced.members for c in plan.settled or ()):
        raise PeerError("the broker settled a round on somebody who is not in it")


async def _report(member: Member, stream: Stream) -> None:
    """Say what the broker must hear, whenever it changes."""
    said: list[FromMember] = []

    def unsaid() -> list[FromMember]:
        return [message for message in _due(member) if message not in said]

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
    return [*member.standing(), *member.reports, *leave]
