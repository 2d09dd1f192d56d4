"""One participant's life. Start reading here.

    find the run  ->  build the model  ->  remember  ->  work until it is done or we leave
      (own spec,        (engine)          (own disk)      links     others reach us
       own disk, or                                       council   agree on the log; if we lead, be the broker
       a peer's word)                                     follow    the log comes in, reports go out
                                                          work      train, contribute, apply, checkpoint
                                                          deliver, own_shard, hold: the exchange

The same program runs in the real world and in simulation: it knows only its box. This is the one
place that ends a peer; whatever another peer does wrong has been dealt with further down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from atoll import journal as events
from atoll.errors import AtollError, PeerError, PeerLost, PeerRefused, SpecError
from atoll.model.compute import Cost, Engine
from atoll.net.identity import short
from atoll.net.ticket import Contact, Ticket, print_ticket
from atoll.net.transport import PeerId, Stream
from atoll.peer import exchange
from atoll.peer.box import Box
from atoll.peer.council import Council, founding
from atoll.peer.fetch import serve_fetch
from atoll.peer.follow import follow
from atoll.peer.links import Links, hear, say
from atoll.peer.member import Member
from atoll.peer.messages import AskLog, AskRun, AskTalk
from atoll.peer.private import Private
from atoll.peer.reform import reform, tell_log
from atoll.peer.settle import recall
from atoll.peer.store import Store
from atoll.peer.work import work
from atoll.spec.axes.what import Feedback, LowRank
from atoll.spec.load import decode_run
from atoll.spec.run import PROTOCOL, Run, canonical, identity
from atoll.spec.turns import rarest, starts_apart
from atoll.swarm.log import Record, RosterChanged, RoundCommitted, SettingsChanged, to_sign
from atoll.swarm.messages import Refused, Settings, Welcome
from atoll.swarm.raft import recall as recall_raft
from atoll.swarm.state import admits
from atoll.sync.above import with_above
from atoll.sync.factors import Factors
from atoll.sync.merge import first_anchor
from atoll.sync.units import Unit, units_in

ASK_S_MAX = 20.0
"""How long one peer may take to tell us the run."""
CONTACTS_MAX = 4
"""Peers named in a ticket."""
TICKET_ADDRESSES_MAX = 6
"""Addresses of each: a ticket is pasted by people."""
LAST_WORD_S = 0.5
"""Time for the last word to reach the broker."""


@dataclass
class Start:
    """How a peer comes to a run: with its spec as the organiser, or with somebody's word for it."""

    run: Run | None = None
    """Given to the organiser only."""
    run_id: str = ""
    contacts: Mapping[PeerId, tuple[str, ...]] = field(default_factory=dict)
    name: str = ""
    reform: bool = False
    """As the organiser: put a new council in place of one that lost its majority for good."""
    memory_bytes: int = 0
    """What the exchange may take of this machine's memory; 0: no limit."""
    line_bytes_s: int = 0
    """What a person says that this machine's line carries; 0: nothing."""

    @property
    def organiser(self) -> bool:
        return self.run is not None


class Stop:
    """A way to ask a peer to leave cleanly."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.why = ""

    def ask(self, why: str) -> None:
        self.why = self.why or why
        self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()


async def live(box: Box, start: Start, stop: Stop | None = None) -> None:
    """Take part in a run until it is finished or `stop` asks us to leave; raises `AtollError`."""
    stop = stop or Stop()
    links = Links(box.transport, box.journal, start.line_bytes_s)
    links.contacts.update(start.contacts)
    try:
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(links.run())
            await _take_part(box, links, start, stop)
            listening.cancel()
    except BaseExceptionGroup as group:
        # Not `except*`: what is raised there comes out wrapped in a group by some versions of Python 3.11.
        ours, others = group.split(AtollError)
        if ours is None or others is not None:
            raise
        raise _first(ours) from None
    finally:
        await box.transport.close()


def _first(group: BaseExceptionGroup[AtollError]) -> AtollError:
    """Return the error a person should see: the first leaf."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, AtollError)
    return error


TASKS = (exchange.deliver, exchange.lend, exchange.own_shard, exchange.hold)
"""What a peer does beside its main line, in every lane."""


async def _take_part(box: Box, links: Links, start: Start, stop: Stop) -> None:
    store = Store(box.disk, box.beside)
    run = await _find_run(links, store, start)
    box.transport.limit_silence(run.upkeep.silence_s_max)
    engine = await box.build(run)
    member = await _remember(box, links, store, run, start, engine)
    council = await _take_seat(member, start)
    _open_doors(member, council)
    _say_started(member, start)
    if start.reform:
        await reform(member, council)
    async with asyncio.TaskGroup() as tasks:
        helpers = [tasks.create_task(task(member, lane)) for lane in range(member.lanes) for task in TASKS]
        duties = [tasks.create_task(duty) for duty in (council.run(), follow(member, council), work(member))]
        leaving = tasks.create_task(_leave(member, council, stop, duties))
        await asyncio.wait(duties)
        for task in (*helpers, leaving):
            task.cancel()
    why = stop.why or "the run is finished"
    box.journal.write(events.PeerStopped(why=why, version=member.anchor.version, finished=member.history.finished))


async def _leave(member: Member, council: Council, stop: Stop, duties: list[asyncio.Task[None]]) -> None:
    """Say a last word and end our duties when asked to; a broker that leaves decides nothing more."""
    await stop.wait()
    if council.office is not None:
        duties[0].cancel()
    member.leaving = stop.why
    member.changes.notify()
    await asyncio.sleep(LAST_WORD_S)
    for duty in duties:
        duty.cancel()


def _say_started(member: Member, start: Start) -> None:
    box = member.box
    resumed = member.anchor.version if member.life > 1 else None
    box.journal.write(
        events.PeerStarted(
            run=member.run_id,
            name=start.name,
            organiser=start.organiser,
            device=box.device,
            protocol=PROTOCOL,
            resumed_version=resumed,
        )
    )
    if resumed is not None and isinstance(member.channel.what.owners, Feedback):
        units = (unit for units in member.units.values() for unit in units)
        chunks = sum(unit.grid.chunks for unit in units)  # at most: which of them were ours nobody wrote down
        box.journal.write(events.ResidualLost(version=resumed, chunks=chunks))
    box.journal.write(events.TicketPrinted(ticket=print_ticket(ticket_of(member))))


def ticket_of(member: Member) -> Ticket:
    """Return a ticket that names us, the broker and a few others."""
    peers = {member.me: tuple(member.links.transport.addresses())[:TICKET_ADDRESSES_MAX]}
    others = sorted(member.links.contacts.items(), key=lambda contact: contact[0] != member.broker)
    peers |= {peer: addresses for peer, addresses in others if peer not in peers}
    contacts = tuple(Contact(p, a[:TICKET_ADDRESSES_MAX]) for p, a in list(peers.items())[:CONTACTS_MAX])
    return Ticket(run=member.run_id, peers=contacts)


# finding the run


async def _find_run(links: Links, store: Store, start: Start) -> Run:
    """Return the run: from the organiser's hand, from our disk, or from a peer of the ticket."""
    kept = await store.run()
    if start.run is not None:
        if kept is not None and identity(decode_run(kept)) != identity(start.run):
            raise SpecError(
                f"this folder holds run {identity(decode_run(kept))}, the run file describes {identity(start.run)}",
                hint="give the new run a folder of its own (--home), or undo the change to the run file",
            )
        await store.keep_run(canonical(start.run))
        return start.run
    if kept is not None and identity(decode_run(kept)) == start.run_id:
        return decode_run(kept)
    told = await _ask(links, start)
    await store.keep_run(told)
    return decode_run(told)


async def _ask(links: Links, start: Start) -> bytes:
    """Return the run's spec from the first contact that knows it, checked against the ticket."""
    problems: list[str] = []
    for peer in start.contacts:
        try:
            async with asyncio.timeout(ASK_S_MAX):
                async with links.talk(peer, "ask") as stream:
                    await say(stream, AskRun(start.run_id, PROTOCOL))
                    answer = await hear(stream, AskTalk)
        except (PeerError, TimeoutError) as error:
            problems.append(f"{short(peer)} at {', '.join(links.contacts[peer])}: {error or 'no answer'}")
            continue
        match answer:
            case Welcome(run=told) if _describes(told, start.run_id):
                return told
            case Refused(why=why, hint=hint):
                raise PeerRefused(why, hint=hint)
            case _:
                problems.append(f"{short(peer)}: it described another run than the ticket's")
    raise PeerLost(
        "no peer of the ticket could be reached: " + "; ".join(problems),
        hint="is the run still going, and can this machine reach those addresses? Ask for a fresh ticket",
    )


def _describes(told: bytes, run_id: str) -> bool:
    """Return whether what a peer told us is the run we look for."""
    try:
        return identity(decode_run(told)) == run_id
    except SpecError:
        return False


def _tell_run(member: Member, council: Council) -> Callable[[PeerId, Stream], Awaitable[None]]:
    """Return the handler that tells newcomers the run."""

    async def answer(peer: PeerId, stream: Stream) -> None:
        asked = await hear(stream, AskTalk)
        if isinstance(asked, AskLog):
            await tell_log(member, council, peer, stream)
            return
        if not isinstance(asked, AskRun):
            raise PeerError("a newcomer must ask for a run")
        if asked.run != member.run_id:
            await say(stream, Refused(f"this is run {member.run_id}, not {asked.run}", "ask for a ticket of this run"))
        elif not admits(member.run, peer, member.history.organiser or member.broker):
            why = "this run is for listed peers only"
            hint = f"ask the organiser to add {peer.hex()} to membership.who.peers"
            member.box.journal.write(events.JoinRefused(who=short(peer), why=why))
            await say(stream, Refused(why, hint))
        elif asked.protocol != PROTOCOL:
            why = f"you speak protocol {asked.protocol}, this run speaks {PROTOCOL}"
            await say(stream, Refused(why, "install the same version of Atoll as the organiser"))
        else:
            await say(stream, Welcome(canonical(member.run)))

    return answer


# remembering


async def _remember(box: Box, links: Links, store: Store, run: Run, start: Start, engine: Engine) -> Member:
    """Return our desk as the disk knows it: the newest checkpoint, the log, our private state."""
    life = await store.boot()
    anchor = await store.anchor()
    recipe, (factors, units) = run.recipe, _travels(run, engine)
    private = Private(engine, recipe)
    if anchor is None:
        weights = await box.compute.run(engine.weights, Cost(moved_bytes=4.0 * engine.size))
        anchor = first_anchor(rarest(recipe).merge.outer, weights, apart=starts_apart(recipe))
        if (home := rarest(recipe).regional) is not None:
            anchor = with_above(home, anchor)
        if factors is not None:
            anchor = replace(anchor, basis=await box.compute.run(factors.first_basis, Cost(moved_bytes=weights.nbytes)))
    else:
        await recall(box, store, private, anchor.version)
    member = Member(
        box=box,
        links=links,
        store=store,
        run=run,
        run_id=identity(run),
        engine=engine,
        private=private,
        units=units,
        factors=factors,
        life=life,
        anchor=anchor,
        digest=await box.compute.run(anchor.digest, Cost(moved_bytes=4.0 * engine.size)),
        broker=links.me if start.organiser else next(iter(start.contacts)),
        name=start.name,
        memory_bytes=start.memory_bytes,
    )
    if start.run is not None:
        settings = SettingsChanged(canonical(start.run), b"")
        member.wanted = Settings(settings.run, box.sign(to_sign(settings, member.run_id)))
    return member


def _travels(run: Run, engine: Engine) -> tuple[Factors | None, dict[str, tuple[Unit, ...]]]:
    """Return what each channel's rounds are about, in turn, and how matrices become factors where they do."""
    named = run.recipe.channel
    transform = rarest(run.recipe).what.transform
    if not isinstance(transform, LowRank):
        return None, {name: units_in(channel, engine.layout) for name, channel in named.items()}
    factors = Factors(transform, engine.shapes, run.seeds.model)
    return factors, {name: factors.units(channel.what.codec) for name, channel in named.items()}


async def _take_seat(member: Member, start: Start) -> Council:
    """Return our part in the council as the disk knows it; an organiser without a log begins one.

    What our anchor is made of is committed; what follows in our log may be, and is learned when we hear that it is.
    """
    store = member.store
    entries = await store.log()
    if not entries and start.organiser:
        entries = [founding(member.me)]
        await store.append(entries, durable=True)
    applied = [e.index + 1 for e in entries if _brought(e.record, member.anchor.version)]
    committed = applied[0] if applied else 0
    for entry in entries[:committed]:
        member.learn(entry, again=True)
    for entry in entries[committed:]:
        if isinstance(entry.record, RosterChanged):  # committed or not, it says where others can be found
            member.links.contacts.update({PeerId(m.peer): m.addresses for m in entry.record.joined})
    ballot = await store.ballot()
    chance = member.box.random.random()
    return Council(member, recall_raft(member.me, ballot.term, ballot.vote, entries, committed, chance))


def _brought(record: Record, version: int) -> bool:
    return isinstance(record, RoundCommitted) and record.key.version == version


def _open_doors(member: Member, council: Council) -> None:
    """Let other peers' streams in."""
    member.links.serve(
        {
            "ask": _tell_run(member, council),
            "control": council.attend,
            "council": council.listen,
            "part": partial(exchange.take_part, member),
            "result": partial(exchange.take_result, member),
            "fetch": partial(serve_fetch, member),
        }
    )
