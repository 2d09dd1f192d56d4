"""The sense of a run as a whole: what its types alone cannot say.

Each rule is one line of a list: where, what is wrong, what to do. The first that is broken is reported, by key path,
like every other mistake in a file. A run from another peer is checked by the same rules, so nobody can make us
build a model of a billion layers or a folder outside our own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from atoll.spec.rules.recipe import recipe_rules
from atoll.spec.rules.terms import Rule, above, digest, named, within
from atoll.spec.run import SIZES, AllowList, Corpus, Data, Folder, Fresh, Lora, Model, Run, Size
from atoll.spec.strict import KeyPath, Layers, near

_PEER = re.compile(r"^[0-9a-f]{64}$")
_BPE = re.compile(r"^bpe-([1-9][0-9]{2,6})$")
_VOCABULARY_MIN = 260
_SEED_MAX = 2**63 - 1


def check(run: Run, layers: Layers) -> Run:
    """Return `run`, or raise the `SpecError` of the first rule it breaks."""
    for holds, path, what, hint in _rules(run):
        if not holds:
            layers.refuse(path, what, hint=hint)
    return run


def _rules(run: Run) -> Iterator[Rule]:
    yield named(("name",), run.name)
    yield from _budget_rules(run)
    yield from _model_rules(run.model)
    yield from _data_rules(run.data)
    yield from recipe_rules(run.recipe)
    yield from _membership_rules(run)
    for which, seed in (("model", run.seeds.model), ("data", run.seeds.data)):
        yield within(("seeds", which), seed, 0, _SEED_MAX)
    yield within(("upkeep", "checkpoint_every"), run.upkeep.checkpoint_every, 0)
    yield within(("upkeep", "evaluate_every"), run.upkeep.evaluate_every, 0)
    yield within(("upkeep", "evaluate_samples"), run.upkeep.evaluate_samples, 1)
    yield above(("upkeep", "patience_s_max"), run.upkeep.patience_s_max)
    yield above(("upkeep", "silence_s_max"), run.upkeep.silence_s_max)


def _budget_rules(run: Run) -> Iterator[Rule]:
    tokens, rounds = run.budget.tokens, run.budget.rounds
    yield within(("budget", "tokens"), tokens, 0)
    yield within(("budget", "rounds"), rounds, 0)
    said = "both tokens and rounds are given" if tokens and rounds else "neither tokens nor rounds is given"
    yield bool(tokens) != bool(rounds), ("budget",), said, "give exactly one, for example: rounds = 12"


def _model_rules(model: Model) -> Iterator[Rule]:
    if isinstance(model, Folder):
        yield bool(model.path), ("model", "path"), "is empty", "give the path of a Hugging Face model folder"
        yield digest(("model", "digest"), model.digest)
        if model.adapter is not None:
            yield from _lora_rules(model.adapter)
    else:
        yield from _size_rules(model)


def _lora_rules(lora: Lora) -> Iterator[Rule]:
    path = ("model", "adapter")
    yield within((*path, "rank"), lora.rank, 1, 4096)
    yield above((*path, "alpha"), lora.alpha)
    yield bool(lora.targets), (*path, "targets"), "is empty", 'name the layers to adapt, for example ["q_proj"]'


def _size_rules(model: Fresh) -> Iterator[Rule]:
    path, size = ("model", "size"), model.size
    if isinstance(size, str):
        hint = f"known sizes: {', '.join(SIZES)}{near(size, SIZES)}; or write a table with dim, layers, heads, ..."
        yield size in SIZES, path, f"unknown size '{size}'", hint
        return
    for name, most in (("dim", 65536), ("layers", 1024), ("heads", 1024), ("kv_heads", 1024), ("ffn", 2**20)):
        yield within((*path, name), getattr(size, name), 1, most)
    yield from _head_rules(path, size)
    yield above((*path, "rope_theta"), size.rope_theta)
    yield above((*path, "norm_eps"), size.norm_eps)


def _head_rules(path: KeyPath, size: Size) -> Iterator[Rule]:
    fits = size.heads % size.kv_heads == 0
    what = f"{size.heads} heads cannot share {size.kv_heads} kv_heads evenly"
    yield fits, (*path, "kv_heads"), what, f"choose a divisor of {size.heads}"
    what = f"dim {size.dim} is not divisible by {size.heads} heads"
    yield size.dim % size.heads == 0, (*path, "heads"), what, "choose heads that divide dim"
    what = f"a head of {size.dim // size.heads} is odd, rotary positions need an even size"
    yield size.dim // size.heads % 2 == 0, (*path, "heads"), what, "choose heads so that dim / heads is even"


def _data_rules(data: Data) -> Iterator[Rule]:
    yield within(("data", "context"), data.context, 8, 2**20)
    yield digest(("data", "digest"), data.digest)
    path: KeyPath = ("data", "source")
    if isinstance(data.source, Corpus):
        yield named((*path, "name"), data.source.name)
        tokenizer = data.source.tokenizer
        found = _BPE.match(tokenizer)
        known = tokenizer == "bytes" or (found is not None and int(found[1]) >= _VOCABULARY_MIN)
        hint = f'write "bytes", or "bpe-N" with N from {_VOCABULARY_MIN}, for example "bpe-1024"'
        yield known, (*path, "tokenizer"), f"unknown tokenizer '{tokenizer}'", hint
    else:
        yield bool(data.source.path), (*path, "path"), "is empty", "give the folder that `atoll data prepare` made"


def _membership_rules(run: Run) -> Iterator[Rule]:
    path: KeyPath = ("membership",)
    yield within((*path, "start_with"), run.membership.start_with, 1)
    yield within((*path, "contributors_min"), run.membership.contributors_min, 1)
    if isinstance(run.membership.who, AllowList):
        path = (*path, "who", "peers")
        peers = run.membership.who.peers
        yield bool(peers), path, "is empty: nobody could join", "name the public keys of those who may"
        for i, peer in enumerate(peers):
            yield bool(_PEER.match(peer)), (*path, i), f"'{peer[:20]}' is not a public key", "write 64 hex digits"
        yield len(set(peers)) == len(peers), path, "a peer is named twice", "name each peer once"
