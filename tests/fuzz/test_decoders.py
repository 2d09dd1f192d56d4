"""Whatever bytes come in, out comes a value or the documented error: never another one, never much memory, soon.

A sample runs with every test run; `make long` sends a million inputs. A failure prints the shortest input found.
"""

from __future__ import annotations

import time
import tracemalloc
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.errors import PeerError
from atoll.net.transport import MESSAGE_BYTES_MAX
from atoll.net.wire import BadMessage
from tests.fuzz.doors import Door, doors
from tests.fuzz.grow import kinds_of, sealed, wires
from tests.fuzz.mutate import Mutator

NAMES = sorted(doors())
SAMPLE = 1_500
"""Inputs per door in every test run."""
MANY = 1_000_000
"""Inputs over all doors in a long run."""
MEASURED = 150
MEMORY_TIMES = 64
MEMORY_ROOM_BYTES = 256 * 1024
"""Decoding may take this many times the input, and so much more: a small value costs about fifty bytes in Python."""
INPUT_CPU_S_MAX = 0.25
"""No input of these sizes takes longer to judge."""


def attack(door: Door, count: int, seed: int) -> dict[str, bytes]:
    """Return what went wrong with `count` spoiled inputs: for each way, the shortest of them."""
    rng = Random(f"{door.name} {seed}")
    mutator = Mutator(rng)
    wrong: dict[str, bytes] = {}
    for _ in range(count):
        data = door.spoiled(mutator, rng)
        began_s = time.thread_time()
        what = door.judge(data)
        if time.thread_time() - began_s > INPUT_CPU_S_MAX:
            what = what or "it took too long"
        if what and len(data) < len(wrong.get(what.split(":")[0], data + b".")):
            wrong[what.split(":")[0]] = data
    return wrong


@pytest.mark.parametrize("name", NAMES)
def test_valid_inputs_pass(name: str) -> None:
    door = doors()[name]
    assert door.seeds
    for seed in door.seeds:
        door.decode(seed)


@pytest.mark.parametrize("name", NAMES)
def test_spoiled_inputs_are_refused_as_documented(name: str) -> None:
    assert attack(doors()[name], SAMPLE, seed=0) == {}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_a_million_spoiled_inputs_are_refused_as_documented(name: str) -> None:
    assert attack(doors()[name], -(-MANY // len(NAMES)), seed=1) == {}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_inputs_that_hypothesis_spoils_are_refused_as_documented(name: str, data: st.DataObject) -> None:
    door = doors()[name]
    spoiled = bytearray(data.draw(st.sampled_from(list(door.seeds))))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(spoiled)))
        spoiled[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=8))
    assert door.judge(bytes(spoiled)) == ""


@pytest.mark.parametrize("name", NAMES)
def test_memory_stays_within_a_small_multiple_of_the_input(name: str) -> None:
    door = doors()[name]
    rng = Random(f"{name} memory")
    mutator = Mutator(rng)
    inputs = [door.spoiled(mutator, rng) for _ in range(MEASURED)]
    door.judge(inputs[0])  # what is made once is not the input's fault
    for data in inputs:
        assert peak_bytes(door, data) < MEMORY_TIMES * len(data) + MEMORY_ROOM_BYTES, data[:200]


def peak_bytes(door: Door, data: bytes) -> int:
    """Return the most memory that judging an input took."""
    tracemalloc.start()
    try:
        door.judge(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BOMBS = {
    "a bottomless list": b"\x91" * 2**20,
    "a map of maps": b"\x81\xa1a" * 2**18,
    "a list of nothings": b"\xdd\x00\x10\x00\x00" + b"\xc0" * 2**20,
    "a list of empty lists": b"\xdd\x00\x10\x00\x00" + b"\x90" * 2**20,
    "lists that promise lists": b"\xdd\x00\x0f\x00\x00" * 2**17,
    "a map that promises four billion": b"\xdf\xff\xff\xff\xff" + b"\xa0\xc0" * 2**19,
    "a long text": b"\xdb\x00\x10\x00\x00" + b"\xff" * 2**20,
}


@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_large_and_bottomless_messages_are_refused_quickly_and_in_little_memory(bomb: str) -> None:
    for name, wire in wires().items():
        data = b"\x01" + BOMBS[bomb]
        tracemalloc.start()
        began_s = time.thread_time()
        with pytest.raises(BadMessage):
            wire.decode(data)
        assert time.thread_time() - began_s < 1.0, name
        assert tracemalloc.get_traced_memory()[1] < 16 * len(data), name
        tracemalloc.stop()


def test_a_message_over_the_limit_is_not_even_looked_at() -> None:
    for wire in wires().values():
        with pytest.raises(PeerError, match="over the limit"):
            wire.decode(b"\x01" * (MESSAGE_BYTES_MAX + 1))


def test_every_kind_of_message_is_among_the_seeds() -> None:
    for name, wire in wires().items():
        seen = {type(wire.decode(seed)) for seed in doors()[f"wire {name}"].seeds}
        kinds = kinds_of(wire)
        assert seen == set(getattr(kinds, "__args__", (kinds,)))


def test_the_attack_finds_a_door_that_lets_another_error_out() -> None:
    fragile = Door("fragile", lambda data: data[40:60].decode("ascii"), PeerError, [sealed({"type": "x" * 60})])
    assert "UnicodeDecodeError" in attack(fragile, SAMPLE, seed=0)
