"""Memory: does the model fit into a peer, and if not, can peers hold it together?

While a parameter is trained it takes 16 bytes (16-bit weights and gradients, fp32 master and two moments), 10 with
8-bit moments, 8 in pure bf16, 6 with both. A device gives 0.9 of its memory less 1 GB for whatever else lives there:

    alone      N_max = (0.9 V - 1 GB) / bytes
    together   P = ceil(16 N / (0.8 V)) stages, each sending 2 h bytes a token forward and as much back
    its line   U = F P / (6 N) . 2 h . 8 bit/s keeps a stage busy; less, and it idles for the rest
    there      a^P: all stages at once, each there for the part a of the time
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.plan.limits.bandwidth import flop_s
from atoll.plan.limits.finding import Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.scenario import Scenario, with_value
from atoll.plan.limits.tandem import pipeline_s, run_s

FORMS = (("16: fp32 Adam", 16.0), ("10: 8-bit Adam", 10.0), ("8: pure bf16", 8.0), ("6: bf16, 8-bit moments", 6.0))
FORMS_MIN = 6.0
"""The least that training of all parameters has been written down for; adapters alone need less."""
ADAPTERS = ("0.7: adapters on 4 bits", 0.7)
BUSY = 0.5
"""A pipeline that is busy for less of its time than this is no way to train."""
GB = 1e9


def most_parameters(memory_bytes: Any, training_bytes: Any) -> Any:
    """Return the largest model that a memory trains alone, activations recomputed."""
    return np.maximum(0.0, 0.9 * memory_bytes - GB) / training_bytes


def activation_bytes(context: Any, hidden: Any, layers: Any, heads: Any, samples: Any = 1) -> Any:
    """Return what recomputed activations take: 16 bits between layers, and one layer in full."""
    kept = 2 * context * samples * hidden * layers
    return kept + 34 * context * samples * hidden + 5 * heads * context**2 * samples


def stages(parameters: Any, memory_bytes: Any, training_bytes: Any = 16.0) -> Any:
    """Return over how many peers a model must be cut."""
    return np.ceil(training_bytes * parameters / (0.8 * memory_bytes))


def busy_line_bits_s(flop_s: Any, parameters: Any, stages: Any, hidden: Any) -> Any:
    """Return the uplink with which a stage sends as fast as it computes, 16 bits an activation."""
    return flop_s * stages / (6 * parameters) * 2 * hidden * 8


def all_there(up_share: Any, stages: Any) -> Any:
    """Return the part of the time in which every stage of a pipeline is there."""
    return up_share**stages


def memory_bytes(s: Scenario) -> Any:
    return s.peers.devices.value * s.peers.device_memory_gb.value * GB


def number(s: Scenario) -> Any:
    """Return the largest model that a peer trains alone, over the one that is wanted."""
    return most_parameters(memory_bytes(s), s.model.training_bytes.value) / s.model.parameters.value


def busy(s: Scenario) -> float:
    """Return the part of its time in which a pipeline of these peers computes."""
    count = stages(s.model.parameters.value, memory_bytes(s), s.model.training_bytes.value)
    line = busy_line_bits_s(flop_s(s), s.model.parameters.value, count, s.model.hidden.value)
    return float(min(1.0, s.line.up_mbit.value * 1e6 / line) * all_there(s.peers.up_share.value, count))


def judge(s: Scenario) -> Judged:
    """Return whether a peer holds the model, could in a smaller form, or could with others."""
    found = float(number(s))
    largest = found * s.model.parameters.value
    tight = float(number(with_value(s, "model.training_bytes", FORMS_MIN)))
    count = int(stages(s.model.parameters.value, memory_bytes(s), s.model.training_bytes.value))
    wanted = f"{s.model.parameters.value / 1e9:.3g}B"
    has = f"{float(memory_bytes(s)) / GB:,.0f} GB a peer hold {largest / 1e9:.3g}B of {wanted}"
    if found >= 1:
        verdict: Verdict = "no wall"
        binds = has
    elif tight >= 1:
        verdict, binds = "binds", f"{has} at {s.model.training_bytes.value:g} bytes each"
    else:
        verdict = "binds" if busy(s) >= BUSY and count <= s.peers.count.value else "wall"
        binds = f"{has}; {count} peers in line would be busy for {busy(s):.1%} of the time"
    return Judged(
        verdict=verdict,
        number=found,
        says=f"a peer trains {largest / 1e9:.3g}B alone, {found:.2g} of what is wanted",
        binds=binds,
    )


def ease(s: Scenario) -> list[tuple[str, Scenario]]:
    """Return a smaller optimizer, then a smaller model on as many tokens a parameter."""
    eased = []
    for name, size in FORMS:
        if size < s.model.training_bytes.value:
            eased.append(
                (
                    f"train in {size:g} bytes a parameter ({name.split(': ')[1]})",
                    with_value(s, "model.training_bytes", size),
                )
            )
    tokens_each = s.model.tokens.value / s.model.parameters.value
    for size in dict.fromkeys((FORMS_MIN, s.model.training_bytes.value)):
        largest = float(f"{float(most_parameters(memory_bytes(s), size)) * 0.999:.2g}")
        if 0 < largest < s.model.parameters.value:
            smaller = with_value(with_value(s, "model.parameters", largest), "model.tokens", largest * tokens_each)
            said = f"train {largest / 1e9:.2g}B parameters on {largest * tokens_each / 1e9:,.0f}B tokens"
            eased.append((said + f", {size:g} bytes each", with_value(smaller, "model.training_bytes", size)))
    return eased


# the small real run


def inventory_bytes(hidden: int, layers: int, vocabulary: int = 32000) -> tuple[int, int]:
    """Return parameters and bytes of a transformer whose every tensor is really laid out, for fp32 Adam."""
    shapes = [(vocabulary, hidden), *[(hidden, 4 * hidden), (3 * hidden, 4 * hidden), (hidden,), (hidden,)] * layers]
    kinds = (np.float16, np.float16, np.float32, np.float32, np.float32)  # weights, gradients, master, two moments
    count = total = 0
    for shape in shapes:
        count += int(np.prod(shape))
        total += sum(np.empty(shape, kind).nbytes for kind in kinds)  # empty: laid out, never written
    return count, total


def checks(s: Scenario, seed: int) -> list[Check]:
    """Return tensors laid out, a pipeline played, and stages that come and go."""
    rng = np.random.default_rng(seed)
    count, total = inventory_bytes(1024, 12)
    stages_ = int(stages(s.model.parameters.value, memory_bytes(s), s.model.training_bytes.value))
    several = max(2, min(stages_, 64))
    there = float((rng.random((20000, several)) < s.peers.up_share.value).all(1).mean())
    compute_s = 6 * s.model.parameters.value / several * s.work.batch_tokens.value / flop_s(s)
    sent_s = 2 * s.model.hidden.value * s.work.batch_tokens.value * 8 / (s.line.up_mbit.value * 1e6)
    many = 400
    return [
        Check(
            what="bytes a parameter with fp32 Adam",
            formula=16.0,
            run=total / count,
            within=1e-6,
            how=f"the tensors of a model of {count / 1e6:.0f}M parameters, each laid out",
        ),
        Check(
            what=f"hours of {many} micro-batches through {several} stages over these lines",
            formula=pipeline_s([compute_s] * several, [sent_s] * several, many) / 3600,
            run=run_s([compute_s] * several, [sent_s] * several, many) / 3600,
            within=0.02,
            how="each stage computes, then its line sends, one micro-batch after another",
        ),
        Check(
            what=f"chance that {several} stages are all there",
            formula=float(all_there(s.peers.up_share.value, several)),
            run=there,
            within=0.012,
            chance=True,
            how="20,000 draws of who is there",
        ),
    ]


def tables(s: Scenario) -> list[Rows]:
    """Return what fits by memory and form, and what pipelines would ask of lines."""
    forms = (*FORMS, ADAPTERS)
    fits = [
        [f"{size} GB", *(f"{float(most_parameters(size * GB, form)) / 1e9:.2f}" for _, form in forms)]
        for size in (8, 12, 16, 24, 32, 80, 640)
    ]
    lines = []
    for parameters, hidden in ((7e9, 4096), (70e9, 8192), (405e9, 16384)):
        count = float(stages(parameters, memory_bytes(s)))
        line = float(busy_line_bits_s(flop_s(s), parameters, count, hidden))
        share = min(1.0, s.line.up_mbit.value * 1e6 / line)
        there = float(all_there(s.peers.up_share.value, count))
        lines.append([f"{parameters / 1e9:.0f}B", f"{count:.0f}", f"{line / 1e6:,.0f}", f"{share:.1%}", f"{there:.2g}"])
    return [
        Rows(title="Largest model alone, billions", head=["memory", *(name for name, _ in forms)], rows=fits),
        _activations(s),
        Rows(
            title="Cut over peers like these",
            head=["model", "peers in line", "Mbit/s up to stay busy", "busy on this line", "all there"],
            rows=lines,
        ),
    ]


def _activations(s: Scenario) -> Rows:
    hidden = s.model.hidden.value
    layers = s.model.parameters.value / (12 * hidden**2)
    rows = [
        [f"{context:,}", f"{float(activation_bytes(context, hidden, layers, hidden / 128)) / GB:.2f}"]
        for context in (512, 2048, 8192)
    ]
    return Rows(title="Beside it: activations of one sample, recomputed", head=["tokens", "GB"], rows=rows)


def drawings(s: Scenario, seed: int) -> list[Drawing]:
    """Return the largest model over memory, by form."""
    sizes = np.geomspace(6, 640, 40)
    series = [
        Marks(label=name, x=sizes.tolist(), y=(np.asarray(most_parameters(sizes * GB, form)) / 1e9).tolist())
        for name, form in FORMS
    ]
    wanted = s.model.parameters.value / 1e9
    here = Marks(label="this scenario", x=[float(memory_bytes(s)) / GB], y=[float(number(s)) * wanted], joined=False)
    asked = Marks(label="wanted", x=[6, 640], y=[wanted, wanted], grey=True)
    return [
        Drawing(
            title="Largest model that a peer trains alone",
            x="memory of a peer, GB",
            y="billions of parameters",
            series=[*series, here, asked],
            log_x=True,
            log_y=True,
            caption="By bytes a parameter; activations recomputed. Above the grey line the model fits.",
        )
    ]


LIMIT = Limit(
    name="memory",
    question="Does a peer hold the model?",
    inputs=(
        "model.parameters",
        "model.training_bytes",
        "model.hidden",
        "peers.devices",
        "peers.device_memory_gb",
        "peers.device_tflops",
        "peers.mfu",
        "peers.up_share",
        "line.up_mbit",
    ),
    levers=("model.parameters", "model.training_bytes", "peers.devices", "peers.device_memory_gb", "line.up_mbit"),
    number=number,
    judge=judge,
    checks=checks,
    tables=tables,
    drawings=drawings,
    ease=ease,
)
