"""How trials differ: what is changed of a recipe, and what a trial with such changes is called."""

from __future__ import annotations

from typing import Any

from bench.converge.trial import BATCH, How, Trial

Changes = dict[str, Any]

CHANNEL = "recipe.channel.outer"
SIGN = {
    f"{CHANNEL}.what.codec.kind": "sign",
    f"{CHANNEL}.what.result.kind": "sign",
    f"{CHANNEL}.what.residual.kind": "feedback",
    f"{CHANNEL}.what.residual.decay": 1.0,
    f"{CHANNEL}.what.owners.kind": "feedback",
    f"{CHANNEL}.whom.route.kind": "butterfly",
}
"""A bit an element both ways; what that leaves out of a contribution or of a result goes into the next."""
FINE_SIGN = {**SIGN, f"{CHANNEL}.what.codec.block": 512, f"{CHANNEL}.what.result.block": 512}
"""Likewise, with a magnitude for every 512 values, a row of most matrices: what did not move stays where it is."""
HOLD = {f"{CHANNEL}.what.residual.kind": "hold", f"{CHANNEL}.what.owners.kind": "feedback"}
"""What contributions leave out stays in their peers' own weights until it is sent: nobody learns it a second time."""
HELD_SIGN = {key: value for key, value in FINE_SIGN.items() if ".residual." not in key} | HOLD
TURNED = {f"{CHANNEL}.what.codec.kind": "turned-sign", f"{CHANNEL}.what.result.kind": "turned-sign"}
"""In a basis that each chunk draws, so that nothing stays left out for long."""
THREE = {f"{CHANNEL}.what.result.kind": "ternary", f"{CHANNEL}.what.result.block": 512}
"""Results of three levels: what contributions leave out is averaged over all peers, what these do is not."""
BY_INPUTS = {f"{CHANNEL}.what.rounding.kind": "by-inputs"}
"""Owners choose the signs of a result so that errors make up for each other where layers' inputs look."""
SHARED = {f"{CHANNEL}.what.residual.shared": 0.25}
"""A quarter of what results leave out of contributions is held by who made them."""
FADING = {f"{CHANNEL}.what.residual.decay": 0.6, f"{CHANNEL}.what.owners.decay": 0.9}
"""So much is kept of what contributions leave out, and of what results do; the rest is given up."""
HALVES = {
    f"{CHANNEL}.what.codec.kind": "fp16",
    f"{CHANNEL}.what.result.kind": "fp16",
    f"{CHANNEL}.what.residual.kind": "forget",
    f"{CHANNEL}.whom.route.kind": "butterfly",
}
"""Next to nothing is left out."""
ALONE_STEPS = {
    **HALVES,
    f"{CHANNEL}.merge.outer.lr": 1.0,
    f"{CHANNEL}.merge.outer.momentum": 0.0,
    f"{CHANNEL}.merge.outer.nesterov": False,
}
"""The outer step takes the way as it is: one peer then trains as if it exchanged with nobody."""
MUON = {"recipe.work.inner.adamw.lr": 2e-3}
"""Beside Muon, for what is not a matrix inside the model."""
MEAN = {f"{CHANNEL}.merge.combine.kind": "mean", f"{CHANNEL}.merge.combine.weights": "uniform"}
TEN_THOUSAND = 53
"""Values of a block of 4096 that are sent every 60 steps by owners too, for ten thousand times fewer bytes than DDP."""
ADAMW = {"recipe.work.inner.kind": "adamw", "recipe.work.clip": 1.0}
"""Recipes whose own inner optimizer is SGD are also played with the one all others have."""


def ddp(lr: float, batch: int, seed: int = 0, decay: float | None = None, beta2: float | None = None) -> Trial:
    """Return all peers' batches through one AdamW, perhaps with another decay or a longer memory than everybody's."""
    changes: Changes = {f"{CHANNEL}.merge.outer.lr": lr}
    special = []
    if decay is not None:
        changes[f"{CHANNEL}.merge.outer.weight_decay"] = decay
        special.append(f"firm{decay:g}")
    if beta2 is not None:
        changes[f"{CHANNEL}.merge.outer.betas"] = [0.9, beta2]
        special.append(f"beta{beta2:g}")
    name = named("ddp", *special, f"b{batch}", f"lr{lr:g}", seed=seed)
    return Trial(name=name, recipe="ddp", peers=1, how=How.PLAIN, batch=batch, changes=changes, seed=seed)


def solo(lr: float, seed: int = 0, batch: int = BATCH) -> Trial:
    """Return one peer of eight with its own share of all samples, and of such a batch."""
    changes = {f"{CHANNEL}.merge.outer.lr": lr}
    name = named("solo", f"b{batch // 8}", f"lr{lr:g}", seed=seed)
    return Trial(name=name, recipe="ddp", peers=1, how=How.PLAIN, batch=batch, alone=8, changes=changes, seed=seed)


def delta(
    recipe: str,
    every: int,
    lr: float,
    changes: Changes | None = None,
    *,
    also: str = "",
    peers: int = 8,
    batch: int = BATCH,
    fragments: int = 1,
    grown: int = 0,
    seed: int = 0,
) -> Trial:
    """Return peers that exchange deltas every so many steps."""
    changes = {"recipe.work.inner.lr": lr, **(changes or {})}
    special = [*([also] if also else []), *([f"b{batch}"] if batch != BATCH else [])]
    name = named(recipe, *special, f"n{peers}", f"h{every}", f"lr{lr:g}", seed=seed)
    return Trial(
        name=name,
        recipe=recipe,
        peers=peers,
        batch=batch,
        every=every,
        fragments=fragments,
        grown=grown,
        changes=changes,
        seed=seed,
    )


def sparseloco(every: int, lr: float, changes: Changes | None = None, **more: Any) -> Trial:
    """Return peers with SparseLoCo as its paper has it: the plain mean of all contributions."""
    return delta("sparseloco", every, lr, {**MEAN, **(changes or {})}, **more)


def outer(lr: float, momentum: float) -> Changes:
    """Return another outer rate and momentum."""
    return {f"{CHANNEL}.merge.outer.lr": lr, f"{CHANNEL}.merge.outer.momentum": momentum}


CALM = outer(1.0, 0.5)
"""What one bit says is mostly noise, and a momentum of 0.9 adds up ten rounds of it."""


def bits(up: int, down: int) -> Changes:
    """Return bins for contributions and for results, fed back by peers and by owners.

    Contributions' errors are averaged over all peers, results' reach everybody: the same bytes are better spent there.
    """
    return {
        f"{CHANNEL}.what.codec.kind": "buckets",
        f"{CHANNEL}.what.codec.bits": up,
        f"{CHANNEL}.what.codec.width": 6.0,
        f"{CHANNEL}.what.residual.kind": "feedback",
        f"{CHANNEL}.what.result.kind": "buckets",
        f"{CHANNEL}.what.result.bits": down,
        f"{CHANNEL}.what.result.width": 6.0,
        f"{CHANNEL}.what.owners.kind": "feedback",
        f"{CHANNEL}.whom.route.kind": "butterfly",
    }


def muloco(every: int, changes: Changes, *, also: str, lr: float = 0.02, batch: int = 96, **more: Any) -> Trial:
    """Return Muon inside, at half the batch of most recipes."""
    return delta("muloco", every, lr, {**MUON, **changes}, also=also, batch=batch, **more)


def held(
    every: int,
    momentum: float = 0.5,
    changes: Changes | None = None,
    also: str = "",
    *,
    rate: float = 1.0,
    **more: Any,
) -> Trial:
    """Return a bit an element both ways, held back, with a calm outer step."""
    words = f"sign-held-outer{rate:g}-{momentum:g}{also}"
    return muloco(every, {**HELD_SIGN, **outer(rate, momentum), **(changes or {})}, also=words, **more)


def firm(decay: float, lr: float = 4e-3) -> Changes:
    """Return another decay of matrices, and another rate of what is none."""
    return {"recipe.work.inner.weight_decay": decay, "recipe.work.inner.adamw.lr": lr}


def decayed(decay: float) -> Changes:
    """Return another decay of everything; everybody with AdamW has 0.1."""
    return {"recipe.work.inner.weight_decay": decay}


def mean(momentum: float) -> Changes:
    """Return another mean of gradients: Muon steps as far whatever it is sure of, and over more steps that is more."""
    return {"recipe.work.inner.momentum": momentum}


ALIKE = {"recipe.work.inner.beta2": 0.95}
"""Muon whose rows all move alike (NorMuon, with its authors' number)."""
AHEAD = {"recipe.work.inner.nesterov": True}
"""Muon that looks ahead, as in its first form; MuLoCo's does not."""


def words(lr: float, decay: float) -> Changes:
    """Return another rate and decay of what is no matrix inside the model, words above all."""
    return {"recipe.work.inner.adamw.lr": lr, "recipe.work.inner.adamw.weight_decay": decay}


def longer(power: float, most: int) -> Changes:
    """Return rounds that have more steps the lower the rate is."""
    return {
        "recipe.work.quota.kind": "by-rate",
        "recipe.work.quota.power": power,
        "recipe.work.quota.most": most,
    }


PARTS = {f"{CHANNEL}.when.kind": "fragments", f"{CHANNEL}.when.pattern": "packed"}
"""In parts of nearly equal size, whose tensors lie anywhere in the model."""


FIRST = ("embed_tokens", "layers.0.self_attn", "layers.1.self_attn")
"""What is learnt first: words, and where to look back; of a trial's model 23 %."""
WIDE = 1024
"""Values that share a magnitude where each byte counts: a bit has 3 % fewer then."""
BY_NAME = {f"{CHANNEL}.when.kind": "named", f"{CHANNEL}.when.names": list(FIRST)}
"""In two parts, of which the first is what is learnt first."""
KEPT = {
    **BY_INPUTS,
    f"{CHANNEL}.what.rounding.damping": 0.3,
    f"{CHANNEL}.what.rounding.gain": 1.2,
    f"{CHANNEL}.what.codec.block": WIDE,
    f"{CHANNEL}.what.result.block": WIDE,
    f"{CHANNEL}.what.owners.decay": 0.7,
}
"""By inputs, with magnitudes of more values; owners keep less of what is left out, as peers learn some of it again."""


def finer_first(rounds: int) -> Changes:
    """Return two bits both ways for what is learnt first, in so many first rounds."""
    return {**BY_NAME, f"{CHANNEL}.finer": [{"rounds": rounds, "codec": {"kind": "quaternary", "block": WIDE}}]}


def keep(values: int) -> Changes:
    """Return so many values of each block of 4096."""
    return {f"{CHANNEL}.what.codec.keep": values}


def named(*words: str, seed: int) -> str:
    """Return what a trial is called."""
    return "-".join([*words, *([f"seed{seed}"] if seed else [])])
