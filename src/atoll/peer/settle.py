"""What becomes of work on a lease: it counts, it outlasts its round, or it is taken back.

Work and lease are one: where a round is given up, or committed without us and nothing is carried on, the lease goes
back, and with it everything our work left. The inner optimizer is put back to what it was before. That state is read
from disk, `private/V`, where it mostly is already because it is saved with checkpoints; a copy in memory would cost a
large model as much as its optimizer, all the time, for something that seldom happens.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from atoll import journal as events
from atoll.errors import LocalError
from atoll.peer.box import Box
from atoll.peer.left import counted_residual, settle_apart, settle_until
from atoll.peer.member import Member, Stint
from atoll.peer.private import Private
from atoll.peer.store import Store
from atoll.peer.train import reconcile, take_in_missed
from atoll.spec.axes.what import Grad
from atoll.swarm import lease
from atoll.swarm.log import ClosedRound, Key


def leaves_a_trace(member: Member) -> bool:
    """Return whether work moves our private state; gradients that are sent whole do not."""
    return not isinstance(member.channel.what, Grad) or member.private.moves


async def keep_private(member: Member, version: int) -> None:
    """Save our private state as it is now as the one that goes with a version, but for work that may not count."""
    save = partial(member.private.save, await counted_residual(member))
    await member.store.keep_private(version, await member.box.compute.run(save, member.private.cost))


async def take_back(member: Member, why: str) -> None:
    """Put our private state where it was before work that does not count; nothing to do where none was begun."""
    begun = member.touched
    member.begun, member.ahead = None, []
    if begun is None:
        return
    if not leaves_a_trace(member) or begun.of is not None:  # which leaves one only once it is contributed
        member.private.start_anew()
        return
    private = await member.store.private(begun.base)
    if private is None:
        raise LocalError(
            f"private/{begun.base}.safetensors is gone: work that did not count cannot be taken back",
            hint="start again: the inner optimizer then begins from zero",
        )
    await member.box.compute.run(partial(member.private.restore, private), member.private.cost)
    if begun.base < member.anchor.version:
        member.private.start_anew()  # the anchor has moved on from where our weights were then
    member.box.journal.write(events.InnerStateRestored(channel=begun.key.channel, version=begun.key.version, why=why))


async def recall(box: Box, store: Store, private: Private, version: int) -> None:
    """Take the private state after a round's work back; where that cannot be, say that it starts from zero."""
    saved = await store.private(version)
    why = f"none was saved with version {version}"
    if saved is not None:
        try:
            await box.compute.run(partial(private.restore, saved), private.cost)
            return
        except LocalError as error:
            why = f"private/{version}.safetensors: {error}"
            await store.drop_private(version)
    private.forget()
    box.journal.write(events.PrivateStateReset(why=why))


async def settle(member: Member, committed: ClosedRound) -> None:
    """Let the inner optimizer be what goes with a committed version: with our work if it counts, without if not."""
    version, store = committed.key.version, member.store
    if member.channel_of(version).room > 1:
        await settle_apart(member, committed)
        return
    begun = next((stint for stint in member.stints if stint.key.version == version), None)  # of whichever scope
    finished = member.gave(committed.key)
    counts = member.me in committed.contributors and member.me not in committed.carried
    if begun is not None and member.me in committed.carried:
        await _carry(member, begun)
    elif not counts:
        if begun is not None:
            member.box.journal.write(
                events.ContributionDropped(channel=begun.key.channel, version=version, samples=lease.size(begun.lease))
            )
            await take_back(member, "the round was committed without it")
        member.private.start_anew()  # what our weights came from is not where the others are now
        if version > member.inner:
            await store.drop_private(version)  # what the work that does not count would have left
    elif begun is not None and finished:
        member.begun = None
    elif version > member.inner and await store.has_private(version):  # we did this work before a crash
        member.begun, member.ahead = None, []
        await recall(member.box, store, member.private, version)
    else:
        await take_back(member, "it counts as done before a crash, of which nothing was kept")
        member.private.forget()  # what was kept of it went out with that work
        if member.private.feeds_back:
            member.box.journal.write(events.ResidualLost(version=version))
    member.inner = max(member.inner, version)


async def _carry(member: Member, stint: Stint) -> None:
    """Let work outlast a round that was committed without it."""
    version, store = stint.key.version, member.store
    if stint.own is None:
        if version > member.inner:
            await store.drop_private(version)  # what an earlier life left, whose contribution did not come in time
        if not stint.reconciled:
            await reconcile(member, stint)
        working: Stint | None = stint
        member.begun, member.ahead = None, [stint]
    else:
        await store.move_private(version, version + 1)
        working = next(iter(member.ahead), None)
        if working is not None:
            working.key, working.base = next_key(member, working.key), version + 1
    await take_in_missed(member, version, under_way=working is not None and working.started)
    stint.carried = stint.reconciled = True
    stint.key = next_key(member, stint.key)
    member.box.journal.write(
        events.LeaseCarried(channel=stint.key.channel, version=version, steps=stint.done, steps_of=len(stint.steps))
    )


def next_key(member: Member, key: Key) -> Key:
    """Return the key of the round after one."""
    turn = member.turn_of(key.version + 1)
    return replace(key, channel=turn.name, version=key.version + 1, unit=turn.unit)


async def settle_begun(member: Member, version: int) -> None:
    """Before another state takes the place of ours: let what became of our work be known, or take it back."""
    await settle_until(member, version)
    begun = member.begun if member.begun is not None and member.begun.of is None else None
    past = member.past.get(begun.key.version) if begun is not None else None
    if past is not None and past.committed is not None and member.me not in past.committed.carried:
        await settle(member, past.committed)
    await take_back(member, "the state was downloaded instead")
    if member.private.given is not None:  # it counts, and nobody will tell what the result left out of it
        member.box.journal.write(events.ResidualLost(version=version))
    member.private.start_anew()


async def keep_base(member: Member, stint: Stint, version: int) -> None:
    """Save the private state from before work that is not counted yet as the one that goes with a version."""
    saved = await member.store.private(stint.base)
    if saved is not None:
        kept = await member.box.compute.run(partial(member.private.from_anchor, saved), member.private.cost)
        await member.store.keep_private(version, kept)
        stint.base = version
