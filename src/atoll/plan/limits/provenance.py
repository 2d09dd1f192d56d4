"""Provenance: can anybody say what the model was trained on?

    tainted   1 - (1 - p)^R: at least one of R contributors brings bad data
    audit     n = ln 0.05 / ln(1 - r) documents show a bad one with 95 %, r the part that is bad
    proof     32 ceil(log2 n) bytes show that a record belongs to a set of n that is named by one hash
    removal   1 / shards of a training, where it was cut so that what one contributor touched is one shard; else all

One contributor is counted as enough: a backdoor is said to need a number of documents rather than a part of them (we
remember this from the literature and have not read it again). Where the run itself deals out shards that are named by
their hash, a peer can corrupt training but not data, and that is the envelope's question. Text that may not move cannot
be dealt out.
"""

from __future__ import annotations

import math
from hashlib import sha256
from typing import Any

import numpy as np

from atoll.plan.limits.finding import Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.scenario import Scenario, with_value

SURE = 0.95
TAINT_MAX = 0.05
"""Contributors who bring data are no question while a tainted one is less likely than this."""
HASH_BYTES = 32


def tainted(part: Any, peers: Any) -> Any:
    """Return the chance that at least one of the contributors brings bad data."""
    return 1 - (1 - part) ** peers


def audit_documents(bad: Any, sure: float = SURE) -> Any:
    """Return how many documents to read to meet a bad one."""
    return np.ceil(np.log(1 - sure) / np.log1p(-np.asarray(bad)))


def proof_bytes(records: int) -> int:
    """Return the length of a proof that a record belongs to a named set."""
    return HASH_BYTES * math.ceil(math.log2(max(records, 2)))


def removal_share(shards: int) -> float:
    """Return the part of a training that removing one contributor costs."""
    return 1 / shards


def dealt_out(s: Scenario) -> bool:
    """Return whether the run says who trains on what, so that nobody brings data."""
    return s.data.assigned and s.data.moves


def number(s: Scenario) -> Any:
    """Return the chance that the data of at least one contributor is bad and goes into the model."""
    chance = tainted(s.data.tainted.value, np.maximum(s.peers.count.value, 1))
    return chance * 0.0 if dealt_out(s) else chance


def audited(s: Scenario) -> bool:
    """Return whether enough is read to notice."""
    return bool(s.data.audited_documents.value >= audit_documents(max(s.data.bad_documents.value, 1e-9)))


def judge(s: Scenario) -> Judged:
    """Return whether it is known what the model was trained on, could be, or cannot."""
    chance = float(number(s))
    verdict: Verdict = "no wall"
    if chance > TAINT_MAX and not audited(s):
        verdict = "wall" if s.trust.peers == "strangers" else "binds"
    elif chance > TAINT_MAX:
        verdict = "binds" if s.trust.peers == "strangers" else "no wall"
    if dealt_out(s):
        return Judged(
            verdict=verdict, number=chance, says="shards are dealt out by hash", binds="nothing: peers bring no data"
        )
    need = float(audit_documents(max(s.data.bad_documents.value, 1e-9)))
    read = f"{s.data.audited_documents.value:,.0f} documents of each are read"
    binds = (
        f"{read}, {need:,.0f} would show {s.data.bad_documents.value:.2%} bad ones; contributors are {s.trust.peers}"
    )
    return Judged(verdict=verdict, number=chance, says=f"{chance:.0%} chance of a tainted contributor", binds=binds)


def ease(s: Scenario) -> list[tuple[str, Scenario]]:
    """Return audits, or shards that the run deals out."""
    need = float(audit_documents(max(s.data.bad_documents.value, 1e-9)))
    read = (f"read {need:,.0f} documents of each contributor", with_value(s, "data.audited_documents", need))
    dealt = ("deal out public shards by their hash", with_value(s, "data.assigned", True))
    return [read, dealt] if s.data.moves else [read]


# the small real run


def tree_of(records: list[bytes]) -> list[list[bytes]]:
    """Return the levels of a hash tree, the records' own hashes first."""
    level = [sha256(b"\0" + record).digest() for record in records]
    levels = [level]
    while len(level) > 1:
        level = level + level[-1:] * (len(level) % 2)
        level = [sha256(b"\1" + level[i] + level[i + 1]).digest() for i in range(0, len(level), 2)]
        levels.append(level)
    return levels


def proof(levels: list[list[bytes]], index: int) -> list[bytes]:
    """Return the hashes beside a record's way up to the root."""
    beside = []
    for level in levels[:-1]:
        beside.append(level[min(index ^ 1, len(level) - 1)])
        index //= 2
    return beside


def belongs(record: bytes, index: int, beside: list[bytes], root: bytes) -> bool:
    """Return whether a proof shows that a record belongs to the set of this root."""
    at = sha256(b"\0" + record).digest()
    for other in beside:
        at = sha256(b"\1" + (other + at if index % 2 else at + other)).digest()
        index //= 2
    return at == root


def _fleets_tainted(peers: int, part: float, rng: np.random.Generator, fleets: int = 20000) -> float:
    """Return in which part of drawn fleets somebody is tainted."""
    bad, left = 0, fleets
    while left:
        now = min(left, max(1, 4_000_000 // peers))
        bad += int((rng.random((now, peers), np.float32) < part).any(1).sum())
        left -= now
    return bad / fleets


def checks(s: Scenario, seed: int) -> list[Check]:
    """Return contributors, audits and proofs, drawn and made."""
    rng = np.random.default_rng(seed)
    peers, part = round(max(s.peers.count.value, 1)), s.data.tainted.value
    bad = max(s.data.bad_documents.value, 1e-4)
    records = [str(i).encode() for i in range(1000)]
    levels = tree_of(records)
    proofs = [proof(levels, i) for i in range(len(records))]
    assert all(belongs(record, i, proofs[i], levels[-1][0]) for i, record in enumerate(records))
    return [
        Check(
            what=f"chance that one of {peers:,} contributors is tainted",
            formula=float(tainted(part, peers)),
            run=_fleets_tainted(peers, part, rng),
            within=0.012,
            chance=True,
            how="20,000 fleets drawn, contributor by contributor",
        ),
        Check(
            what="documents to read until a bad one is met, 95 of 100 times",
            formula=float(audit_documents(bad)),
            run=float(np.quantile(rng.geometric(bad, 40000), SURE)),
            within=0.04,
            how=f"40,000 audits, each read until it meets one, {bad:.2%} of the documents bad",
        ),
        Check(
            what="bytes of a proof for one of 1,000 records",
            formula=float(proof_bytes(1000)),
            run=float(max(len(b"".join(each)) for each in proofs)),
            within=0.0,
            how="a hash tree built, every record's proof made and checked",
        ),
    ]


def tables(s: Scenario) -> list[Rows]:
    """Return chances, audits, proofs, and what removing a contributor costs."""
    chances = [
        [f"{peers:,}", *(f"{float(tainted(part, peers)):.1%}" for part in (1e-4, 1e-3, 1e-2))]
        for peers in (10, 100, 1000, 10000)
    ]
    audits = [[f"{bad:.2%}", f"{float(audit_documents(bad)):,.0f}"] for bad in (1e-2, 1e-3, 1e-4)]
    removals = [[f"{shards}", f"{removal_share(shards):.1%}"] for shards in (1, 4, 16, 64)]
    return [
        Rows(
            title="Chance of at least one tainted contributor",
            head=["contributors", "0.01 % bad", "0.1 %", "1 %"],
            rows=chances,
        ),
        Rows(title="Documents to read to meet a bad one (95 %)", head=["bad", "documents"], rows=audits),
        Rows(title="Removing one contributor", head=["shards trained apart", "of a training"], rows=removals),
        Rows(
            title="Proof that a record belongs to the data",
            head=["records", "bytes"],
            rows=[[f"{records:,}", f"{proof_bytes(records)}"] for records in (1000, 10**6, 10**9)],
        ),
    ]


def drawings(s: Scenario, seed: int) -> list[Drawing]:
    """Return the chance of taint over contributors, with drawn fleets beside it."""
    rng = np.random.default_rng(seed)
    many, few = np.geomspace(1, 10000, 40), [1, 10, 100, 1000, 10000]
    series = [
        Marks(label=f"{part:.2%} of contributors", x=many.tolist(), y=[100 * float(tainted(part, at)) for at in many])
        for part in (1e-4, 1e-3, 1e-2)
    ]
    drawn = [100 * _fleets_tainted(peers, 1e-3, rng, 1000) for peers in few]
    series.append(Marks(label="0.10 %, drawn", x=few, y=drawn, joined=False))
    return [
        Drawing(
            title="At least one tainted contributor",
            x="contributors who bring their own data",
            y="chance, %",
            series=series,
            log_x=True,
            caption="Where the run deals out shards by their hash, nobody brings data and the chance is nothing.",
        )
    ]


LIMIT = Limit(
    name="provenance",
    question="Can anybody say what the model was trained on?",
    inputs=("peers.count", "data.tainted", "data.bad_documents", "data.audited_documents"),
    levers=("peers.count", "data.tainted", "data.audited_documents"),
    switches=("data.assigned", "data.moves"),
    number=number,
    judge=judge,
    checks=checks,
    tables=tables,
    drawings=drawings,
    ease=ease,
)
