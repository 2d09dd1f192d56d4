"""Faults as data: drawn from a seed, stored, read back, and shrunk to what matters."""

from __future__ import annotations

import msgspec
import pytest

from atoll.errors import SpecError
from atoll.sim.faults import (
    LEADER,
    Crash,
    CrashAt,
    Fault,
    Partition,
    Pause,
    Reform,
    Vandal,
    Weather,
    from_json,
    shrink,
    storm,
    stream,
    to_json,
)
from atoll.sim.trace import Trace

HARD = Weather(
    crashes=5, leaves=3, pauses=5, partitions=5, slow_disks=3, full_disks=3, slow_links=3, lossy_links=3,
    slow_computes=3, skews=3, gone_for_good=0.2, crash_points=5, vandals=2, lies=2, of_leader=0.2,
)  # fmt: skip


def test_a_seed_is_one_storm() -> None:
    assert storm(3, 5, 100.0, HARD) == storm(3, 5, 100.0, HARD)
    assert storm(3, 5, 100.0, HARD) != storm(4, 5, 100.0, HARD)


def test_a_storm_is_over_when_it_says() -> None:
    for seed in range(200):
        faults = storm(seed, 4, 60.0, HARD)
        assert list(faults) == sorted(faults, key=lambda fault: fault.at_s)
        for fault in faults:
            lasts_s = getattr(fault, "for_s", None) or getattr(fault, "restart_after_s", None) or 0.0
            assert 0 <= fault.at_s < 60
            assert fault.at_s + lasts_s <= 60.001
            if isinstance(fault, CrashAt):
                assert fault.at_s + fault.for_s + (fault.restart_after_s or 0.0) <= 60.01
            if not isinstance(fault, Vandal | Reform):
                for peer in fault.side if isinstance(fault, Partition) else (fault.peer,):
                    assert 0 <= peer < 4 or peer == LEADER


def test_every_kind_of_fault_comes_up() -> None:
    seen = {type(fault) for seed in range(50) for fault in storm(seed, 5, 100.0, HARD)}
    assert seen == set(Fault.__args__) - {Reform}, "only a person re-forms a council"


def test_taking_one_kind_out_moves_no_other() -> None:
    for seed in range(50):
        calm = msgspec.structs.replace(HARD, crashes=0.0)
        assert storm(seed, 5, 100.0, calm) == tuple(f for f in storm(seed, 5, 100.0, HARD) if not isinstance(f, Crash))


def test_a_lone_peer_can_have_a_storm() -> None:
    assert all(
        fault.side == (0,) for seed in range(20) for fault in storm(seed, 1, 50.0) if isinstance(fault, Partition)
    )


def test_faults_survive_storage() -> None:
    for seed in range(20):
        faults = storm(seed, 5, 100.0, HARD)
        assert from_json(to_json(faults)) == faults
    assert from_json(to_json(())) == ()


def test_a_wrong_fault_list_is_refused_with_its_place() -> None:
    with pytest.raises(SpecError, match=r"\$\[0\]"):
        from_json(b'[{"kind": "crash", "at_s": 1.0, "peer": "one"}]')
    with pytest.raises(SpecError):
        from_json(b'[{"kind": "earthquake", "at_s": 1.0}]')


def test_shrinking_finds_the_faults_that_matter() -> None:
    faults = storm(1, 6, 300.0, msgspec.structs.replace(HARD, crashes=20, pauses=20))
    needed = (faults[3], faults[17], faults[-1])
    tried = 0

    def fails(some: tuple[Fault, ...]) -> bool:
        nonlocal tried
        tried += 1
        return all(fault in some for fault in needed)

    assert shrink(faults, fails) == needed
    assert tried < 4 * len(faults)


def test_shrinking_keeps_one_of_two_that_do_alike() -> None:
    pauses = tuple(Pause(at_s=float(at), peer=0, for_s=1.0) for at in range(9))
    assert len(shrink(pauses, lambda some: len(some) >= 2)) == 2
    assert shrink(pauses, lambda some: True) == ()
    assert shrink((), lambda some: True) == ()


def test_streams_are_named() -> None:
    assert stream(1, "a").random() == stream(1, "a").random()
    assert len({stream(seed, name).random() for seed in (1, 2) for name in ("a", "b")}) == 4


def test_a_trace_depends_on_lines_order_and_time() -> None:
    def digest(*lines: tuple[float, bytes]) -> str:
        now_s = 0.0
        trace = Trace(lambda: now_s)
        for at_s, line in lines:
            now_s = at_s
            trace.add(line)
        assert trace.lines == len(lines)
        return trace.digest()

    one = digest((1.0, b"a\n"), (2.0, b"b\n"))
    assert one == digest((1.0, b"a\n"), (2.0, b"b\n"))
    assert len({one, digest((1.0, b"b\n"), (2.0, b"a\n")), digest((1.0, b"a\n"), (2.5, b"b\n")), digest()}) == 4
