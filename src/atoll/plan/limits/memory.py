"""Memory: does the model fit into a peer, and if not, can peers hold it together?

While a parameter is trained it takes 16 bytes (16-bit weights and gradients, fp32 master and two moments), 10 with
8-bit moments, 8 in pure bf16, 6 with both. A device gives 0.9 of its memory less 1 GB for whatever else lives there:

    alone      N_max = (0.9 V - 1 GB) / bytes
    together   P = ceil(bytes N / (0.8 V)) stages, each sending 2 h bytes a token on and as many back (`tandem.py`)
    its line   U = F P / (6 N) . 4 h . 8 bit/s up keeps a stage busy; less, and it idles for the rest
    there      a^P: all stages at once, each there for the part a of the time

The forms are `plan.cost`'s. What fits in the smallest form is taken to be trained by each peer alone; only what does
not is cut into pipelines, and then it is them that cost adds up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from atoll.plan.cost import memory as forms
from atoll.plan.cost.churn import pipeline_availability
from atoll.plan.cost.flops import compute_s, of_gpt, six_n_d
from atoll.plan.cost.memory import PRECISIONS, stage_kept_bytes, stages_needed
from atoll.plan.cost.pipeline.closed import overlapped_s
from atoll.plan.limits import adam
from atoll.plan.limits.bandwidth import flop_s
from atoll.plan.limits.finding import Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.scenario import Scenario, with_value
from atoll.plan.limits.tandem import play_s, uplink_bytes, uplink_needed_bytes_s

FORMS = tuple(
    (f"{PRECISIONS[key].total:g}: {name}", PRECISIONS[key].total)
    for key, name in (
        ("mixed adam", "fp32 Adam"),
        ("8-bit adam", "8-bit Adam"),
        ("bf16 adam", "pure bf16"),
        ("bf16, 8-bit adam", "bf16, 8-bit moments"),
    )
)
FORMS_MIN = min(size for _, size in FORMS)
"""The least that training of all parameters has been written down for; adapters alone need less."""
ADAPTERS = ("0.7: adapters on 4 bits", PRECISIONS["qlora"].total)
BUSY = 0.5
"""A pipeline that is busy for less of its time than this is no way to train."""
GB = 1e9


def most_parameters(memory_bytes: Any, training_bytes: Any) -> Any:
    """Return the largest model that a memory trains alone, activations recomputed."""
    return np.maximum(0.0, forms.largest_model(memory_bytes, training_bytes))


def memory_bytes(s: Scenario) -> Any:
    return s.peers.devices.value * s.peers.device_memory_gb.value * GB


def number(s: Scenario) -> Any:
    """Return the largest model that a peer trains alone, over the one that is wanted."""
    return most_parameters(memory_bytes(s), s.model.training_bytes.value) / s.model.parameters.value


class Crew(Struct, frozen=True, kw_only=True):
    """How peers hold the model; elementwise over worlds."""

    stages: Any
    """Peers who hold one copy together: 1 where each has its own."""
    copies: Any
    line_share: Any
    """The part of a stage's computing that its line keeps up with: 1 where it does, and for whoever is alone."""
    there: Any
    """The part of the time in which a copy has all of its peers."""


def in_line(s: Scenario) -> Any:
    """Return over how many peers the model must be cut."""
    return stages_needed(s.model.parameters.value, memory_bytes(s), s.model.training_bytes.value)


def crew(s: Scenario) -> Crew:
    """Return each peer with a copy where one fits in some form; else pipelines of as many as it takes."""
    tight = np.minimum(s.model.training_bytes.value, FORMS_MIN)
    alone = most_parameters(memory_bytes(s), tight) >= s.model.parameters.value
    stages = np.where(alone, 1.0, np.maximum(in_line(s), 2.0))
    copies = np.where(alone, np.maximum(s.peers.count.value, 1.0), np.floor(s.peers.count.value / stages + 1e-9))
    there = np.maximum(pipeline_availability(s.peers.up_share.value, stages), 1e-300)
    return Crew(stages=stages, copies=copies, line_share=line_share(s, stages), there=there)


def line_share(s: Scenario, stages: Any) -> Any:
    """Return the part of its time in which a stage computes that waits for its line; as much comes down as goes up."""
    needed = uplink_needed_bytes_s(flop_s(s), s.model.parameters.value, stages, s.model.hidden.value)
    has = np.minimum(s.line.up_mbit.value, s.line.down_mbit.value) * 1e6 / 8
    return np.minimum(1.0, has / np.maximum(needed, 1e-9))


def busy(s: Scenario) -> float:
    """Return the part of its time in which a pipeline of these peers computes."""
    many = in_line(s)
    return float(line_share(s, many) * pipeline_availability(s.peers.up_share.value, many))


def judge(s: Scenario) -> Judged:
    """Return whether a peer holds the model, could in a smaller form, or could with others."""
    found = float(number(s))
    largest = found * s.model.parameters.value
    tight = float(number(with_value(s, "model.training_bytes", FORMS_MIN)))
    count = int(in_line(s))
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
        if count > s.peers.count.value:
            binds = f"{has}; {count} peers would hold it together, there are {s.peers.count.value:,.0f}"
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


# the small real runs


def there_run(up_share: float, stages: int, rng: np.random.Generator, *, stays: int = 4000) -> float:
    """Return the part of the time in which all stages are there, each coming and going at times of its own."""
    gone = (1 - up_share) / up_share
    begins_ends = []
    for _ in range(stages):
        stay = np.stack([rng.exponential(1.0, stays), rng.exponential(gone, stays)], axis=1)
        ends = np.cumsum(stay.ravel())
        begins_ends.append((np.concatenate([[0.0], ends[1:-1:2]]), ends[::2]))
    until = min(float(ends[-1]) for _, ends in begins_ends)
    moments = np.concatenate([each for pair in begins_ends for each in pair])
    steps = np.concatenate([np.full(stays, sign) for _ in begins_ends for sign in (1, -1)])
    order = np.argsort(moments, kind="stable")
    moments, there = np.minimum(moments[order], until), np.cumsum(steps[order])
    return float(np.diff(moments)[there[:-1] == stages].sum() / until)


def checks(s: Scenario, seed: int) -> list[Check]:
    """Return optimizers really run, a pipeline played, and stages that come and go."""
    rng = np.random.default_rng(seed)
    many, several = 200, max(3, min(int(in_line(s)), 64))
    tokens, up = s.work.batch_tokens.value, min(s.line.up_mbit.value, s.line.down_mbit.value) * 1e6 / 8
    compute = float(compute_s(six_n_d(s.model.parameters.value / several, tokens), flop_s(s), 1.0))
    send = float(uplink_bytes(tokens, s.model.hidden.value, several)) / up
    hop = 2 * s.model.hidden.value * tokens / up
    return [
        *(
            Check(
                what=f"bytes a parameter with {name}",
                formula=PRECISIONS[key].total,
                run=adam.train(eight_bits=eight).bytes_each,
                within=0.02,
                how="147,456 parameters really trained for 60 steps, what stays allocated counted",
            )
            for key, name, eight in (("mixed adam", "fp32 Adam", False), ("8-bit adam", "8-bit Adam", True))
        ),
        Check(
            what=f"hours of {many} micro-batches through {several} stages over these lines",
            formula=overlapped_s([compute] * several, [send] * several, many) / 3600,
            run=play_s(several, compute, hop, many) / 3600,
            within=0.02,
            how="each there and back: devices and lines take up what is there, gradients first",
        ),
        Check(
            what=f"part of the time in which {several} stages are all there",
            formula=float(pipeline_availability(s.peers.up_share.value, several)),
            run=there_run(s.peers.up_share.value, several, rng),
            within=0.02,
            chance=True,
            how="each coming and going 4,000 times",
        ),
    ]


def tables(s: Scenario) -> list[Rows]:
    """Return what fits by memory and form, and what pipelines would ask of lines."""
    forms_ = (*FORMS, ADAPTERS)
    fits = [
        [f"{size} GB", *(f"{float(most_parameters(size * GB, form)) / 1e9:.2f}" for _, form in forms_)]
        for size in (8, 12, 16, 24, 32, 80, 640)
    ]
    lines = []
    for parameters, hidden in ((7e9, 4096), (70e9, 8192), (405e9, 16384)):
        here = with_value(with_value(s, "model.parameters", parameters), "model.hidden", float(hidden))
        count = float(in_line(here))
        line = 8 * float(uplink_needed_bytes_s(flop_s(s), parameters, count, hidden))
        share = float(line_share(here, count))
        there = float(pipeline_availability(s.peers.up_share.value, count))
        lines.append([f"{parameters / 1e9:.0f}B", f"{count:.0f}", f"{line / 1e6:,.0f}", f"{share:.1%}", f"{there:.2g}"])
    return [
        Rows(
            title=f"Largest model alone, billions, by bytes a parameter ({', '.join(name for name, _ in forms_)})",
            head=["memory", *(f"{form:g} bytes" for _, form in forms_)],
            rows=fits,
        ),
        _activations(s),
        Rows(
            title="Cut over peers like these",
            head=["model", "peers in line", "Mbit/s up to stay busy", "busy on this line", "all there"],
            rows=lines,
        ),
    ]


def _activations(s: Scenario) -> Rows:
    hidden = round(s.model.hidden.value)
    layers = max(1, round(s.model.parameters.value / (12 * hidden**2)))
    rows = []
    for context in (512, 2048, 8192):
        decoder = of_gpt(layers, hidden, 0, context, heads=max(1, hidden // 128))
        rows.append([f"{context:,}", f"{float(stage_kept_bytes(decoder, layers, 1, 1, 'full')) / GB:.2f}"])
    return Rows(title="Beside it: activations of one sample, recomputed", head=["tokens", "GB"], rows=rows)


def drawings(s: Scenario, seed: int) -> list[Drawing]:
    """Return the largest model over memory, by form."""
    most_gb = max(640.0, 2 * float(memory_bytes(s)) / GB)
    sizes = np.geomspace(6, most_gb, 40)
    series = [
        Marks(label=name, x=sizes.tolist(), y=(np.asarray(most_parameters(sizes * GB, form)) / 1e9).tolist())
        for name, form in FORMS
    ]
    wanted = s.model.parameters.value / 1e9
    here = Marks(label="this scenario", x=[float(memory_bytes(s)) / GB], y=[float(number(s)) * wanted], joined=False)
    asked = Marks(label="wanted", x=[6, most_gb], y=[wanted, wanted], grey=True)
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
        "line.down_mbit",
        "peers.count",
    ),
    levers=("model.parameters", "model.training_bytes", "peers.devices", "peers.device_memory_gb", "line.up_mbit"),
    number=number,
    judge=judge,
    checks=checks,
    tables=tables,
    drawings=drawings,
    ease=ease,
)
