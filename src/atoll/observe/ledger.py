"""The audit: from two peers' journals alone, was any sample lost or counted twice?

It shares no code with those who hand out and count: journal lines are read here as plain JSON and the sums are
done again. The two journals must tell one story, version by version; what one of them missed (its peer slept or
was killed) is filled from the other and said. The story itself must add up:

    handed  =  counted + returned + carried      of every version; a voided try returns all
    a position is handed again only after it went back, and counted in one version only; what is set apart for the next
    version, or carried into it, waits to be handed out
    every position below the highest handed one is counted, waiting to be handed again, or in a round that is open

Several rounds may be open: so what was handed out and went back is followed in the order in which it happened.

With the data manifest positions become samples: each epoch holds every sample once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import Struct

from atoll.errors import SpecError
from atoll.observe.book import (
    Announced,
    Book,
    Committed,
    Finished,
    Leased,
    OfRound,
    Ranges,
    Started,
    Voided,
    clip,
    in_order,
)
from atoll.observe.spans import Spans, from_ranges, of, up_to

T = TypeVar("T")
_NONE = Spans()


class Finding(Struct, frozen=True):
    """Something that must not be."""

    kind: str
    what: str
    version: int | None = None


@dataclass
class Ledger:
    """What the two journals add up to."""

    books: tuple[Book, Book]
    committed: int = 0
    voided: int = 0
    open_rounds: int = 0
    handed: int = 0
    counted: Spans = _NONE
    waiting: Spans = _NONE
    open: Spans = _NONE
    tokens: int = 0
    context: int | None = None
    """Tokens per sample, as the reported numbers say."""
    epoch_samples: int | None = None
    leases: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Per peer: rounds it took a lease for, and those it was counted in."""
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def find(self, kind: str, what: str, version: int | None = None) -> None:
        """Note something that must not be."""
        self.findings.append(Finding(kind, what, version))


def audit(one: Book, other: Book, train_tokens: int | None = None) -> Ledger:
    """Return the ledger of two journals, with everything in it that must not be."""
    _check_pair(one, other)
    ledger = Ledger((one, other))
    _note_gaps(ledger)
    _audit_rounds(ledger)
    _check_sums(ledger)
    if train_tokens is not None:
        _check_epochs(ledger, train_tokens)
    return ledger


def _check_pair(one: Book, other: Book) -> None:
    if one.peer == other.peer:
        raise SpecError(
            f"{one.path} and {other.path} are both of peer {clip(one.peer)}",
            hint="give those of two different peers",
        )
    runs = {started.run for book in (one, other) for started in book.all(Started)}
    if len(runs) > 1:
        raise SpecError(
            f"{one.path} and {other.path} tell of different runs: {clip(', '.join(sorted(runs)))}",
            hint="give two journals of one run",
        )
    if not one.versions | other.versions:
        raise SpecError(
            f"{one.path} and {other.path} tell of no round at all", hint="audit a run that has begun its first round"
        )


def _note_gaps(ledger: Ledger) -> None:
    """Say what only one of the two journals knows."""
    for book, other in (ledger.books, ledger.books[::-1]):
        missing = of({version for _, version in other.facts - book.facts})
        if missing:
            ledger.notes.append(
                f"{book.peer} did not hear, or not to the end, of round {missing} (away, asleep or killed): "
                f"filled from {other.peer}'s journal"
            )
        if book.torn:
            ledger.notes.append(f"{book.path}: cut off by a crash in line {of(book.torn)}")


@dataclass
class _Sums:
    """The story so far."""

    ever: Spans = _NONE
    counted: dict[int, Spans] = field(default_factory=dict)
    total: Spans = _NONE
    waiting: Spans = _NONE
    open: Spans = _NONE


def _audit_rounds(ledger: Ledger) -> None:
    """Go through the rounds in order: of whichever channel, they are one row and share one order of samples."""
    versions = sorted({version for book in ledger.books for version in book.versions})
    last = max((commit.version for book in ledger.books for commit in book.all(Committed)), default=0)
    standing = {version: _audit_version(ledger, version, ends=version < last) for version in versions}
    sums = _follow(ledger, standing)
    if unheard := from_ranges([(1, versions[-1])]) - of(versions):
        ledger.find("missing", f"round {unheard} is in neither journal")
    lost = up_to(sums.ever.end) - sums.total - sums.waiting - sums.open
    for what, which in (("skipped: never handed out", lost - sums.ever), ("handed out, then gone", lost & sums.ever)):
        if which:
            ledger.find("lost", f"{len(which)} positions were {what}: {which}")
    ledger.handed += len(sums.ever)
    ledger.counted |= sums.total
    ledger.waiting |= sums.waiting
    ledger.open |= sums.open


def _follow(ledger: Ledger, standing: dict[int, Announced | None]) -> _Sums:
    """Follow every position as it is handed out, goes back and is counted; of each version one try may have stood."""
    sums = _Sums()
    order = in_order(*ledger.books)
    told = {(each.version, from_ranges(each.returned)) for each in order if isinstance(each, Voided)}
    done: set[int] = set()
    for each in order:
        version, final = each.version, standing.get(each.version)
        match each:
            case Announced():
                _hand(ledger, sums, each)
                handed = from_ranges(each.handed)
                if each != final and (version, handed) not in told:
                    sums.waiting |= handed  # that it was given up neither journal says
            case Voided():
                sums.waiting |= from_ranges(each.returned)
                ledger.voided += 1
            case Committed() if version not in done:
                done.add(version)
                _count(ledger, sums, each, final)
            case _:
                pass  # committed in two ways, which was found
    for open_ in (each for version, each in standing.items() if each is not None and version not in done):
        sums.open |= from_ranges(open_.handed)
        ledger.open_rounds += 1
    return sums


def _audit_version(ledger: Ledger, version: int, *, ends: bool) -> Announced | None:
    """Check what is told of a version, and return the try at it that was committed, or is open."""
    told = [book.rounds.get(version, []) for book in ledger.books]
    tries = _distinct(each for side in told for each in side if isinstance(each, Announced))
    voids = _distinct(each for side in told for each in side if isinstance(each, Voided))
    commits = _distinct(each for side in told for each in side if isinstance(each, Committed))
    commit = commits[0] if commits else None
    _check_agreement(ledger, version, tries, voids, commits)
    final = _final(told, voids, commit)
    if final is None and commit is not None:
        ledger.find("missing", f"round {version} was committed, but neither journal says what it was given", version)
    elif commit is None and ends:
        ledger.find("missing", f"round {version} has no end in either journal, but later rounds do", version)
    taken = [_taken(side) for side in told]
    for book, own in zip(ledger.books, taken, strict=True):
        _check_lease(ledger, book.peer, version, own, tries)
        if commit is not None:
            heard = (Announced.__name__, version) in book.facts
            _check_counted(ledger, book.peer, commit, final, own, heard=heard)
    if commit is not None and all(book.peer in commit.contributors for book in ledger.books):
        _check_apart(ledger, version, final, taken)
    return final


def _distinct(told: Iterable[T]) -> list[T]:
    """Return what was told, each thing once: after a crash a peer may say the same again."""
    return list(dict.fromkeys(told))


def _final(told: Sequence[Sequence[OfRound]], voids: Sequence[Voided], commit: Committed | None) -> Announced | None:
    """Return the try at a version that was committed, or is open: the last that was announced before the end."""
    void = {from_ranges(each.returned) for each in voids}
    found: list[Announced] = []
    for side in told:
        ends = side.index(commit) if commit is not None and commit in side else len(side)
        before = [each for each in side[:ends] if isinstance(each, Announced)]
        standing = [each for each in before if from_ranges(each.handed) not in void]
        known = standing or (before if commit is not None else [])
        if known and ends < len(side):
            return known[-1]
        found += known[-1:]
    return found[-1] if found else None


def _check_agreement(
    ledger: Ledger, version: int, tries: list[Announced], voids: list[Voided], commits: list[Committed]
) -> None:
    """Check that a version has one story."""
    void = {from_ranges(each.returned) for each in voids}
    standing = [each for each in tries if from_ranges(each.handed) not in void]
    for each in standing[1:]:
        fields = _differences(standing[0], each)
        ledger.find("differ", f"round {version} was announced in two ways, none of them voided: {fields}", version)
    for other in commits[1:]:
        ledger.find("differ", f"round {version} was committed in two ways: {_differences(commits[0], other)}", version)
    for stray in void - {from_ranges(each.handed) for each in tries}:
        what = f"round {version} was voided and {stray or 'nothing'} returned, which is not what was handed out for it"
        ledger.find("sums", what, version)


def _differences(one: Struct, other: Struct) -> str:
    """Return the fields in which two records of the same kind differ, with both values."""
    names = [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
    return "; ".join(f"{name} {_say(getattr(one, name))} or {_say(getattr(other, name))}" for name in names)


def _say(value: object) -> str:
    if isinstance(value, tuple):
        ranges = all(isinstance(each, tuple) for each in value)
        return str(from_ranges(value)) or "none" if ranges else ", ".join(map(str, value)) or "nobody"
    return str(value)


def _hand(ledger: Ledger, sums: _Sums, announced: Announced) -> None:
    """Take in what was handed out."""
    handed, ahead, version = from_ranges(announced.handed), from_ranges(announced.ahead), announced.version
    if again := ((handed | ahead) & sums.ever) - sums.waiting:
        ledger.find("handed", f"round {version} was given {again} again, which had not gone back", version)
    if both := handed & ahead:
        ledger.find("twice", f"round {version} was given {both}, and so was the next", version)
    _check_size(ledger, f"round {version} handed out", announced.handed, announced.samples, version)
    sums.ever |= handed | ahead
    sums.waiting = (sums.waiting - handed) | ahead


def _count(ledger: Ledger, sums: _Sums, commit: Committed, announced: Announced | None) -> None:
    """Take in what was counted and what went back."""
    version, counted, returned = commit.version, from_ranges(commit.counted), from_ranges(commit.returned)
    carried = from_ranges(commit.carried)
    handed = from_ranges(announced.handed) if announced is not None else counted | returned | carried
    for what, which in (
        ("both counted and returned", counted & returned),
        ("both carried on and counted or returned", carried & (counted | returned)),
        ("handed out, then neither counted nor returned", handed - counted - returned - carried),
        ("counted without having been handed out for it", counted - handed),
        ("returned without having been handed out for it", returned - handed),
        ("carried on without having been handed out for it", carried - handed),
    ):
        if which:
            ledger.find("sums", f"round {version}: {which} {what}", version)
    if announced is not None and (strangers := sorted(set(commit.contributors) - set(announced.members))):
        ledger.find("lease", f"round {version} counts {', '.join(strangers)}, to whom it handed nothing", version)
    for earlier, spans in sums.counted.items() if counted & sums.total else ():
        if twice := counted & spans:
            ledger.find("twice", f"{twice} counted in round {earlier} and again in round {version}", version)
    _check_size(ledger, f"round {version} counted", commit.counted, commit.samples, version)
    sums.ever |= handed
    sums.counted[version] = counted
    sums.total |= counted
    sums.waiting = (sums.waiting | returned | carried) - counted
    ledger.committed += 1
    ledger.tokens += commit.tokens


def _check_size(ledger: Ledger, what: str, ranges: Ranges, samples: int, version: int) -> None:
    size = len(from_ranges(ranges))
    if sum(count for _, count in ranges) != size:
        ledger.find("twice", f"{what} a position twice: {sorted(ranges)}", version)
    if size != samples:
        ledger.find("reported", f"{what} {size} positions, but {samples} samples are reported", version)


class _Lease(Struct, frozen=True):
    """What a peer began to work on, for which try, and whether a void came after."""

    under: Announced | None
    spans: Spans
    void: bool

    def may_be_of(self, announced: Announced | None) -> bool:
        return self.under is None or self.under == announced


def _taken(side: Sequence[OfRound]) -> list[_Lease]:
    """Return the leases that a journal tells of for one version, in its order."""
    found: list[_Lease] = []
    under: Announced | None = None
    for place, each in enumerate(side):
        if isinstance(each, Announced):
            under = each
        elif isinstance(each, Leased):
            void = any(isinstance(later, Voided) for later in side[place:])
            found.append(_Lease(under, from_ranges(each.ranges), void))
    return found


def _check_lease(ledger: Ledger, peer: str, version: int, taken: list[_Lease], tries: list[Announced]) -> None:
    """Check what one of the two peers worked on against what was handed out."""
    for lease in taken:
        given = tries if lease.under is None else [lease.under]
        if not any(peer in each.members and not lease.spans - from_ranges(each.handed) for each in given):
            what = f"{peer} worked on {lease.spans} for round {version}, which were not handed to it"
            ledger.find("lease", what, version)


def _check_counted(
    ledger: Ledger, peer: str, commit: Committed, final: Announced | None, taken: list[_Lease], *, heard: bool
) -> None:
    """Check that a peer's lease is in what was counted if and only if the peer is a contributor."""
    version, counted = commit.version, from_ranges(commit.counted)
    leases = [lease for lease in taken if lease.may_be_of(final)]
    rounds, ins = ledger.leases.get(peer, (0, 0))
    ledger.leases[peer] = (rounds + bool(leases), ins + (peer in commit.contributors))
    if peer in commit.contributors:
        if heard and not leases:
            ledger.find("lease", f"round {version} counts {peer}, which never took a lease for it", version)
        elif leases and all(lease.spans - counted for lease in leases):
            own = leases[-1].spans
            what = f"round {version} counts {peer}, but not {own - counted} of its lease {own}"
            ledger.find("lease", what, version)
    for lease in leases if peer not in commit.contributors else ():
        if not lease.void and (both := lease.spans & counted):
            what = f"round {version} does not count {peer}, but {both} of its lease is counted"
            ledger.find("lease", what, version)


def _check_apart(ledger: Ledger, version: int, final: Announced | None, taken: Sequence[list[_Lease]]) -> None:
    """Check that two contributors did not bring the same positions."""
    last = [[lease.spans for lease in own if lease.may_be_of(final) and not lease.void][-1:] for own in taken]
    if all(last) and (both := last[0][0] & last[1][0]):
        ledger.find("lease", f"round {version}: both peers were counted with {both}", version)


def _check_sums(ledger: Ledger) -> None:
    """Check tokens per round, and the run's own sums at its end."""
    commits = _distinct(commit for book in ledger.books for commit in book.all(Committed) if commit.samples)
    ratios = Counter(commit.tokens / commit.samples for commit in commits)
    usual = ratios.most_common(1)[0][0] if ratios else 0.0
    if usual and usual == int(usual):
        ledger.context = int(usual)
    for commit in commits:
        if commit.tokens != commit.samples * usual:
            what = f"round {commit.version} reports {commit.tokens} tokens for {commit.samples} samples of {usual:g}"
            ledger.find("reported", what, commit.version)
    for finished in _distinct(each for book in ledger.books for each in book.all(Finished)):
        if (finished.samples, finished.tokens) != (len(ledger.counted), ledger.tokens):
            what = (
                f"the run reports {finished.samples} samples and {finished.tokens} tokens at its end; "
                f"{len(ledger.counted)} and {ledger.tokens} were counted"
            )
            ledger.find("reported", what, finished.version)


def _check_epochs(ledger: Ledger, train_tokens: int) -> None:
    """Turn positions into samples of epochs: a sample is `context` tokens, and one more to predict the last."""
    if ledger.context is None:
        ledger.notes.append("the journals do not say how long a sample is: epochs cannot be told")
        return
    ledger.epoch_samples = (train_tokens - 1) // ledger.context
    if ledger.epoch_samples < 1:
        what = f"the data has {train_tokens} training tokens, too few for one sample of {ledger.context}"
        ledger.find("data", f"{what}: these journals are not of a run on this data")
