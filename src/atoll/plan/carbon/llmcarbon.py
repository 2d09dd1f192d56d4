"""LLMCarbon (Faiz et al., ICLR 2024): from a model's architecture to what training it emits.

Parameters, operations, the part of the peak that is reached, time, energy, carbon of that energy, carbon of making the
machines: each step is one formula, so that any of them can be fed with something better known. All take numbers or
numpy arrays alike. The coefficients of the regression are those of the authors' repository (MLCarbon,
gpu_training.py), fitted by them to Megatron's measurements on A100 with 80 GB; the constants off the optimum are not
published, so they are neutral here until `calibrate` has seen measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from atoll.errors import SpecError

N = Any
"""A number, or an array of them."""

PARAMETERS_MAX = 1e12
"""The largest model that the regression has seen: beyond it a parabola means nothing."""
CAPACITY_BYTE = 0.03
"""Parameters of a model per byte of a GPU's memory."""
A100_FLOP_S = 312e12
V100_FLOP_S = 125e12
V100_SLOWER = 7.76 / 33.46
"""What a V100 loses beside an A100, as a part."""
LIFETIME_S = 5 * 365 * 86400.0
"""Machines are used for five years."""
_TENSOR = (-8.82079068e-20, 1.68591116e-09, 1.33954735e02)
_PIPELINE = (-5.60233749e-23, 8.45435587e-11, 1.34546129e02)
_GPUS = (-2.12910565e-21, 4.39684339e-09, 7.99173057e02)
_BATCH = (-4.29439186e-01, 5.21376002e01, 1.43737095e03)


def parameters(layers: N, hidden: N, vocabulary: N, context: N) -> N:
    """Return how many parameters a dense model has."""
    return 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocabulary + context) / (12 * layers * hidden))


def train_flop(active_parameters: N, tokens: N) -> N:
    """Return what training costs; of experts only those that a token meets count."""
    return 6 * active_parameters * tokens


def answer_flop(active_parameters: N, tokens: N) -> N:
    """Return what answering costs."""
    return 2 * active_parameters * tokens


def forward_flop(batch: N, context: N, layers: N, hidden: N) -> N:
    """Return what one pass forward through the layers costs, attention included."""
    return layers * (24 * batch * context * hidden**2 + 4 * batch * context**2 * hidden)


def logits_flop(batch: N, context: N, hidden: N, vocabulary: N) -> N:
    """Return what the last layer costs forward and backward."""
    return 6 * batch * context * hidden * vocabulary


class Layout(Struct, frozen=True, kw_only=True):
    """How the regression would spread a model: where it is at its best."""

    tensor: int
    pipeline: int
    data: int
    batch: int
    """Sequences in a step."""
    flop_s: float
    """What each GPU reaches there, an A100 taken."""

    @property
    def gpus(self) -> int:
        """How many GPUs that takes."""
        return self.tensor * self.pipeline * self.data

    @property
    def efficiency(self) -> float:
        """The part of an A100's peak."""
        return self.flop_s / A100_FLOP_S


def layout(model_parameters: float, memory_bytes: float, node_gpus: int = 8) -> Layout:
    """Return the best spread of a model over nodes of GPUs with this memory."""
    if not 0 < model_parameters <= PARAMETERS_MAX:
        hint = f"the regression is of models up to {PARAMETERS_MAX:g} parameters"
        raise SpecError(f"{model_parameters:g} parameters are outside what was measured", hint=hint)
    capacity = CAPACITY_BYTE * memory_bytes
    if model_parameters < node_gpus * capacity:
        tensor, pipeline = int(np.ceil(model_parameters / capacity)), 1
    else:
        tensor, pipeline = node_gpus, int(np.ceil(model_parameters / (node_gpus * capacity)))
    data = max(1, round(float(np.polyval(_GPUS, model_parameters)) / (tensor * pipeline)))
    gpus = tensor * pipeline * data
    batch = 512 if pipeline == 1 else 8 * round(float(np.polyval(_BATCH, pipeline)) / 8)
    reached = np.polyval(_TENSOR if pipeline == 1 else _PIPELINE, model_parameters)
    return Layout(tensor=tensor, pipeline=pipeline, data=data, batch=max(batch, gpus), flop_s=1e12 * float(reached))


def v100_efficiency(a100_efficiency: N) -> N:
    """Return the part of a V100's peak that is reached where an A100 reaches this part of its own."""
    return a100_efficiency * (1 - V100_SLOWER)


class Slope(Struct, frozen=True, kw_only=True):
    """How efficiency falls away from the best number of devices, below it and above."""

    below: float = 1.0
    above: float = 1.0
    floor: float = 0.0


NEUTRAL = Slope()


def off_optimum(best: N, devices: N, devices_best: N, slope: Slope = NEUTRAL) -> N:
    """Return the efficiency with more or fewer devices than are best."""
    fewer = slope.below * (devices / devices_best) * best
    more = slope.above * (devices_best / devices) * best + slope.floor
    return np.where(np.less(devices, devices_best), fewer, np.where(np.equal(devices, devices_best), best, more))


def calibrate(devices: Sequence[float], efficiencies: Sequence[float], best: float, devices_best: float) -> Slope:
    """Return the slope that fits measurements in least squares; a side that nobody measured stays neutral."""
    ratio, found = np.asarray(devices, float) / devices_best, np.asarray(efficiencies, float) / best
    below, above = ratio < 1, ratio > 1
    slope = NEUTRAL
    if below.any():
        slope = Slope(below=float(ratio[below] @ found[below] / (ratio[below] @ ratio[below])))
    if above.sum() > 1:
        columns = np.stack([1 / ratio[above], np.ones(above.sum())], axis=1)
        (scale, floor), *_ = np.linalg.lstsq(columns, found[above], rcond=None)
        slope = Slope(below=slope.below, above=float(scale), floor=float(floor * best))
    return slope


def time_s(flop: N, devices: N, peak_flop_s: N, efficiency: N) -> N:
    """Return how long so many operations take."""
    return flop / (devices * peak_flop_s * efficiency)


def energy_kwh(power_w: N, devices: N, lasting_s: N, pue: N) -> N:
    """Return what devices draw that take this on average, their share of the system and the building included."""
    return power_w * devices * lasting_s * pue / 3.6e6


def parts_energy_kwh(
    powers_w: ArrayLike, efficiencies: ArrayLike, counts: ArrayLike, lasting_s: float, pue: float
) -> float:
    """Return the same from the parts of a system: the most that each draws, and the part of it that it does."""
    return float(np.sum(np.multiply(np.multiply(powers_w, efficiencies), counts))) * lasting_s * pue / 3.6e6


def operational_g(drawn_kwh: N, carbon_g_kwh: N) -> N:
    """Return what drawing this emits."""
    return drawn_kwh * carbon_g_kwh


def embodied_g(made_g: N, count: N, lasting_s: N, lifetime_s: N = LIFETIME_S) -> N:
    """Return the share of a run in what making its parts has emitted."""
    return made_g * count * lasting_s / lifetime_s
