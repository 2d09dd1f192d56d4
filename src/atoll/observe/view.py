"""The live terminal view of a run.

It reads journals and nothing else, so it can be opened, closed and opened again, here or on a copy of the files, and
a run never notices. On a terminal it redraws one screen; elsewhere (a pipe, a log file) it prints one plain line for
each committed round and for what a person would want to know.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from atoll.observe.progress import PeerProgress, Progress, RoundProgress, left_s, part_done
from atoll.observe.tail import Tail
from atoll.spec.run import Run
from atoll.units import say_bytes, say_count, say_time

LOOK_S = 0.25
"""Between two looks at the files."""
SILENT_S = 30.0
"""A peer that wrote nothing for so long is shown as silent; its step may just be slow."""
PEERS_SHOWN = 16
EVENTS_SHOWN = 6
LOSS_MAX = 1e6
"""What is beyond it, or no number, is not drawn: it would flatten all the rest."""

_BARS = "▁▂▃▄▅▆▇█"
_STATE_STYLES = {"working": "green", "exchanging": "cyan", "applied": "green", "stopped": "dim", "silent": "yellow"}


_COLUMNS = (
    ("peer", 0),
    ("state", 0),
    ("round", 0),
    ("step", 0),
    ("loss", 0),
    ("tokens/s", 60),
    ("sent", 70),
    ("received", 80),
)
"""Columns of the table of peers, and the least width of a terminal that has room for each."""


def follow(
    home: Path,
    *,
    run: Run | None = None,
    done: Callable[[], bool] | None = None,
    console: Console | None = None,
) -> Progress:
    """Show the run below `home` until every peer has stopped, or until `done` says so; return how it stands then.

    Ctrl-C raises `KeyboardInterrupt` after the terminal is put back in order.
    """
    console = console or Console(stderr=True)
    tail, progress = Tail(home), Progress()
    finished = done or (lambda: _over(progress, time.time()))
    if console.is_terminal:
        _follow_live(tail, progress, run, finished, console)
    else:
        _follow_plain(tail, progress, run, finished, console)
    return progress


def _follow_live(tail: Tail, progress: Progress, run: Run | None, done: Callable[[], bool], console: Console) -> None:
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            last = done()  # asked before reading: what was written until then is still shown
            _take(tail, progress)
            live.update(render(progress, run, time.time(), width=console.width, unknown=tail.unknown), refresh=True)
            if last:
                return
            time.sleep(LOOK_S)


def _follow_plain(tail: Tail, progress: Progress, run: Run | None, done: Callable[[], bool], console: Console) -> None:
    plain = Plain(run)
    while True:
        last = done()
        for line in tail.lines():
            progress.add(line)
            for text in plain.lines(progress):
                console.print(text, markup=False, highlight=False, soft_wrap=True)
        if last:
            return
        time.sleep(LOOK_S)


def _over(progress: Progress, now_s: float) -> bool:
    """Return whether nothing more will come: a peer that was killed never says so."""
    return progress.over or (progress.finished is not None and now_s - progress.last_s > SILENT_S)


def _take(tail: Tail, progress: Progress) -> None:
    for line in tail.lines():
        progress.add(line)


class Plain:
    """What is printed where there is no terminal: one line a round, and news of peers."""

    def __init__(self, run: Run | None) -> None:
        self._run = run
        self._version = 0
        self._lost = 0
        self._refused = 0

    def lines(self, progress: Progress) -> list[str]:
        """Return what is new since the last call."""
        fresh = [f"lost {who}: {why}" for who, why in progress.lost[self._lost :]]
        fresh += [f"refused {who}: {why}" for who, why in progress.refused[self._refused :]]
        self._lost, self._refused = len(progress.lost), len(progress.refused)
        if progress.version > self._version:
            self._version = progress.version
            fresh.append(round_line(progress, self._run))
        return fresh


def round_line(progress: Progress, run: Run | None) -> str:
    """Return the newest committed round as one line of text."""
    entry = progress.rounds.get(progress.version, RoundProgress())  # a member's journal may lack it
    parts = [_round_of(progress, run)]
    if entry.loss is not None:
        parts.append(f"loss {entry.loss:.3f}")
    if progress.version in progress.held_out:
        parts.append(f"held-out {progress.held_out[progress.version]:.3f}")
    if entry.contributors:
        parts.append(f"{len(entry.contributors)} contributions")
    parts.append(f"{say_count(progress.tokens)} tokens")
    if progress.tokens_s:
        parts.append(f"{say_count(progress.tokens_s)} tokens/s")
    parts.append(f"{say_bytes(progress.sent_bytes)} sent")
    rest_s = left_s(progress, run, progress.last_s)
    if rest_s is not None:
        parts.append(f"{say_time(rest_s)} left")
    return "  ".join(parts)


def render(progress: Progress, run: Run | None, now_s: float, *, width: int = 100, unknown: int = 0) -> RenderableType:
    """Return the whole screen."""
    parts: list[RenderableType] = [
        _header(progress, run, now_s, width),
        _bar(progress, run, width),
        _loss(progress, width),
    ]
    parts += [_traffic(progress), _peers(progress, now_s, width), *_events(progress)]
    if unknown:
        parts.append(Text(f"{unknown} journal lines of another version were passed over", style="yellow"))
    return Group(*parts)


def sparkline(values: list[float], width: int) -> str:
    """Return values as a row of bars at most `width` wide, the lowest as the lowest bar."""
    values = [value for value in values if abs(value) < LOSS_MAX]
    if len(values) > width:
        edges = [i * len(values) // width for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = (high - low) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int((value - low) / span * len(_BARS)))] for value in values)


def _header(progress: Progress, run: Run | None, now_s: float, width: int) -> RenderableType:
    left = Text.assemble(("atoll ", "bold cyan"), (run.name if run else progress.run[:12] or "run", "bold"))
    left.append(f"  {progress.state}", style="green" if progress.state in ("training", "finished") else "yellow")
    done = part_done(progress, run)
    parts = [_round_of(progress, run)]
    members = progress.rounds[max(progress.rounds)].members if progress.rounds else 0
    if members and width >= 80:
        left.append(f"  {members} members", style="dim")
    if done is not None:
        parts.append(f"{done:.0%}")
    rest_s = left_s(progress, run, now_s)
    if rest_s is not None and not progress.over:
        parts.append(f"about {say_time(rest_s)} left")
    elif progress.finished and progress.first_s is not None:
        parts.append(f"took {say_time(progress.last_s - progress.first_s)}")
    grid = Table.grid(expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(left, "  ".join(parts))
    return grid


def _round_of(progress: Progress, run: Run | None) -> str:
    of = f" of {run.budget.rounds}" if run and run.budget.rounds else ""
    return f"round {progress.version}{of}"


def _bar(progress: Progress, run: Run | None, width: int) -> RenderableType:
    done = part_done(progress, run)
    if done is None:
        return Text()
    full = round(done * width)
    return Text.assemble(("━" * full, "green"), ("━" * (width - full), "bright_black"), no_wrap=True, overflow="crop")


def _loss(progress: Progress, width: int) -> RenderableType:
    losses = progress.losses
    text = Text("loss     ", no_wrap=True, overflow="crop")
    if not losses:
        return text.append("no work reported yet", style="dim")
    text.append(sparkline(losses, min(40, max(8, width - 60))), style="magenta")
    text.append(f"  {losses[0]:.3f} → {losses[-1]:.3f}" if len(losses) > 1 else f"  {losses[-1]:.3f}")
    if progress.held_out:
        version = max(progress.held_out)
        text.append(f"   held-out {progress.held_out[version]:.3f} (round {version})", style="bold")
    return text


def _traffic(progress: Progress) -> RenderableType:
    parts = [f"{say_count(progress.tokens)} committed", f"{say_count(progress.tokens_s)}/s now"]
    parts.append(f"{say_bytes(progress.sent_bytes)} sent by all")
    parts.append(f"{say_bytes(sum(peer.received_bytes for peer in progress.peers.values()))} received")
    return Text("tokens   " + "   ".join(parts), no_wrap=True, overflow="ellipsis")


def _peers(progress: Progress, now_s: float, width: int) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    shown = [column for column, least in _COLUMNS if width >= least]
    for i, name in enumerate(shown):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    peers = sorted(progress.peers.values(), key=lambda peer: (peer.over, peer.name))
    for peer in peers[:PEERS_SHOWN]:
        table.add_row(*_peer_cells(peer, now_s)[: len(shown)])
    if len(peers) > PEERS_SHOWN:
        table.caption = f"and {len(peers) - PEERS_SHOWN} more"
    return table


def _peer_cells(peer: PeerProgress, now_s: float) -> list[Text | str]:
    silent_s = now_s - peer.heard_s
    state = f"silent {say_time(silent_s)}" if silent_s > SILENT_S and not peer.over else peer.state
    return [
        peer.name,
        Text(state, style=_STATE_STYLES.get(state.split()[0], "")),
        str(max(peer.version, peer.working_on)) if peer.working_on or peer.version else "-",
        f"{peer.steps}/{peer.steps_of}" if peer.steps_of else "-",
        f"{peer.loss:.3f}" if peer.loss is not None else "-",
        say_count(peer.tokens_s) if peer.tokens_s and not peer.over else "-",
        say_bytes(peer.sent_bytes),
        say_bytes(peer.received_bytes),
    ]


def _events(progress: Progress) -> list[RenderableType]:
    shown = progress.events[-EVENTS_SHOWN:]
    lines: list[RenderableType] = []
    for at_s, who, words in shown:
        clock = time.strftime("%H:%M:%S", time.localtime(at_s))
        lines.append(
            Text.assemble((f"{clock} ", "dim"), (f"{who}  ", "cyan"), words, no_wrap=True, overflow="ellipsis")
        )
    return lines
