"""The torch engine keeps what `Engine` promises."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from torch.utils.flop_counter import FlopCounterMode

from atoll.errors import LocalError, SpecError
from atoll.model.compute import Engine, Portion, Start, Step, Vector
from atoll.model.encoding import encoder
from atoll.model.engine import TorchEngine, build_engine, views
from atoll.model.held import Held
from atoll.model.lamb import LambOptimizer
from atoll.model.llama import Llama
from atoll.model.muon import MuonOptimizer, orthonormal
from atoll.model.shape import elements, initial, is_inside, pieces, shapes
from atoll.spec.axes.codec import Fp16
from atoll.spec.axes.optimizer import Accumulate, AdamW, Inner, Lamb, Muon, Sgd
from atoll.spec.axes.what import Forget
from atoll.spec.run import SIZES, Fresh, Run, Size
from tests.model.toys import CONTEXT, GROUPED, PLAIN, VOCAB, ToyData, same, toy_run, toy_steps

MOMENTUM = Sgd(lr=0.1, momentum=0.9, nesterov=True)
MUON = Muon(lr=0.02, momentum=0.9, nesterov=False, adamw=AdamW(lr=3e-3))
NORMUON = Muon(lr=0.02, beta2=0.95, adamw=AdamW(lr=3e-3))
LAMB = Lamb(lr=0.02)


def make(run: Run | None = None, threads: int = 1) -> TorchEngine:
    return build_engine(run or toy_run(), ToyData(), device="cpu", threads=threads)


def distance(one: Vector, other: Vector) -> float:
    return float(np.abs(one - other).max())


@pytest.mark.parametrize("size", [GROUPED, PLAIN, *SIZES.values()])
def test_the_layout_on_paper_is_the_layout_of_the_model(size: Size) -> None:
    with torch.device("meta"):
        model = Llama(size, 100)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == shapes(size, 100)
    assert list(shapes(size, 100)) == sorted(shapes(size, 100))


def test_initial_weights_follow_from_seed_and_name_alone() -> None:
    engine = make()
    layout = shapes(GROUPED, VOCAB)
    assert engine.size == elements(layout)
    assert same(engine.weights(), initial(layout, 7, GROUPED.layers))
    more = dict(sorted((layout | {"model.embed_more.weight": (5, 32)}).items()))
    parts = views(more, torch.from_numpy(initial(more, 7, GROUPED.layers)))
    for name, part in views(layout, torch.from_numpy(engine.weights())).items():
        assert torch.equal(part, parts[name])
    assert not same(engine.weights(), initial(layout, 8, GROUPED.layers))


def test_initial_weights_are_bell_shaped_and_pinned_to_the_bit() -> None:
    layout = {"a.q_proj.weight": (400, 500), "b.norm.weight": (3,)}
    parts = views(layout, torch.from_numpy(initial(layout, 0, 2)))
    drawn = parts["a.q_proj.weight"]
    assert abs(float(drawn.std()) - 0.02) < 2e-4
    assert abs(float(drawn.mean())) < 2e-4
    assert torch.equal(parts["b.norm.weight"], torch.ones(3))
    assert [value.hex() for value in drawn[0, :2].tolist()] == PINNED


PINNED = ["0x1.c70b5e0000000p-10", "0x1.16930c0000000p-6"]


def test_training_lowers_the_loss() -> None:
    engine = make()
    before, tokens = engine.evaluate(0, 10)
    trained = engine.train([Step(samples=tuple(range(at, at + 8))) for at in range(0, 240, 8)])
    after, _ = engine.evaluate(0, 10)
    assert tokens == 10 * CONTEXT
    assert (trained.steps, trained.samples, trained.tokens) == (30, 240, 240 * CONTEXT)
    assert before / tokens == pytest.approx(np.log(VOCAB), rel=0.02)
    assert after < 0.9 * before
    assert after / tokens < trained.loss_sum / trained.steps


@pytest.mark.parametrize("inner", [AdamW(lr=3e-3), MOMENTUM, Sgd(lr=0.1), LAMB, MUON, NORMUON])
def test_a_resumed_engine_goes_on_bit_for_bit(inner: Inner) -> None:
    run = toy_run(inner=inner, clip=1.0)
    whole = make(run)
    whole.train(toy_steps(4))
    first = make(run)
    first.train(toy_steps(2))
    second = make(run)
    second.assign(first.weights())
    second.restore(first.private())
    second.train(toy_steps(2, first=2))
    assert same(second.weights(), whole.weights())
    assert second.private() == whole.private()


def test_slices_of_work_add_up_to_the_whole() -> None:
    whole, sliced = make(), make()
    total = whole.train(toy_steps(4))
    parts = [sliced.train([step]) for step in toy_steps(4)]
    assert same(whole.weights(), sliced.weights())
    assert sum(part.loss_sum for part in parts) == pytest.approx(total.loss_sum, abs=1e-5)


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_accumulating_micro_batches_equals_the_big_batch(micro_batch: int) -> None:
    big = make(toy_run(inner=Sgd(lr=0.5)))
    small = make(toy_run(inner=Sgd(lr=0.5), micro_batch=micro_batch))
    one, other = big.train(toy_steps(2)), small.train(toy_steps(2))
    assert distance(big.weights(), small.weights()) < 1e-6
    assert one.loss_sum == pytest.approx(other.loss_sum, abs=1e-5)
    assert big.evaluate(0, 7)[0] == pytest.approx(small.evaluate(0, 7)[0], rel=1e-5)


def test_padding_to_one_shape_changes_nothing() -> None:
    plain, padded = make(toy_run(inner=Sgd(lr=0.5), micro_batch=3)), make(toy_run(inner=Sgd(lr=0.5), micro_batch=3))
    padded.compiled = True  # what pads; the loss itself stays uncompiled here
    plain.train(toy_steps(2))
    padded.train(toy_steps(2))
    assert distance(plain.weights(), padded.weights()) < 1e-6


def test_the_gradient_is_that_of_autograd_and_changes_nothing() -> None:
    engine = make(toy_run(inner=Accumulate(), micro_batch=3))
    before = engine.weights()
    steps = [Step(samples=(0, 1, 2, 3)), Step(samples=(4, 5))]
    trained, gradient = engine.gradient(steps)
    assert same(engine.weights(), before)
    batch = torch.from_numpy(ToyData().batch(range(6)))
    logits = engine.model(batch[:, :-1])
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    names = list(shapes(GROUPED, VOCAB))
    wanted = torch.autograd.grad(mean, [engine.model.get_parameter(name) for name in names])
    assert distance(gradient, torch.cat([part.flatten() for part in wanted]).numpy()) < 1e-6
    assert (trained.steps, trained.samples) == (2, 6)
    assert same(engine.gradient(steps)[1], gradient)


def test_a_plain_step_moves_against_the_gradient() -> None:
    engine = make(toy_run(inner=Sgd(lr=0.25)))
    before = engine.weights()
    _, gradient = engine.gradient([Step(samples=(0, 1, 2, 3))])
    engine.train([Step(samples=(0, 1, 2, 3), rate=0.5)])
    assert distance(engine.weights(), before - np.float32(0.125) * gradient) < 1e-7


def test_clipping_limits_the_norm_of_what_a_step_and_a_gradient_use() -> None:
    engine = make(toy_run(inner=Sgd(lr=1.0), clip=0.01))
    before = engine.weights()
    _, gradient = engine.gradient(toy_steps(2))
    assert np.linalg.norm(gradient) == pytest.approx(0.01, rel=1e-3)
    engine.train([Step(samples=(0, 1, 2, 3))])
    assert np.linalg.norm(engine.weights() - before) == pytest.approx(0.01, rel=1e-3)


def test_weight_decay_is_for_matrices_only() -> None:
    layout = shapes(GROUPED, VOCAB)
    decayed, kept = (make(toy_run(inner=AdamW(lr=1e-2, weight_decay=w))) for w in (0.5, 0.0))
    decayed.train(toy_steps(1))
    kept.train(toy_steps(1))
    others = views(layout, torch.from_numpy(kept.weights()))
    for name, part in views(layout, torch.from_numpy(decayed.weights())).items():
        assert torch.equal(part, others[name]) == (part.ndim == 1), name


def test_recomputing_activations_changes_no_bit() -> None:
    plain = make()
    frugal = build_engine(toy_run(), ToyData(), device="cpu", recompute=True)
    plain.train(toy_steps(2))
    frugal.train(toy_steps(2))
    assert same(plain.weights(), frugal.weights())


def test_a_head_in_slices_gives_the_same_loss_and_gradient() -> None:
    whole, sliced = make(), make()
    sliced.model.logits_max = 7 * VOCAB
    (one, gradient), (other, sliced_gradient) = whole.gradient(toy_steps(2)), sliced.gradient(toy_steps(2))
    assert one.loss_sum == pytest.approx(other.loss_sum, rel=1e-6)
    assert distance(gradient, np.zeros_like(gradient)) > 0
    assert distance(gradient, sliced_gradient) < 1e-6


def test_vectors_are_never_shared_with_the_caller() -> None:
    engine = make()
    vector = engine.weights()
    kept = vector.copy()
    vector[:] = 0
    assert same(engine.weights(), kept)
    engine.assign(vector)
    vector[:] = 1
    assert not engine.weights().any()
    kept.setflags(write=False)
    engine.assign(kept)
    assert same(engine.weights(), kept)


@pytest.mark.parametrize("room", [False, True])
def test_what_is_held_back_is_taken_off_and_a_way_is_measured_from_all_of_it(
    room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_has_room", lambda device, size_bytes: room)
    engine = build_engine(toy_run(), ToyData(), device="cpu", threads=1, encode=True)
    engine.train(toy_steps(1))
    anchor, held, name = engine.weights() + np.float32(1.0), Held(engine.size), object()
    held.write()[:] = np.linspace(-1, 1, engine.size)
    engine.assign(anchor, name=name, less=held)
    assert same(engine.weights(), anchor - held.read())
    fp16 = engine.encoder(Fp16())
    assert fp16 is not None
    unseen = Start(np.full_like(anchor, np.nan) if room else anchor, name)
    (chunk,) = fp16.encode([Portion((slice(0, 64),))], unseen, Forget(), None)
    way = anchor[:64] - engine.weights(0, 64)
    assert np.frombuffer(chunk, np.float16).tolist() == way.astype(np.float16).tolist()


@pytest.mark.parametrize("inner", [AdamW(lr=3e-3), LAMB])
def test_private_state_that_is_damaged_or_foreign_is_refused_and_nothing_changes(inner: Inner) -> None:
    engine = make(toy_run(inner=inner))
    engine.train(toy_steps(1))
    good = engine.private()
    flipped = good[:-3] + bytes([good[-3] ^ 1]) + good[-2:]
    larger = make(toy_run(PLAIN, inner))
    larger.train(toy_steps(1))
    other = make(toy_run(inner=MOMENTUM))
    other.train(toy_steps(1))
    for bad in (b"", b"nonsense", good[:-1], good[: len(good) // 2], flipped, larger.private(), other.private()):
        with pytest.raises(LocalError):
            engine.restore(bad)
        assert engine.private() == good


def test_private_state_before_the_first_step_takes_the_optimizer_back_to_its_start() -> None:
    fresh, used = make(), make()
    start, blank = used.weights(), used.private()
    used.train(toy_steps(2))
    used.assign(start)
    used.restore(blank)
    fresh.train(toy_steps(1))
    used.train(toy_steps(1))
    assert same(fresh.weights(), used.weights())
    accumulating = make(toy_run(inner=Accumulate()))
    accumulating.restore(accumulating.private())


def test_the_engine_is_an_engine_and_counts_its_cost() -> None:
    engine: Engine = make()
    tokens = 3 * CONTEXT
    attention = 6 * GROUPED.layers * GROUPED.dim * CONTEXT
    assert engine.cost(3).flop == tokens * (6 * engine.size + attention)
    assert engine.cost(3, steps=7) == engine.cost(3), "AdamW passes over memory and multiplies nothing"
    assert make(toy_run(inner=LAMB)).cost(3, steps=7) == engine.cost(3), "and so does LAMB"
    assert engine.held_out() == 10
    assert engine.evaluate(8, 100)[1] == 2 * CONTEXT


def test_what_a_step_of_muon_costs_is_what_torch_counts() -> None:
    engine = make(toy_run(inner=MUON))
    gradients = {name: torch.randn(shape) for name, shape in engine.shapes.items()}
    matrices = [torch.nn.Parameter(value) for name, value in gradients.items() if is_inside(name, tuple(value.shape))]
    optimizer = MuonOptimizer([{"params": matrices}], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    assert engine.cost(0, steps=1).flop == counter.get_total_flops() > 0
    assert engine.cost(5, steps=2).flop == engine.cost(5).flop + 2 * engine.cost(0, steps=1).flop


def test_a_size_that_cannot_be_built_is_refused_with_its_key() -> None:
    for size, key in [
        (Size(dim=30, layers=1, heads=4, kv_heads=4, ffn=8), "model.size.dim"),
        (Size(dim=32, layers=1, heads=4, kv_heads=3, ffn=8), "model.size.kv_heads"),
        (Size(dim=32, layers=0, heads=4, kv_heads=4, ffn=8), "model.size.layers"),
    ]:
        with pytest.raises(SpecError, match=key):
            make(toy_run(size))
    with pytest.raises(SpecError, match="2m"):
        make(toy_run(Fresh(size="2m")))


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(SpecError, match="tpu"):
        build_engine(toy_run(), ToyData(), device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(LocalError, match="CUDA"):
            build_engine(toy_run(), ToyData(), device="cuda")


class Outside(ToyData):
    def batch(self, positions: object) -> np.typing.NDArray[np.int64]:
        return np.full((4, CONTEXT + 1), VOCAB, np.int64)


def test_tokens_beyond_the_vocabulary_are_refused_before_they_reach_the_device() -> None:
    engine = build_engine(toy_run(), Outside(), device="cpu")
    with pytest.raises(LocalError, match="vocabulary"):
        engine.train(toy_steps(1))


def trained_digest(threads: int) -> str:
    """Return a digest of everything three steps of training leave behind."""
    engine = build_engine(toy_run(clip=1.0), ToyData(), device="cpu", threads=threads)
    trained = engine.train(toy_steps(3))
    return f"{blake3(engine.weights().tobytes() + engine.private()).hexdigest()} {trained.loss_sum.hex()}"


def test_another_process_gets_the_same_bits_and_needs_no_compiler_for_it() -> None:
    root = Path(__file__).parents[2]
    child = (
        f"import sys; sys.path[:0] = [{str(root)!r}, {str(root / 'src')!r}]\n"
        "from tests.model.test_engine import trained_digest\n"
        "print(trained_digest(threads=2), 'torch._dynamo' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"{trained_digest(threads=2)} False"


def test_muon_steps_matrices_by_orthonormal_moves_and_leaves_the_rest_to_adamw() -> None:
    run = toy_run(inner=Muon(lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0, adamw=AdamW(lr=3e-3)))
    adamw = make(toy_run(inner=AdamW(lr=3e-3)))
    engine = make(run)
    layout, first = shapes(GROUPED, VOCAB), [Step(samples=(0, 1, 2, 3))]
    before = pieces(layout, engine.weights())
    engine.train(first)
    adamw.train(first)
    after, plain = pieces(layout, engine.weights()), pieces(layout, adamw.weights())
    for name, part in after.items():
        if part.ndim == 2 and "embed" not in name and "lm_head" not in name:
            unit = 0.1 * max(1.0, part.shape[0] / part.shape[1]) ** 0.5
            moved = np.linalg.svd(part - before[name], compute_uv=False) / unit
            assert np.median(moved) > 0.5, f"{name}: most directions of a matrix move"
            assert moved.max() < 1.4, f"{name}: and none much more than another"
        else:
            assert np.array_equal(part, plain[name])


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon of its own")
def test_muon_moves_as_torchs_own_does() -> None:
    """Theirs works in bf16, so that a step is the same to within what that rounds off."""
    torch.manual_seed(0)
    start, gradients = torch.randn(24, 16), [torch.randn(24, 16) for _ in range(3)]
    moved = []
    rates: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    for kind in (MuonOptimizer, torch.optim.Muon):
        matrix = torch.nn.Parameter(start.clone())
        optimizer = kind([{"params": [matrix]}], **rates)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a processor without bf16
            for gradient in gradients:
                matrix.grad = gradient.clone()
                optimizer.step()
        moved.append(matrix.detach() - start)
    assert float((moved[0] - moved[1]).norm() / moved[1].norm()) < 0.02


@pytest.mark.parametrize("shape", [(16, 24), (24, 16)])
@pytest.mark.parametrize("nesterov", [False, True])
def test_rows_of_normuon_move_alike_and_all_of_them_as_far_as_muons(shape: tuple[int, int], nesterov: bool) -> None:
    """By hand: each row by the root of what its moves were, squared, in the mean; then the length that there was."""
    torch.manual_seed(0)
    beta, tall, start = 0.9, max(1.0, shape[0] / shape[1]) ** 0.5, torch.randn(shape)
    gradients = [torch.randn(shape) * torch.linspace(0.1, 3.0, shape[0])[:, None] for _ in range(4)]
    matrix, still = (torch.nn.Parameter(start.clone()) for _ in range(2))
    rates: dict[str, Any] = {"lr": 0.1, "momentum": 0.8, "nesterov": nesterov, "weight_decay": 0.0, "beta2": beta}
    optimizer = MuonOptimizer([{"params": [matrix, still]}], **rates)
    mean, squares, expected = torch.zeros(shape), torch.zeros(shape[0]), start.clone()
    for nth, gradient in enumerate(gradients):
        matrix.grad, still.grad = gradient.clone(), torch.zeros(shape)
        before = matrix.detach().clone()
        optimizer.step()
        mean = 0.8 * mean + 0.2 * gradient
        plain = orthonormal((0.8 * mean + 0.2 * gradient if nesterov else mean)[None])[0]
        squares = beta * squares + (1 - beta) * (plain**2).mean(dim=1)
        even = plain / squares.sqrt()[:, None]
        expected -= 0.1 * tall * even * plain.norm() / even.norm()
        lengths = (matrix.detach() - before).norm(dim=1)
        if nth == 0:
            assert float(lengths.std() / lengths.mean()) < 1e-4, "at first all rows move as far"
        assert float((matrix.detach() - before).norm()) == pytest.approx(0.1 * tall * float(plain.norm()), rel=1e-4)
    assert float((matrix.detach() - expected).norm() / (expected - start).norm()) < 1e-5
    assert torch.equal(still.detach(), start), "what has no gradient goes nowhere"


@pytest.mark.parametrize(
    "made",
    [
        partial(MuonOptimizer, momentum=0.9, nesterov=True, weight_decay=0.1),
        partial(LambOptimizer, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1),
    ],
    ids=["muon", "lamb"],
)
def test_an_optimizer_with_its_rate_on_the_device_moves_the_same(made: Callable[..., torch.optim.Optimizer]) -> None:
    """And whoever changes that rate in place is heard, as a recorded step needs it."""
    torch.manual_seed(0)
    start, gradients = torch.randn(24, 16), [torch.randn(24, 16) for _ in range(3)]
    moved = []
    for lr in (0.02, torch.tensor(0.02)):
        matrix = torch.nn.Parameter(start.clone())
        optimizer = made([{"params": [matrix]}], lr=lr)
        for gradient in gradients:
            matrix.grad = gradient.clone()
            optimizer.step()
            group = optimizer.param_groups[0]
            group["lr"] = group["lr"].mul_(0.5) if isinstance(lr, torch.Tensor) else group["lr"] * 0.5
        moved.append(matrix.detach() - start)
    assert optimizer.defaults["capturable"]
    assert float((moved[0] - moved[1]).norm() / moved[0].norm()) < 1e-6
