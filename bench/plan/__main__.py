"""`python -m bench.plan`: everything published that the planner can be held against, in one table.

Each module of this folder that has `rows()` and `gates()` is asked; exits with 1 where a gate does not hold.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

from bench import plan
from bench.plan.row import Gate, Row

from atoll.units import say_table


def main() -> int:
    rows: list[Row] = []
    gates: list[Gate] = []
    for each in iter_modules(plan.__path__, "bench.plan."):
        module = import_module(each.name) if not each.name.endswith("__main__") else None
        if module is not None and hasattr(module, "gates"):
            rows += module.rows()
            gates += module.gates()
    print("\n".join(say_table([_said(row) for row in rows])))
    print()
    for gate in gates:
        print(f"{'holds' if gate.holds else 'DOES NOT HOLD':14}{gate.source}: {gate.demand} (found {gate.value:.3g})")
    return 0 if all(gate.holds for gate in gates) else 1


def _said(row: Row) -> list[str]:
    return [row.source, row.setting, row.quantity, f"{row.published:.4g}", f"{row.predicted:.4g}", f"{row.error:+.1%}"]


if __name__ == "__main__":
    sys.exit(main())
