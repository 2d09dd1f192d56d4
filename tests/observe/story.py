"""A small invented run, as the journals of its peers would tell it."""

from __future__ import annotations

from atoll import journal
from atoll.journal import Event, Line

PEERS = ("a1b2c3d4", "0f9e8d7c", "77aa88bb")
ROUND_S = 10.0
ROUND_TOKENS = 3000


def tell(rounds: int, *, start_s: float = 1000.0, finish: bool = False) -> list[Line]:
    """Return the lines of `rounds` rounds of ten seconds each."""
    lines: list[Line] = []

    def say(at_s: float, peer: str, event: Event) -> None:
        lines.append(Line(at_s, peer, event))

    for peer in PEERS:
        say(start_s, peer, journal.PeerStarted(run="83a6ec328b51", organiser=peer == PEERS[0], device="cpu"))
    for peer in PEERS[1:]:
        say(start_s, PEERS[0], journal.PeerJoined(who=peer, roster=2))
    for version in range(1, rounds + 1):
        at_s = start_s + ROUND_S * version
        for event in _broker_opens(version):
            say(at_s - ROUND_S, PEERS[0], event)
        for peer in PEERS:
            for event in _work(version):
                say(at_s - 1.0, peer, event)
        say(at_s, PEERS[0], _committed(version))
        for peer in PEERS:
            say(at_s, peer, journal.RoundApplied(channel="outer", version=version, anchor="ab"))
    end_s = start_s + ROUND_S * rounds
    if finish:
        say(end_s, PEERS[0], journal.Evaluated(version=rounds, loss=3.25, tokens=100))
        say(end_s, PEERS[0], journal.RunFinished(version=rounds, samples=rounds * 30, tokens=rounds * ROUND_TOKENS))
        for peer in PEERS:
            say(end_s, peer, journal.PeerStopped(why="the run is complete", version=rounds))
    return lines


def _broker_opens(version: int) -> list[Event]:
    return [journal.RoundAnnounced(channel="outer", version=version, members=list(PEERS), samples=30, first=0)]


def _work(version: int) -> list[Event]:
    traffic = 1_000_000 * version
    return [
        journal.WorkProgressed(
            channel="outer", version=version, steps=5, steps_of=5, loss=6.0 - version, tokens=1000, took_s=2.0
        ),
        journal.ContributionSent(channel="outer", version=version, attempt=0, sent_bytes=10, took_s=0.1),
        journal.TrafficCounted(sent_bytes=traffic, received_bytes=2 * traffic, round_sent_bytes=traffic // 2),
    ]


def _committed(version: int) -> Event:
    return journal.RoundCommitted(
        channel="outer", version=version, contributors=list(PEERS), samples=30, tokens=ROUND_TOKENS, result="00"
    )
