"""Many streams on one pipe of bytes: what QUIC does inside, for links that are a single TCP connection.

    | stream id (4) | kind (1) | size (3) | payload |        all numbers big-endian

A stream begins with its first frame; the side that dialled uses odd ids, the other even ones, both counting up. Data
goes out in frames of at most 64 KiB, those of the first class first, streams of one class in turn, so a word of control
waits for one frame of bulk at most. What a reader has not taken is bounded: a stream may send as much as it was
granted, and grants follow the reader. A stream that is read faster than its grants come back gets a longer one, out of
a budget of the whole connection, so that long lines are filled and idle streams hold nothing.

No socket is touched here: `feed` takes what came, `next` returns what is to be sent.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from enum import IntEnum

from atoll.net.frame import Pieces
from atoll.net.stream import LineBroken
from atoll.net.transport import STREAMS_MAX, Traffic

HEAD = struct.Struct(">II")
FRAME_BYTES_MAX = 64 * 1024 - HEAD.size
"""With its head it fills four records of TLS, and not a fifth with a few bytes."""
WINDOW_BYTES = 256 * 1024
"""What a new stream may send before its reader was heard of."""
WINDOW_BYTES_MAX = 8 * 2**20
BUDGET_BYTES = 128 * 2**20
"""What all windows of a connection add up to at most: as much a peer can make us hold."""
STREAMS_ACCEPTED_MAX = 4 * STREAMS_MAX
"""The other side frees a stream later than we do, so this limit must not be the first."""
WORDS_BYTES_MAX = 256
"""Frames that are no data are short."""

_SIZE_BITS = 24
_READ_S = 0.25  # what a busy machine may take to read on: for so long a window should last, or the line stands still
_WORDS_WAITING_MAX = 16 * STREAMS_ACCEPTED_MAX
_CLASSES = len(Traffic) + 1


class Kind(IntEnum):
    """What a frame says of its stream."""

    DATA = 0
    END = 1
    """Nothing more comes from this side."""
    DONE = 2
    """Everything up to the end was received."""
    CUT = 3
    """The sender gave the stream up: what came is not whole."""
    STOP = 4
    """The reader gave the stream up: nothing more is wanted."""
    GRANT = 5
    """So many more bytes may be sent: the number stands in the place of the size."""
    KNOCK = 6
    ANSWER = 7
    BYE = 8
    """The connection is over, and why."""


class Garbled(Exception):
    """The other side broke the rules of the pipe."""


def frame(stream: int, kind: Kind, payload: bytes = b"", size: int | None = None) -> bytes:
    """Return one frame as bytes."""
    return _head(stream, kind, len(payload) if size is None else size) + payload


def _head(stream: int, kind: Kind, size: int) -> bytes:
    return HEAD.pack(stream, kind << _SIZE_BITS | size)


class MuxSend:
    """The sending half of a stream."""

    def __init__(self, mux: Mux, id: int) -> None:
        self.id = id
        self.credit = WINDOW_BYTES
        self.priority = 0
        self.queued = False
        self._mux = mux
        self._left: deque[memoryview] = deque()
        self._taken: asyncio.Future[None] | None = None
        self._answer: asyncio.Future[None] = mux.loop.create_future()
        self.over = False
        self._ending = False

    async def set_priority(self, p: int) -> None:
        self.priority = p

    async def write(self, *pieces: bytes) -> None:
        self._check()
        self._left.extend(memoryview(piece) for piece in pieces if piece)
        if not self._left:
            return
        self._taken = self._mux.loop.create_future()
        self._mux.enqueue(self)
        try:
            await self._taken
        finally:
            self._taken = None

    async def finish(self) -> None:
        self._check()
        self._end()
        await asyncio.shield(self._answer)

    def reset(self) -> None:
        if not self.over:
            self._let_go(LineBroken("the stream was given up here"))
            self._mux.say(frame(self.id, Kind.CUT))
            self._mux.half_over(self.id)

    def abandon(self) -> None:
        if not self.over and not self._ending:
            self._left.clear()
            self._end()

    def take(self) -> bytes:
        """Return the next frame of data, of a half that is ready."""
        room = min(self.credit, FRAME_BYTES_MAX)
        taken: list[memoryview] = []
        while self._left and room:
            piece = self._left.popleft()
            if len(piece) > room:
                self._left.appendleft(piece[room:])
                piece = piece[:room]
            taken.append(piece)
            room -= len(piece)
        size = sum(map(len, taken))
        self.credit -= size
        if not self._left and self._taken is not None and not self._taken.done():
            self._taken.set_result(None)
        return b"".join((_head(self.id, Kind.DATA, size), *taken))

    @property
    def ready(self) -> bool:
        """Whether there is something that may be sent."""
        return bool(self._left) and self.credit > 0 and not self.over

    def grant(self, size: int) -> None:
        """The reader takes so much more."""
        self.credit += size
        if self.credit > WINDOW_BYTES_MAX:
            raise Garbled("more was granted than any window holds")
        self._mux.enqueue(self)

    def done(self) -> None:
        """Everything arrived."""
        if self._ending and not self.over:
            self.over = True
            if not self._answer.done():
                self._answer.set_result(None)
            self._mux.half_over(self.id)

    def stop(self) -> None:
        """The reader wants no more."""
        if not self.over:
            self._let_go(LineBroken("the other side gave the stream up"))
            self._mux.half_over(self.id)

    def fail(self, why: str) -> None:
        """The line is gone."""
        if not self.over:
            self._let_go(LineBroken(why))

    def _end(self) -> None:
        self._ending = True
        self._mux.say(frame(self.id, Kind.END))

    def _check(self) -> None:
        if self.over:
            raise LineBroken("the stream is over")

    def _let_go(self, error: LineBroken) -> None:
        self.over = True
        self._left.clear()
        for waiting in (self._taken, self._answer):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # somebody may wait for it or not


class MuxRecv:
    """The receiving half of a stream."""

    def __init__(self, mux: Mux, id: int) -> None:
        self.id = id
        self._mux = mux
        self._held = Pieces()
        self._window = WINDOW_BYTES
        self._granted = WINDOW_BYTES
        self._granted_s = mux.loop.time()
        self._came = asyncio.Event()
        self._wanted = WINDOW_BYTES_MAX
        """What the least patient of those who wait for `_came` waits for."""
        self._ended = False
        self._broken: LineBroken | None = None
        self.over = False

    async def wait(self, count: int) -> None:
        count = min(count, self._window // 2)  # the other side sends on while half of the window is taken
        while len(self._held) < count and not self._ended:
            if self._broken is not None:
                if self._held:
                    return
                raise self._broken
            self._wanted = min(self._wanted, count)
            self._came.clear()
            await self._came.wait()

    def stop(self) -> None:
        if self.over:
            return
        if not self._ended:
            self._break("the stream was given up here")
            self._mux.say(frame(self.id, Kind.STOP))
        self._held.clear()
        self._end()

    def feed(self, payload: bytes) -> None:
        """Keep what came."""
        if self._ended:
            raise Garbled("data after the end of its stream")
        self._granted -= len(payload)
        if self._granted < 0:
            raise Garbled("more was sent than was granted")
        if self._broken is None:
            self._held.add(payload)
            if len(self._held) >= self._wanted:
                self._wake()

    def end(self) -> None:
        """The other side has said everything."""
        if not self._ended and self._broken is None:
            self._ended = True
            self._wake()
            self._mux.say(frame(self.id, Kind.DONE))
            if not self._held:
                self._end()

    def cut(self) -> None:
        """The other side gave it up."""
        if not self._ended and self._broken is None:
            self._held.clear()
            self._break("the other side gave the stream up")
            self._end()

    def fail(self, why: str) -> None:
        """The line is gone; what came before is still to be had."""
        if not self._ended and self._broken is None:
            self._break(why)

    def close(self) -> None:
        """Give the window back to the connection's budget."""
        self._mux.spare_bytes += self._window - WINDOW_BYTES
        self._window = WINDOW_BYTES

    def _end(self) -> None:
        """Give the stream's place back, once nothing of it is held here any more."""
        if not self.over:
            self.over = True
            self._mux.half_over(self.id)

    def _break(self, why: str) -> None:
        self._broken = self._broken or LineBroken(why)
        self._wake()

    def _wake(self) -> None:
        """Let everybody look who waits."""
        self._wanted = WINDOW_BYTES_MAX
        self._came.set()

    def take(self, limit: int) -> bytes | None:
        taken = self._held.take(limit)
        if not taken:
            return None if self._ended else b""
        self._grant()
        if self._ended and not self._held:
            self._end()
        return taken

    def _grant(self) -> None:
        """Let the other side send more once half of what it had is used up."""
        if self._ended or self._broken is not None or self._granted + len(self._held) > self._window // 2:
            return
        self._stretch()
        more = self._window - self._granted - len(self._held)
        self._granted += more
        self._mux.say(frame(self.id, Kind.GRANT, size=more))

    def _stretch(self) -> None:
        """Double a window that was used up within two round trips: it was too short for the line."""
        now_s = self._mux.loop.time()
        quick = now_s - self._granted_s < 2 * (self._mux.round_trip_s() or 0.0) + _READ_S
        self._granted_s = now_s
        if quick and self._window < WINDOW_BYTES_MAX and self._mux.spare_bytes >= self._window:
            self._mux.spare_bytes -= self._window
            self._window *= 2


class Mux:
    """All streams of one connection."""

    def __init__(
        self,
        *,
        dialled: bool,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
        round_trip_s: Callable[[], float | None],
    ) -> None:
        self.loop = loop
        self.round_trip_s = round_trip_s
        self.spare_bytes = BUDGET_BYTES - STREAMS_ACCEPTED_MAX * WINDOW_BYTES
        self.answers = 0
        """Knocks of ours that the other side's process answered."""
        self._wake = wake
        self._next_id = 1 if dialled else 2
        self._last_theirs = self._next_id % 2 - 1
        self._unseen: set[int] = set()
        """Streams that others have overtaken: their first word is on its way."""
        self._halves: dict[int, tuple[MuxSend, MuxRecv]] = {}
        self._accepted = 0
        self._arrived: deque[tuple[MuxSend, MuxRecv]] = deque()
        self._came = asyncio.Event()
        self._freed = asyncio.Event()
        self._words: deque[bytes] = deque()
        self._queues: list[deque[MuxSend]] = [deque() for _ in range(_CLASSES)]
        self._rest = bytearray()
        self._data_id = self._data_left = 0
        self._why: str | None = None
        self.bye: str | None = None

    # our side

    async def open(self) -> tuple[MuxSend, MuxRecv]:
        """Begin a stream, once the other side has a place for it."""
        while self._why is None and len(self._halves) - self._accepted >= STREAMS_ACCEPTED_MAX:
            self._freed.clear()
            await self._freed.wait()
        if self._why is not None:
            raise LineBroken(self._why)
        id, self._next_id = self._next_id, self._next_id + 2
        return self._make(id)

    async def accept(self) -> tuple[MuxSend, MuxRecv]:
        """Return the next stream that the other side began and has not given up already."""
        while True:
            if self._arrived:
                await asyncio.sleep(0)  # who opens many streams at once leaves others their turn
                send, recv = self._arrived.popleft()
                if send.id in self._halves:
                    return send, recv
            elif self._why is not None:
                raise LineBroken(self._why)
            else:
                self._came.clear()
                await self._came.wait()

    def say(self, words: bytes) -> None:
        """Send a frame that is no data, before all that is."""
        self._words.append(words)
        self._wake()

    def enqueue(self, half: MuxSend) -> None:
        """Remember that a stream has something to send, if it has."""
        if not half.queued and half.ready:
            half.queued = True
            self._queues[half.priority].append(half)
            self._wake()

    def next(self) -> bytes | None:
        """Return the next frame to be sent."""
        if self._words:
            return self._words.popleft()
        for queue in reversed(self._queues):
            while queue:
                half = queue.popleft()
                half.queued = False
                if half.ready:
                    made = half.take()
                    self.enqueue(half)
                    return made
        return None

    def words(self) -> list[bytes]:
        """Return what is still to be said, data apart."""
        return list(self._words)

    def half_over(self, id: int) -> None:
        """Forget a stream when both its halves are over."""
        send, recv = self._halves[id]
        if send.over and recv.over:
            del self._halves[id]
            recv.close()
            self._accepted -= id % 2 != self._next_id % 2
            self._freed.set()

    def fail(self, why: str) -> None:
        """Wake everybody: nothing goes or comes any more."""
        if self._why is None:
            self._why = why
            self._words.clear()
            for send, recv in list(self._halves.values()):
                send.fail(why)
                recv.fail(why)
            self._came.set()
            self._freed.set()

    # their side

    def feed(self, data: memoryview) -> None:
        """Take what came from the pipe; raises `Garbled`."""
        while data:
            data = self._more_of_data(data) if self._data_left else self._more_of_words(data)
            if len(self._words) > _WORDS_WAITING_MAX:
                raise Garbled("it asks for answers and does not read them")

    def _more_of_data(self, data: memoryview) -> memoryview:
        """Hand on a piece of the data frame that is under way."""
        piece, rest = data[: self._data_left], data[self._data_left :]
        self._data_left -= len(piece)
        if (halves := self._halves.get(self._data_id)) is not None:
            halves[1].feed(bytes(piece))
        return rest

    def _more_of_words(self, data: memoryview) -> memoryview:
        """Collect a frame's head and, unless it brings data, its short body."""
        missing = HEAD.size - len(self._rest)
        if missing > 0:
            self._rest += data[:missing]
            data = data[missing:]
            if len(self._rest) < HEAD.size:
                return data
        id, word = HEAD.unpack_from(self._rest)
        kind, size = _kind(word >> _SIZE_BITS), word & ((1 << _SIZE_BITS) - 1)
        if kind is Kind.DATA:
            self._begin_data(id, size)
            return data
        if kind is not Kind.GRANT and size > WORDS_BYTES_MAX:
            raise Garbled(f"{kind.name} with {size} bytes")
        missing = HEAD.size + (0 if kind is Kind.GRANT else size) - len(self._rest)
        self._rest += data[:missing]
        if missing <= len(data):
            body = bytes(self._rest[HEAD.size :])
            self._rest.clear()
            self._heard(id, kind, size, body)
        return data[missing:]

    def _begin_data(self, id: int, size: int) -> None:
        if size > FRAME_BYTES_MAX:
            raise Garbled(f"a frame of {size} bytes")
        self._rest.clear()
        self._known(id)
        self._data_id, self._data_left = id, size

    def _heard(self, id: int, kind: Kind, size: int, payload: bytes) -> None:
        match kind:
            case Kind.KNOCK:
                self.say(frame(0, Kind.ANSWER))
            case Kind.ANSWER:
                self.answers += 1
            case Kind.BYE:
                self.bye = payload.decode(errors="replace")
            case _:
                self._of_stream(id, kind, size)

    def _of_stream(self, id: int, kind: Kind, size: int) -> None:
        if not self._known(id):
            return  # over on this side; the other does not know yet
        send, recv = self._halves[id]
        match kind:
            case Kind.END:
                recv.end()
            case Kind.CUT:
                recv.cut()
            case Kind.GRANT:
                send.grant(size)
            case Kind.DONE:
                send.done()
            case Kind.STOP:
                send.stop()

    def _known(self, id: int) -> bool:
        """Return whether a stream is open; the first word of a new one opens it."""
        if id in self._halves:
            return True
        ours = id % 2 == self._next_id % 2
        if id == 0 or (ours and id >= self._next_id):
            raise Garbled(f"a stream that nobody opened: {id}")
        if ours or (id <= self._last_theirs and id not in self._unseen):
            return False
        newly = max(0, (id - self._last_theirs) // 2)
        waiting = len(self._arrived)
        if max(waiting, len(self._unseen) + self._accepted + newly) > STREAMS_ACCEPTED_MAX:
            raise Garbled(f"more than {STREAMS_ACCEPTED_MAX} streams at once")
        self._unseen.update(range(self._last_theirs + 2, id, 2))
        self._unseen.discard(id)
        self._last_theirs = max(self._last_theirs, id)
        self._accepted += 1
        self._arrived.append(self._make(id))
        self._came.set()
        return True

    def _make(self, id: int) -> tuple[MuxSend, MuxRecv]:
        made = self._halves[id] = MuxSend(self, id), MuxRecv(self, id)
        return made


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise Garbled(f"a frame of an unknown kind: {number}") from None
