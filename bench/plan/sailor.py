"""Sailor's validation set (Strati et al., SOSP 2025; repository eth-easl/sailor): plans, and seconds that a step took.

Times of single layers and rates of lines were measured by its authors apart from any plan, and go in as such; the step
is put together by `plan.cost.pipeline.step`. Boundaries and gradients are in four bytes: its layers of OPT-30B run at
18.2 of an A100's 19.5 TFLOP/s in fp32, and its own count of memory knows no shorter numbers. All tensor-parallel ranks
send a part of a boundary. Nothing is fitted to these rows. Rows that contradict themselves are shown and not judged:
why stands in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise
from statistics import median

from bench.plan.row import Gate, Row, table

from atoll.plan.cost.collective import boundary_bytes
from atoll.plan.cost.flops import Decoder, layer_parameters, of_gpt
from atoll.plan.cost.links import Curve, curve_s
from atoll.plan.cost.pipeline.parts import Hop, Pipeline, straight
from atoll.plan.cost.pipeline.step import replicas_sync_s, step_s

SOURCE = "Sailor"
MODELS = {
    "OPT-350": of_gpt(24, 1024, 50272, 2048, heads=16),
    "GPT-Neo-2.7": of_gpt(32, 2560, 50257, 2048, heads=20),
}
FP32_BYTES = 4.0
ERROR_MAX, ORDER_MIN = 0.10, 0.9

Plan = dict[str, str]


def rows() -> list[Row]:
    """Return every plan of the set, and the order of those on mixed devices, which nothing is demanded of."""
    plans = table("sailor_steps")
    steps = [
        Row(
            source=SOURCE,
            setting=plan["setting"] + (f" ({plan['doubt']})" if plan["doubt"] else ""),
            quantity="s/step",
            reference=float(plan["step_s"]),
            predicted=predicted_s(plan),
        )
        for plan in plans
    ]
    mixed = [plan for plan in plans if plan["setting"].startswith("mixed") and not plan["doubt"]]
    orders = [
        Row(
            source=SOURCE,
            setting=f"mixed, {nodes} nodes",
            quantity="Kendall tau",
            basis="ours",
            reference=1.0,
            predicted=found,
        )
        for (_, nodes, _), found in taus(mixed).items()
    ]
    return steps + orders


def gates() -> list[Gate]:
    """Return what is demanded: how far off, and whether plans come in the right order."""
    judged = [plan for plan in table("sailor_steps") if plan["setting"].startswith("GH200") and not plan["doubt"]]
    deep = [plan for plan in judged if int(plan["P"]) >= 2]
    off = median(abs(predicted_s(plan) / float(plan["step_s"]) - 1) for plan in deep)
    order = min(taus(judged).values())
    return [
        Gate(
            source=SOURCE,
            demand=f"median error of {len(deep)} GH200 plans of 2 stages or more at most {ERROR_MAX:.0%}",
            value=off,
            holds=off <= ERROR_MAX,
        ),
        Gate(
            source=SOURCE,
            demand=f"order of plans on as many nodes (lowest Kendall tau of {len(taus(judged))}) at least {ORDER_MIN}",
            value=order,
            holds=order >= ORDER_MIN,
        ),
    ]


def taus(plans: list[Plan]) -> dict[tuple[str, str, str], float]:
    """Return Kendall's tau of plans for the same model, nodes and batch, where there are two or more."""
    groups: dict[tuple[str, str, str], list[Plan]] = {}
    for plan in plans:
        groups.setdefault((plan["model"], plan["N"], plan["gbs"]), []).append(plan)
    return {key: _tau(some) for key, some in groups.items() if len(some) > 1}


def _tau(plans: list[Plan]) -> float:
    both = [(float(plan["step_s"]), predicted_s(plan)) for plan in plans]
    signs = [1 if (a[0] - b[0]) * (a[1] - b[1]) > 0 else -1 for a, b in combinations(both, 2)]
    return sum(signs) / len(signs)


def predicted_s(plan: Plan) -> float:
    """Return the planner's step of one row."""
    decoder, width, at_once = MODELS[plan["model"]], int(plan["T"]), int(plan["mbs"])
    layers = [int(count) for count in plan["layers"].split("/")]
    stages = [_devices(stage) for stage in plan["stages"].split("/")]
    replicas = int(plan["D"])
    pipelines = [_pipeline(plan, layers, [stage[number] for stage in stages]) for number in range(replicas)]
    profiles = _profiles(plan)
    return step_s(
        pipelines,
        max(1, int(plan["gbs"]) // replicas // at_once),
        sync_s=[
            replicas_sync_s(FP32_BYTES * _parameters(decoder, layers, stage), replicas, _ring(devices, width))
            for stage, devices in enumerate(stages)
        ],
        update_s=[
            count * max(profiles[device]["block_update_s"] for device in devices)
            for count, devices in zip(layers, stages, strict=True)
        ],
    )


def _pipeline(plan: Plan, layers: list[int], devices: list[str]) -> Pipeline:
    """Return one replica's pipeline: embedding and head are a layer each, at its two ends."""
    profiles, last = _profiles(plan), len(layers) - 1
    decoder, width = MODELS[plan["model"]], int(plan["T"])
    times: dict[str, list[float]] = {"fwd": [], "bwd": []}
    for stage, (count, device) in enumerate(zip(layers, devices, strict=True)):
        profile, ends = profiles[device], (stage == 0) + (stage == last)
        for way, found in times.items():
            time_s = (count - ends) * profile[f"block_{way}_s"]
            time_s += profile[f"embed_{way}_s"] if stage == 0 else 0.0
            found.append(time_s + (profile[f"head_{way}_s"] if stage == last else 0.0))
    sent = boundary_bytes(int(plan["mbs"]), decoder.context, decoder.hidden, FP32_BYTES)
    there = [Hop(busy_s=_line(a, b, width)(sent)) for a, b in pairwise(devices)]
    back = [Hop(busy_s=_line(b, a, width)(sent)) for a, b in pairwise(devices)]
    return straight(times["fwd"], times["bwd"], there=there, back=back)


def _devices(stage: str) -> list[str]:
    """Return the device of each replica, of text such as "RTX-3090:1+RTX-2080:1"."""
    kinds = [each.rsplit(":", 1) for each in stage.split("+")]
    return [name for name, count in kinds for _ in range(int(count))]


def _profiles(plan: Plan) -> dict[str, dict[str, float]]:
    """Return seconds of layers by device, as measured for the plan's model, micro-batch and width."""
    same = [
        row
        for row in table("sailor_layers")
        if (row["model"], row["mbs"], row["tp"]) == (plan["model"], plan["mbs"], plan["T"])
    ]
    return {row["gpu"]: {key: float(value) for key, value in row.items() if key.endswith("_s")} for row in same}


def _parameters(decoder: Decoder, layers: list[int], stage: int) -> int:
    """Return what a stage holds: the head is a copy of the embedding."""
    ends = (stage == 0) + (stage == len(layers) - 1)
    return (layers[stage] - ends) * layer_parameters(decoder) + ends * decoder.vocab * decoder.hidden


def _ring(devices: list[str], width: int) -> list[Callable[[float], float]]:
    """Return the lines of a ring of replicas, each once."""
    pairs = {(one, other) for one, other in zip(devices, devices[1:] + devices[:1], strict=True)}
    return [_line(one, other, width) for one, other in sorted(pairs)]


def _line(one: str, other: str, width: int) -> Callable[[float], float]:
    """Return the seconds that a message takes between nodes of two kinds, in either direction's measurement."""
    found = {(row["source"], row["target"], row["gpus"]): row for row in table("sailor_lines")}
    row = found.get((one, other, str(width))) or found[other, one, str(width)]
    curve = Curve(c2=float(row["c2"]), c1=float(row["c1"]), c0=float(row["c0"]), bytes_s_max=float(row["bytes_s_max"]))
    return lambda size_bytes: curve_s(curve, size_bytes)
