"""Provenance: chances and audits, drawn as well, and proofs really made and really refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.plan.limits import provenance as p
from atoll.plan.limits.reader import load_scenario
from atoll.plan.limits.scenario import with_value


def test_one_of_a_thousand_contributors_is_tainted_with_such_chances() -> None:
    assert [float(p.tainted(part, 1000)) for part in (1e-4, 1e-3, 1e-2)] == pytest.approx([0.095, 0.63, 1.0], abs=0.005)


def test_so_many_documents_show_a_bad_one() -> None:
    assert [int(p.audit_documents(bad)) for bad in (1e-2, 1e-3, 1e-4)] == [299, 2995, 29956]
    reads = np.random.default_rng(1).random((4000, 299)) < 0.01
    assert reads.any(1).mean() == pytest.approx(0.95, abs=0.012)
    assert (reads[:, :200].any(1)).mean() < 0.9, "fewer would show it more rarely"


def test_a_proof_for_one_of_a_billion_records_is_short() -> None:
    assert p.proof_bytes(10**9) == 960


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 70), st.data())
def test_a_proof_holds_for_its_record_and_for_no_other(count: int, data: st.DataObject) -> None:
    records = [f"record {i}".encode() for i in range(count)]
    index = data.draw(st.integers(0, count - 1))
    levels = p.tree_of(records)
    beside = p.proof(levels, index)
    assert p.belongs(records[index], index, beside, levels[-1][0])
    assert not p.belongs(b"another", index, beside, levels[-1][0])
    if beside:
        assert not p.belongs(records[index], index, [b"\0" * 32, *beside[1:]], levels[-1][0])
    assert len(b"".join(beside)) <= p.proof_bytes(count)


def test_text_that_may_not_move_cannot_be_dealt_out() -> None:
    s = load_scenario("organisation")
    assert p.judge(with_value(s, "data.assigned", True)).verdict == p.judge(s).verdict == "binds"
    moved = with_value(s, "data.moves", True)
    assert p.judge(with_value(moved, "data.assigned", True)).verdict == "no wall"


def test_strangers_who_bring_data_are_a_wall_until_they_are_audited() -> None:
    homes = with_value(load_scenario("homes"), "data.assigned", False)
    assert p.judge(homes).verdict == "wall"
    audited = with_value(homes, "data.audited_documents", 2995.0)
    assert p.judge(audited).verdict == "binds"
    assert p.judge(with_value(audited, "data.audited_documents", 2994.0)).verdict == "wall"
