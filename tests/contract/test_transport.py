"""One suite, every transport: each check runs over real sockets and in the simulated world."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract import transport_suite
from tests.contract.real_lab import RealLab
from tests.contract.sim_lab import run_in_sim
from tests.contract.transport_suite import CHECKS, Check

CHECK_S_MAX = 40.0

by_name = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))


async def _run(check: Check, kind: str) -> None:
    lab = RealLab(kind)
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            await check(lab)
    finally:
        await lab.close()


@by_name
def test_over_iroh(check: Check) -> None:
    asyncio.run(_run(check, "iroh"))


@by_name
def test_over_tls(check: Check) -> None:
    asyncio.run(_run(check, "tls"))


@by_name
def test_in_simulation(check: Check) -> None:
    run_in_sim(check)


def test_no_check_is_forgotten() -> None:
    names = {name for name in vars(transport_suite) if name.startswith("check_")}
    assert names == {check.__name__ for check in CHECKS}
