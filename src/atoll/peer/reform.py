"""Putting a new council in place of one that lost its majority for good: the organiser's last resort.

Nothing can be committed without a majority, so a person has to say that the others will not come back. The
organiser then asks every peer it can reach for its log, takes the one that knows most, and signs a new council of
itself alone; the broker fills the other seats by itself. A commit that only the lost members knew of is lost with
them; that is why nobody but a person may ask for this. Should they come back after all, they find that their log
differs and are told to join again.
"""

from __future__ import annotations

import asyncio

from atoll import journal as events
from atoll.errors import LocalError, PeerError
from atoll.net.identity import short
from atoll.net.transport import PeerId, Stream
from atoll.peer.council import Council
from atoll.peer.links import hear, say, within
from atoll.peer.member import Member
from atoll.peer.messages import AskLog, AskTalk, KnownLog
from atoll.swarm.log import CouncilChanged, CouncilReformed, Entry, to_sign

BATCH_ENTRIES = 256
ANSWER_S_MAX = 30.0
"""How long a peer may take over one batch of its log."""


async def reform(member: Member, council: Council) -> None:
    """Take the log that knows most of all we can reach, and have our council re-formed on it."""
    founders = [e.record.members for e in council.raft.log.slice(0, 1) if isinstance(e.record, CouncilChanged)]
    if founders != [(member.me,)]:
        raise LocalError(
            "only the organiser can re-form the council, and this peer did not open the run",
            hint="run it in the folder in which `atoll train` opened the run, whose key began the log",
        )
    peers = [peer for peer in member.links.contacts if peer != member.me]
    known = await asyncio.gather(*(_ask(member, peer) for peer in peers))
    logs = [(term, entries) for term, entries in known if entries]
    own = council.raft.log.slice(0)
    best = max([own, *(entries for _, entries in logs)], key=lambda log: (log[-1].term, len(log)))
    _must_agree(best, own, council.raft.committed)
    await council.adopt(best)
    record = CouncilReformed((member.me,), _generation(best) + 1, b"")
    record = CouncilReformed(record.members, record.generation, member.box.sign(to_sign(record, member.run_id)))
    told = [short(peer) for peer, (_, entries) in zip(peers, known, strict=True) if entries]
    member.box.journal.write(events.CouncilReformed(asked=len(peers), told=told, entries=len(best)))
    await council.reform(record, max((term for term, _ in logs), default=0))


def _must_agree(best: tuple[Entry, ...], own: tuple[Entry, ...], committed: int) -> None:
    if best[:committed] != own[:committed]:
        raise LocalError(
            "another peer's log contradicts what is committed here",
            hint="two councils have been at work; keep the folder of the one you trust and move the others away",
        )


def _generation(log: tuple[Entry, ...]) -> int:
    return sum(isinstance(entry.record, CouncilReformed) for entry in log)


async def _ask(member: Member, peer: PeerId) -> tuple[int, tuple[Entry, ...]]:
    """Return the newest term a peer knows and its log; nothing when it cannot be reached or will not say."""
    entries: list[Entry] = []
    try:
        async with member.links.talk(peer, "ask") as stream:
            await say(stream, AskLog(member.run_id))
            while True:
                answer = await within(ANSWER_S_MAX, hear(stream, AskTalk))
                if not isinstance(answer, KnownLog):
                    return 0, ()
                entries += answer.entries
                if not answer.more:
                    break
    except PeerError:
        return 0, ()
    if [entry.index for entry in entries] != list(range(len(entries))):
        member.links.refuse(peer, "ask: a log with gaps")
        return 0, ()
    return answer.term, tuple(entries)


async def tell_log(member: Member, council: Council, peer: PeerId, stream: Stream) -> None:
    """Tell the organiser, and nobody else, everything in our log."""
    if peer != member.history.organiser:
        raise PeerError("only the organiser may ask for a log")
    log = council.raft.log
    for first in range(0, max(len(log), 1), BATCH_ENTRIES):
        entries = log.slice(first, first + BATCH_ENTRIES)
        await say(stream, KnownLog(council.raft.term, entries, first + BATCH_ENTRIES < len(log)))
