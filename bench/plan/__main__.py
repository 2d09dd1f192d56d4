"""`python -m bench.plan`: everything that the planner can be held against, what was published apart from what is ours.

Each module of this folder that has `rows()` and `gates()` is asked; exits with 1 where a gate does not hold.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from bench import plan
from bench.plan.row import Basis, Row

from atoll.units import say_table

HEADS: dict[Basis, str] = {
    "published": "figures that others published",
    "ours": "figures of our own, from others' formulas or from others of their figures",
}


def sources() -> list[ModuleType]:
    """Return the modules that hold the planner against something."""
    names = [each.name for each in iter_modules(plan.__path__, "bench.plan.") if not each.name.endswith("__main__")]
    return [module for module in map(import_module, names) if hasattr(module, "gates")]


def main() -> int:
    found = sources()
    rows = [row for module in found for row in module.rows()]
    gates = [gate for module in found for gate in module.gates()]
    for basis, what in HEADS.items():
        some = [row for row in rows if row.basis == basis]
        head = ["source", "setting", "quantity", basis, "predicted", "error"]
        print(f"{len(some)} {what}:", *say_table([head, *map(_said, some)]), "", sep="\n")
    for gate in gates:
        print(f"{'holds' if gate.holds else 'DOES NOT HOLD':14}{gate.source}: {gate.demand} (found {gate.value:.3g})")
    return 0 if all(gate.holds for gate in gates) else 1


def _said(row: Row) -> list[str]:
    return [row.source, row.setting, row.quantity, f"{row.reference:.4g}", f"{row.predicted:.4g}", f"{row.error:+.1%}"]


if __name__ == "__main__":
    sys.exit(main())
