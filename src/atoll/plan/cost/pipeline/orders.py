"""Fixed orders of a pipeline's work: what each device does, one after the other, whatever the times are.

gpipe         all there, then all back; keeps every micro-batch
1f1b          P - i there, then one back and one there in turn; keeps P - i
interleaved   several parts a device, each device's in turns of P micro-batches (Megatron); the bubble shrinks
zb-h1         1f1b with the weights' gradient told apart and put off while there is room for P micro-batches
zb-h2         starts 2 (P - i) - 1 and so fills the whole bubble, for nearly twice the memory (Qi et al. 2023)
"""

from __future__ import annotations

from atoll.plan.cost.pipeline.parts import Orders, Task


def gpipe(stages: int, micro_batches: int) -> Orders:
    """Return GPipe's order: back in reverse, since what came last is still near."""
    there, back = range(micro_batches), reversed(range(micro_batches))
    returned = list(back)
    return [[Task("F", i, k) for k in there] + [Task("B", i, k) for k in returned] for i in range(stages)]


def one_forward_one_backward(stages: int, micro_batches: int) -> Orders:
    """Return the order that keeps at most P - i micro-batches at stage i."""
    orders: Orders = []
    for i in range(stages):
        ahead = min(micro_batches, stages - i)
        order = [Task("F", i, k) for k in range(ahead)]
        for k in range(micro_batches):
            order.append(Task("B", i, k))
            if k + ahead < micro_batches:
                order.append(Task("F", i, k + ahead))
        orders.append(order)
    return orders


def interleaved(devices: int, micro_batches: int, chunks: int) -> Orders:
    """Return Megatron's order of looped parts; micro-batches come in rounds of as many as there are devices."""
    if micro_batches % devices:
        raise ValueError(f"{micro_batches} micro-batches do not divide by {devices} devices")
    total = micro_batches * chunks
    orders: Orders = []
    for i in range(devices):
        ahead = min(total, 2 * (devices - i - 1) + (chunks - 1) * devices)
        order = [_turn("F", i, k, devices, chunks) for k in range(ahead)]
        for k in range(total):
            if k + ahead < total:
                order.append(_turn("F", i, k + ahead, devices, chunks))
            order.append(_turn("B", i, k, devices, chunks))
        orders.append(order)
    return orders


def _turn(kind: str, device: int, number: int, devices: int, chunks: int) -> Task:
    """Return what a device does at its so-many-th turn there or back."""
    cycle, within = divmod(number, devices * chunks)
    chunk, offset = divmod(within, devices)
    if kind == "B":
        chunk = chunks - 1 - chunk
    return Task("F" if kind == "F" else "B", chunk * devices + device, cycle * devices + offset)


def zero_bubble_h1(stages: int, micro_batches: int) -> Orders:
    """Return the order of ZB-H1: no stage keeps more than P micro-batches, and the bubble is (P - 1)(F + D - W)."""
    return [_put_off(i, micro_batches, ahead=stages - i, late=i) for i in range(stages)]


def zero_bubble_h2(stages: int, micro_batches: int) -> Orders:
    """Return the order of ZB-H2: up to 2 P - 1 are kept, and the bubble is (P - 1)(F + D - 2 W)."""
    return [_put_off(i, micro_batches, ahead=2 * (stages - i) - 1, late=2 * i) for i in range(stages)]


def _put_off(stage: int, micro_batches: int, *, ahead: int, late: int) -> list[Task]:
    """Return a stage's order that starts with some there, and makes the weights' gradients so many late."""
    ahead = min(micro_batches, ahead)
    order = [Task("F", stage, k) for k in range(ahead)]
    for k in range(micro_batches):
        order.append(Task("D", stage, k))
        if k >= late:
            order.append(Task("W", stage, k - late))
        if k + ahead < micro_batches:
            order.append(Task("F", stage, k + ahead))
    return order + [Task("W", stage, k) for k in range(max(0, micro_batches - late), micro_batches)]
