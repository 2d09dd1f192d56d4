"""Bugs to plant: small changes of production code, each of which breaks a promise of a round.

They were written from the promises and the production code alone, before looking at what the simulator checks: a
check that catches one was not made for it. A bug is a list of edits, old text to new text, in files of `src/atoll`;
every old text must be there exactly once, so that a bug cannot silently become none when the code moves on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "atoll"


@dataclass(frozen=True)
class Edit:
    """A piece of one file, and what stands there instead."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """What goes wrong, which promise that breaks, and how it is done."""

    name: str
    promise: str
    what: str
    edits: tuple[Edit, ...]
    skies: tuple[str, ...] = ()
    """Families of storms to search, in turn; none: all of them mixed; "points": the sweep of crash points alone."""


class Moved(Exception):
    """Production code no longer reads as a bug expects."""


def misfits(bug: Bug, package: Path) -> list[str]:
    """Return what of a bug does not fit a package: text to change that is not there, or more than once."""
    counts = [(edit, (package / edit.file).read_text("utf-8").count(edit.old)) for edit in bug.edits]
    return [
        f"{bug.name}: the text to change is {count} times in src/atoll/{edit.file}, not once; "
        f"write the bug anew for the present code, in {Path(__file__).name}:\n{edit.old}"
        for edit, count in counts
        if count != 1
    ]


def plant(bug: Bug, package: Path) -> None:
    """Put a bug into a copy of the package; raises `Moved` where it does not fit."""
    if problems := misfits(bug, package):
        raise Moved("\n".join(problems))
    for edit in bug.edits:
        path = package / edit.file
        path.write_text(path.read_text("utf-8").replace(edit.old, edit.new), "utf-8")


def _bug(name: str, promise: str, what: str, *edits: tuple[str, str, str], skies: tuple[str, ...] = ()) -> Bug:
    return Bug(name, promise, what, tuple(Edit(*edit) for edit in edits), skies)


BUGS = (
    # the council and its log
    _bug(
        "ack-before-fsync",
        "Durable",
        "a council member tells the others that it has an entry before the entry is on disk",
        (
            "peer/council.py",
            """                self._unsynced = True
                if member.me in self.raft.council:
                    await self._sync()
            case Send(peer=peer, message=message):
                await self._sync()
                self._send(PeerId(peer), message)
""",
            """                self._unsynced = True
            case Send(peer=peer, message=message):
                self._send(PeerId(peer), message)
                await self._sync()
""",
        ),
    ),
    _bug(
        "log-never-synced",
        "Durable",
        "the log's name is made durable, its bytes are not",
        (
            "peer/store.py",
            '        await self.disk.sync("log")\n        await self.disk.sync("/")\n',
            '        await self.disk.sync("/")\n',
        ),
    ),
    _bug(
        "ballot-not-saved",
        "No fork",
        "a voter forgets its term and its vote in a restart",
        ("peer/council.py", "                await member.store.keep_ballot(term, vote)\n", "                pass\n"),
        skies=("schism",),
    ),
    _bug(
        "vote-forgotten",
        "No fork",
        "a voter keeps its term, but forgets in a restart whom it voted for",
        ("peer/store.py", "msgspec.json.encode(Ballot(term, vote))", "msgspec.json.encode(Ballot(term))"),
        skies=("schism",),
    ),
    _bug(
        "stale-leader-accepted",
        "No fork",
        "a follower takes entries from a leader of an earlier term, and acknowledges them to it",
        (
            "swarm/raft.py",
            """    if said.term < raft.term:
        return raft, [Send(peer, Replicated(raft.term, False, len(raft.log) - 1))]
    actions: list[Action] = []
    if said.term > raft.term:
""",
            """    actions: list[Action] = []
    if said.term > raft.term:
""",
        ),
        (
            "swarm/raft.py",
            "Send(peer, Replicated(raft.term, True, match))",
            "Send(peer, Replicated(said.term, True, match))",
        ),
        skies=("regent", "rift"),
    ),
    _bug(
        "minority-commits",
        "Durable",
        "an entry is committed with one council member fewer than a majority",
        (
            "swarm/raft.py",
            "reached[len(reached) - majority(council)]",
            "reached[min(len(reached) - majority(council) + 1, len(reached) - 1)]",
        ),
    ),
    _bug(
        "ignorant-leader",
        "Durable",
        "council members vote for a candidate whose log lacks entries that theirs has",
        (
            "swarm/raft.py",
            "    knows_enough = (ask.last_term, ask.last_index) >= raft.log.last\n",
            "    knows_enough = True\n",
        ),
        skies=("rift", "regent", "doubt", "blackout", "rot"),
    ),
    _bug(
        "old-term-counted",
        "Durable",
        "a new leader takes an entry of an earlier term for final as soon as a majority has it",
        (
            "swarm/raft.py",
            "    if most < raft.committed or raft.log.term(most) != raft.term:\n",
            "    if most < raft.committed:\n",
        ),
        skies=("regent", "rift", "schism"),
    ),
    _bug(
        "own-log-believed",
        "No fork",
        "after a restart a peer takes everything in its own log for committed",
        (
            "peer/life.py",
            "    committed = applied[0] if applied else 0\n",
            "    committed = len(entries) if applied else 0\n",
        ),
        skies=("rift", "regent", "doubt", "blackout", "rot"),
    ),
    _bug(
        "torn-tail-kept",
        "Durable",
        "a torn append is left in the log file, and the next entries are written after it",
        ("peer/store.py", "        if sound < len(data):\n", "        if sound == 0 < len(data):\n"),
        skies=("rot", "doubt", "pair"),
    ),
    # leases
    _bug(
        "used-leases-go-back",
        "Counted once",
        "a committed contribution's lease goes back all the same, and is handed out again",
        (
            "swarm/log.py",
            "        returned=lease.give_back(history.returned, [closed.returned]),\n",
            "        returned=lease.give_back(history.returned, [open_.ranges]),\n",
        ),
    ),
    _bug(
        "lease-handed-twice",
        "Counted once",
        "a returned lease that is handed out stays among those to hand out",
        (
            "swarm/log.py",
            "    return replace(history, under_way=under_way, returned=left.returned, fresh=left.fresh,",
            "    return replace(history, under_way=under_way, fresh=left.fresh,",
        ),
    ),
    _bug(
        "dropped-lease-lost",
        "Counted once",
        "the lease of a member whose contribution is not in the commit never goes back",
        (
            "swarm/log.py",
            "        returned=lease.give_back(history.returned, [closed.returned]),\n",
            "",
        ),
    ),
    _bug(
        "voided-leases-lost",
        "Counted once",
        "the leases of a round that is given up never go back",
        (
            "swarm/log.py",
            "    return replace(history, under_way=under_way, returned=lease.give_back(history.returned, gone))\n",
            "    return replace(history, under_way=under_way)\n",
        ),
        skies=("pair",),
    ),
    _bug(
        "dropped-samples-reported",
        "Counted once",
        "samples and tokens of contributions that were dropped are reported as trained on",
        (
            "swarm/ledger.py",
            "    counted = lease.without(lease.give_back((), [opened.ranges]), unused)\n",
            "    counted = lease.give_back((), [opened.ranges])\n",
        ),
    ),
    _bug(
        "inner-state-kept",
        "Counted once",
        "a dropped contribution's lease goes back, but the inner optimizer keeps what its work left",
        (
            "peer/settle.py",
            '            await take_back(member, "the round was committed without it")\n',
            "            member.begun = None\n",
        ),
    ),
    _bug(
        "restore-only-claimed",
        "Counted once",
        "the journal says that the inner optimizer was put back, and it was not",
        (
            "peer/settle.py",
            """    await member.box.compute.run(partial(member.private.restore, private), member.private.cost)
    if begun.base""",
            "    if begun.base",
        ),
    ),
    _bug(
        "carried-lease-goes-back",
        "Counted once",
        "the lease of a member that works on is handed out to somebody else as well",
        (
            "swarm/log.py",
            "        returned=() if stays else open_.unused(in_),\n",
            "        returned=open_.unused(in_),\n",
        ),
    ),
    _bug(
        "carried-work-saved",
        "Counted once",
        "a checkpoint in the middle of work that outlasts a round is saved with what that work left so far",
        (
            "peer/apply.py",
            "        await keep_base(member, stint, version)\n",
            "        await keep_private(member, version)\n",
        ),
    ),
    _bug(
        "held-work-counted",
        "Counted once",
        "work that takes two rounds is counted in the first of them, and again in the second",
        (
            "swarm/log.py",
            "    counts = frozenset[bytes]() if open_.holds else in_\n",
            "    counts = in_\n",
        ),
    ),
    # the exchange
    _bug(
        "arrival-order-merge",
        "One history",
        "an owner adds contributions up in the order in which they came",
        (
            "peer/reduce.py",
            "[[owned.parts[c][index] for c in target] for (_, index), target in batch]\n        weights",
            "[[owned.parts[c][index] for c in owned.parts if c in target]"
            " for (_, index), target in batch]\n        weights",
        ),
        skies=("squall", "tide", "regent", "doubt"),
    ),
    _bug(
        "counted-by-number",
        "All or nothing",
        "a set of contributions is named by how many they are, so that a result of others passes for the settled one",
        (
            "swarm/messages.py",
            'c.peer + c.serial.to_bytes(8, "little", signed=True) for c in contributions',
            'b"one more" for _ in contributions',
        ),
        skies=("relay",),
    ),
    _bug(
        "never-reduced-again",
        "All or nothing",
        "a chunk that was reduced for another set than the settled one is not reduced again",
        (
            "peer/reduce.py",
            "and self._made(group, index) != set_id(target):",
            "and self._made(group, index) is None:",
        ),
    ),
    _bug(
        "held-result-applied",
        "One history",
        "a member applies the result it holds, though another one was committed",
        (
            "peer/apply.py",
            "    if desk is not None and desk.held is not None and desk.held.root() == committed.result:\n",
            "    if desk is not None and desk.held is not None:\n",
        ),
    ),
    _bug(
        "serials-repeat",
        "All or nothing",
        "a contribution computed anew after a restart has the number of the one before",
        (
            "peer/member.py",
            "        return self.life * LIFE_CONTRIBUTIONS_MAX + self._made\n",
            "        return self._made\n",
        ),
        skies=("relay",),
    ),
    _bug(
        "not-brought-again",
        "All or nothing",
        "a contribution is not brought to the owners of a later plan",
        (
            "peer/exchange.py",
            "own is None or (*plan_id(plan), own.serial) in done:",
            "own is None or any((own.key, own.serial) == (d[0], d[3]) for d in done):",
        ),
    ),
    _bug(
        "stale-report-counts",
        "All or nothing",
        "the broker takes what a member reports of an earlier plan for a report of the present one",
        (
            "swarm/broker.py",
            """            if not isinstance(message, Spoiled) and (message.epoch, message.attempt) != (
                broker.epoch,
                round_.attempt,
            ):
                return broker, []
            return""",
            "            return",
        ),
        skies=("squall", "tide", "regent", "doubt"),
    ),
    _bug(
        "stale-plan-followed",
        "No fork",
        "a member follows a plan that is older than the one it follows",
        (
            "peer/desk.py",
            """        if self.plan is not None and _age(plan) < _age(self.plan):
            return
""",
            "",
        ),
        skies=("squall", "tide", "regent", "doubt"),
    ),
    _bug(
        "later-round-first",
        "One history",
        "of several rounds under way whichever is held first is committed",
        (
            "swarm/round.py",
            "commits=commits and round_ is broker.round)",
            "commits=commits)",
        ),
        (
            "swarm/log.py",
            """    _must(open_ is history.open, "a round is committed before another that was announced before it")
""",
            "",
        ),
        skies=("ebb",),
    ),
    _bug(
        "later-rounds-left-open",
        "Counted once",
        "the leases of the rounds after one that is given up stay out, though these end with it",
        (
            "swarm/log.py",
            "    gone = (part for each in over for part in (each.ranges, each.ahead))\n",
            "    gone = (part for each in over[:1] for part in (each.ranges, each.ahead))\n",
        ),
        skies=("ebb",),
    ),
    _bug(
        "plan-of-one-for-all",
        "All or nothing",
        "a plan of one round takes the place of those of all that are under way",
        (
            "peer/member.py",
            """        self.desks[plan.key.version].take_plan(plan""",
            """        for desk in self.desks.values():
            desk.plan = None
        self.desks[plan.key.version].take_plan(plan""",
        ),
        skies=("ebb",),
    ),
    _bug(
        "takeover-loses-chunks",
        "All or nothing",
        "what a dead owner owned is given to nobody",
        (
            "swarm/routes/owners.py",
            "        shards += take_over(own, gone, heirs, dict(zip(heirs, rates, strict=True)))\n",
            """        kept = [shard for shard in own if shard.owner not in gone]
        shards += kept or take_over(own, gone, heirs, dict(zip(heirs, rates, strict=True)))
""",
        ),
        skies=("squall", "tide", "pair", "regent"),
    ),
    _bug(
        "one-holder",
        "Durable",
        "a round is committed when one member has its result on disk",
        ("swarm/round.py", "HOLDERS_MIN = 2\n", "HOLDERS_MIN = 1\n"),
        skies=("pair", "blackout"),
    ),
    _bug(
        "holding-before-disk",
        "Durable",
        "a member says that it holds a result before the result is on disk",
        (
            "peer/exchange.py",
            """        await draft.close(result.digests)
        done[:] = [*done[-8:], plan_id(plan)]
        for earlier in [*member.closed.values()][: 1 - member.lanes or None]:
            earlier.held = None  # it is on disk
        desk.held = result
        member.report(Holding(*plan_id(plan), result.root()))
""",
            """        done[:] = [*done[-8:], plan_id(plan)]
        for earlier in [*member.closed.values()][: 1 - member.lanes or None]:
            earlier.held = None  # it is on disk
        desk.held = result
        member.report(Holding(*plan_id(plan), result.root()))
        await draft.close(result.digests)
""",
        ),
        skies=("rot", "pair"),
    ),
    _bug(
        "unsynced-save",
        "Durable",
        "a file takes the place of another before its bytes are on disk",
        ("disk.py", "    await disk.sync(beside)\n", ""),
    ),
    # what others send
    _bug(
        "returned-chunk-unverified",
        "Bad input",
        "a reduced chunk is kept without a look at its digest or its values",
        ("peer/exchange.py", "        _check_returned(member, plan, returned)\n", ""),
        skies=("points",),
    ),
    _bug(
        "fetched-piece-unverified",
        "Bad input",
        "a piece of a result or a state is kept without a look at its digest",
        (
            "peer/gather.py",
            """        if blake3(chunk.data).digest() != self.digests[chunk.index]:
            raise PeerError(f"piece {chunk.index} does not match its digest")
""",
            "",
        ),
        skies=("points",),
    ),
    _bug(
        "stale-sum-passed-on",
        "All or nothing",
        "what came from below along other ways goes into this plan's sums",
        (
            "peer/carry.py",
            "        return all(each is not None and each.of == of for each, of in came)\n",
            "        return all(each is not None for each, of in came)\n",
        ),
        skies=("relay", "doubt", "pair"),
    ),
    _bug(
        "spoiled-settled",
        "Bad input",
        "a round is settled with a contribution that was refused",
        (
            "swarm/round.py",
            "    in_ = [p for p in among if p in round_.serials and p not in round_.spoiled] if why else []\n",
            "    in_ = [p for p in among if p in round_.serials] if why else []\n",
        ),
        (
            "swarm/round.py",
            "    settled = tuple(Contribution(p, have[p]) for p in among if p in have and p not in round_.spoiled)\n",
            "    settled = tuple(Contribution(p, have[p]) for p in among if p in have)\n",
        ),
        skies=("doubt",),
    ),
    _bug(
        "not-finite-accepted",
        "Bad input",
        "values that are not finite, or too large, go into the mean",
        ("sync/codec/__init__.py", "    if problem := _why_not(codec, data, count):\n", "    if problem := '':\n"),
        (
            "peer/reduce.py",
            "    if not (float(made.max()) <= limit and float(made.min()) >= -limit):\n",
            "    if not made.size:\n",
        ),
        skies=("points",),
    ),
    _bug(
        "garbage-crashes",
        "Bad input",
        "what a stranger sends on a stream ends the peer",
        (
            "peer/links.py",
            '            self._journal.write(events.MessageRefused(who=short(peer), why=f"{tag}: {error}"))\n'
            "            stream.reset()\n",
            "            raise\n",
        ),
    ),
    _bug(
        "joiner-stands-at-once",
        "Live",
        "a joiner stands, and is counted in, before it has the state",
        (
            "peer/work.py",
            """    if member.anchor.version >= member.history.version:
        stand(member)
    if _is_broker""",
            """    stand(member)
    if _is_broker""",
        ),
        (
            "swarm/broker.py",
            "        and (presence.standing.version >= version - LAG_MAX or _carries(broker, peer))\n",
            "",
        ),
        skies=("tide",),
    ),
    _bug(
        "patience-without-end",
        "Live",
        "a round is not settled while somebody who is present has not contributed",
        (
            "swarm/round.py",
            '    why = _overdue(broker, round_, open_, now_s) if open_ else "everybody present contributed"\n',
            '    why = "" if open_ else "everybody present contributed"\n',
        ),
        skies=("drag",),
    ),
    # parts of a model, and channels that take turns
    _bug(
        "missed-weights-kept",
        "One history",
        "who was not in a round of parts goes on from its own weights, which are not what the others go on from",
        (
            "peer/settle.py",
            "        member.private.start_anew()  # the anchor has moved on from where our weights were then\n",
            "        pass\n",
        ),
        (
            "peer/settle.py",
            "        member.private.start_anew()  # what our weights came from is not where the others are now\n",
            "",
        ),
    ),
    _bug(
        "start-moved-by-others",
        "One history",
        "an outer step starts from weights that rounds of another channel have moved",
        (
            "sync/merge.py",
            "    anchor.weights[:] = start\n    step(anchor)\n",
            "    step(anchor)\n",
        ),
    ),
    # knobs that are turned
    _bug(
        "quotas-outlive-knobs",
        "Turned alike",
        "members are given as many samples as before their number of steps was changed",
        (
            "swarm/broker.py",
            "    return replace(broker, quotas={}, pace=Pace(), measured=(), closed=None)\n",
            "    return replace(broker, pace=Pace(), measured=(), closed=None)\n",
        ),
        skies=("helm",),
    ),
    _bug(
        "knobs-at-once",
        "Turned alike",
        "a peer takes the newest position of the knobs for that of all rounds, also of those before",
        (
            "swarm/log.py",
            "    return next((turn.knobs for turn in reversed(history.turned) if turn.version <= version), None)\n",
            "    return next((turn.knobs for turn in reversed(history.turned)), None)\n",
        ),
        skies=("helm",),
    ),
    # weights of everybody's own
    _bug(
        "late-mass-forgotten",
        "Counted once",
        "who missed a round of masses takes what came in place of what it has, not beside it",
        ("peer/member.py", "        return mass / (mass + more)\n", "        return 0.0\n"),
        skies=("tide",),
    ),
)
