"""Folders in the Hugging Face layout: what is written is read back, what cannot be run is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from atoll.errors import LocalError, SpecError
from atoll.model.engine import build_engine
from atoll.model.folder import digest, read_adapter, read_shape, read_weights, save_folder
from atoll.model.sample import open_model
from atoll.model.shape import initial, shapes
from atoll.spec.axes.optimizer import AdamW, Inner, Lamb
from atoll.spec.run import Folder, Lora, Size
from tests.model.toys import CONTEXT, GROUPED, PLAIN, VOCAB, ToyData, same, toy_run, toy_steps

TOKENIZER = {
    "tokenizer.json": json.dumps({"added_tokens": [{"id": 5, "content": "<|end|>"}]}).encode(),
    "tokenizer_config.json": json.dumps({"eos_token": {"content": "<|end|>"}}).encode(),
}


def saved(path: Path, size: Size = GROUPED, **options: Any) -> Path:
    vector = initial(shapes(size, VOCAB), 7, size.layers)
    return save_folder(toy_run(size), vector, path, vocab_size=VOCAB, **options)


def edit(file: Path, **changes: object) -> None:
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | changes))


@pytest.mark.parametrize("size", [GROUPED, PLAIN])
def test_a_saved_model_is_loaded_bit_for_bit(tmp_path: Path, size: Size) -> None:
    path = saved(tmp_path / "out", size)
    shape = read_shape(path)
    assert (shape.size, shape.vocab, shape.context) == (size, VOCAB, CONTEXT)
    loaded = build_engine(toy_run(Folder(path=str(path))), ToyData(), device="cpu")
    assert same(loaded.weights(), initial(shapes(size, VOCAB), 7, size.layers))
    assert ("lm_head.weight" in load_file(path / "model.safetensors")) == (not size.tied)


def test_a_trained_folder_model_is_exported_with_its_tokenizer(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", tokenizer_files=TOKENIZER)
    run = toy_run(Folder(path=str(base), digest=digest(base)))
    engine = build_engine(run, ToyData(), device="cpu")
    engine.train(toy_steps(1))
    out = save_folder(run, engine.weights(), tmp_path / "out")
    again = build_engine(toy_run(Folder(path=str(out))), ToyData(), device="cpu")
    assert same(again.weights(), engine.weights())
    assert (out / "tokenizer.json").read_bytes() == TOKENIZER["tokenizer.json"]
    assert (read_shape(out).bos, read_shape(out).eos) == (None, 5)
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": 5}


def test_a_lone_tokenizer_file_gets_the_line_transformers_needs(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(TOKENIZER["tokenizer.json"])
    out = saved(tmp_path / "out", tokenizer_files=file)
    assert "PreTrainedTokenizerFast" in (out / "tokenizer_config.json").read_text()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_written_and_read_as_the_nearest_value(tmp_path: Path, dtype: str) -> None:
    path = saved(tmp_path / "half", dtype=dtype)
    full = read_weights(saved(tmp_path / "full"), read_shape(path))
    for name, tensor in read_weights(path, read_shape(path)).items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, full[name].to(getattr(torch, dtype)).float())


def test_a_sharded_folder_loads_like_the_whole_one(tmp_path: Path) -> None:
    path = saved(tmp_path / "whole")
    shape = read_shape(path)
    whole = read_weights(path, shape)
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    shutil.copy(path / "config.json", sharded)
    names = sorted(whole)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({name: whole[name].contiguous() for name in some}, sharded / file)
    index = {"metadata": {}, "weight_map": {name: file for file, some in parts.items() for name in some}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, tensor in read_weights(sharded, shape).items():
        assert torch.equal(tensor, whole[name])
    before = digest(sharded)
    (sharded / "model-2.safetensors").unlink()
    with pytest.raises(LocalError, match=r"model-2\.safetensors is missing"):
        read_weights(sharded, shape)
    index["weight_map"][names[0]] = "../model-1.safetensors"
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SpecError, match="outside"):
        read_weights(sharded, shape)
    assert before != digest(path)


def test_the_digest_pins_weights_and_shape_but_not_the_place(tmp_path: Path) -> None:
    path = saved(tmp_path / "one")
    first = digest(path)
    assert digest(saved(tmp_path / "two")) == first
    edit(path / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 5.0})
    assert digest(path) != first
    with pytest.raises(LocalError, match="digest"):
        build_engine(toy_run(Folder(path=str(path), digest=first)), ToyData(), device="cpu")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model_type": "mixtral"}, "model_type"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters.rope_type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"head_dim": 16}, "head_dim"),
        ({"num_key_value_heads": 3}, "kv_heads"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_a_model_that_cannot_be_run_exactly_is_refused_by_file_and_key(
    tmp_path: Path, changes: dict[str, object], key: str
) -> None:
    path = saved(tmp_path / "out")
    edit(path / "config.json", **changes)
    with pytest.raises(SpecError, match=key) as refused:
        read_shape(path)
    assert "config.json" in refused.value.what
    assert refused.value.hint


def test_a_legacy_config_is_understood(tmp_path: Path) -> None:
    path = saved(tmp_path / "out", PLAIN)
    config = json.loads((path / "config.json").read_text())
    for key in ("rope_parameters", "head_dim", "dtype", "num_key_value_heads"):
        del config[key]
    (path / "config.json").write_text(json.dumps(config | {"eos_token_id": [2, 3], "rope_scaling": None}))
    assert read_shape(path).size == PLAIN
    assert read_shape(path).eos == 2


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def drop_one(file: Path) -> None:
    kept = load_file(file)
    del kept["model.norm.weight"]
    save_file(kept, file)


def reshape_one(file: Path) -> None:
    kept = load_file(file)
    kept["model.norm.weight"] = torch.ones(3)
    save_file(kept, file)


@pytest.mark.parametrize("damage", [cut, drop_one, reshape_one, lambda file: file.write_bytes(b"")])
def test_damaged_weights_are_a_local_error(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = saved(tmp_path / "out")
    damage(path / "model.safetensors")
    with pytest.raises(LocalError):
        read_weights(path, read_shape(path))


def test_a_torn_config_is_damage_and_a_missing_one_a_wrong_path(tmp_path: Path) -> None:
    path = saved(tmp_path / "out")
    cut_text = (path / "config.json").read_text()[:50]
    (path / "config.json").write_text(cut_text)
    with pytest.raises(LocalError, match="damaged"):
        read_shape(path)
    with pytest.raises(SpecError, match="does not exist"):
        read_shape(tmp_path)


def test_foreign_tensors_and_pickled_weights_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "out")
    kept = load_file(path / "model.safetensors")
    save_file(kept | {"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}, path / "model.safetensors")
    with pytest.raises(SpecError, match=r"q_proj\.bias"):
        read_weights(path, read_shape(path))
    save_file({name: tensor.to(torch.int8) for name, tensor in kept.items()}, path / "model.safetensors")
    with pytest.raises(SpecError, match="I8"):
        read_weights(path, read_shape(path))
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(SpecError, match=r"no model\.safetensors"):
        read_weights(path, read_shape(path))


def test_an_export_is_whole_or_absent_and_never_overwrites(tmp_path: Path) -> None:
    path = saved(tmp_path / "out")
    with pytest.raises(SpecError, match="already exists"):
        saved(path)
    with pytest.raises(LocalError, match="elements"):
        save_folder(toy_run(), np.zeros(5, np.float32), tmp_path / "wrong", vocab_size=VOCAB)
    bad = {"tokenizer.json": b"{}", "no/such/folder": b""}
    with pytest.raises(LocalError, match="cannot be written"):
        saved(tmp_path / "torn", tokenizer_files=bad)
    assert [child.name for child in tmp_path.iterdir()] == ["out"]


def test_data_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    size = GROUPED
    run = toy_run(size)
    save_folder(run, initial(shapes(size, 50), 7, size.layers), tmp_path / "small", vocab_size=50)
    with pytest.raises(SpecError, match="tokenizer"):
        build_engine(toy_run(Folder(path=str(tmp_path / "small"))), ToyData(), device="cpu")


# adapters

ALL = Lora(rank=4, alpha=8.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))


@pytest.mark.parametrize("lora", [Lora(rank=2, alpha=4.0), ALL])
def test_an_adapter_trains_alone_starts_as_its_base_and_merges_into_it(tmp_path: Path, lora: Lora) -> None:
    base = saved(tmp_path / "base", tokenizer_files=TOKENIZER)
    run = toy_run(Folder(path=str(base), adapter=lora))
    engine = build_engine(run, ToyData(), device="cpu")
    plain = build_engine(toy_run(Folder(path=str(base))), ToyData(), device="cpu")
    assert engine.evaluate(0, 10) == plain.evaluate(0, 10)
    assert engine.size < plain.size
    assert engine.cost(1).flop < plain.cost(1).flop
    frozen = {name: p.clone() for name, p in engine.model.named_parameters() if not p.requires_grad}
    before, _ = engine.evaluate(0, 10)
    engine.train(toy_steps(6))
    after, _ = engine.evaluate(0, 10)
    assert after < before
    assert set(frozen) == set(shapes(GROUPED, VOCAB))
    assert all(torch.equal(engine.model.get_parameter(name), p) for name, p in frozen.items())

    merged = save_folder(run, engine.weights(), tmp_path / "merged", merge=True)
    adapter = save_folder(run, engine.weights(), tmp_path / "adapter")
    tokens = torch.from_numpy(ToyData().batch([1, 2]))
    wanted = engine.model(tokens)
    for path in (merged, adapter):
        model, shape = open_model(path)
        torch.testing.assert_close(model(tokens), wanted, atol=1e-5, rtol=0)
        assert shape.size == GROUPED
    assert (adapter / "tokenizer.json").is_file()


@pytest.mark.parametrize("inner", [AdamW(lr=3e-3), Lamb(lr=0.02)])
def test_an_adapter_resumes_bit_for_bit(tmp_path: Path, inner: Inner) -> None:
    run = toy_run(Folder(path=str(saved(tmp_path / "base")), adapter=Lora(rank=2)), inner)
    whole, first, second = (build_engine(run, ToyData(), device="cpu") for _ in range(3))
    whole.train(toy_steps(3))
    first.train(toy_steps(1))
    second.assign(first.weights())
    second.restore(first.private())
    second.train(toy_steps(2, first=1))
    assert same(whole.weights(), second.weights())


def test_adapters_that_cannot_be_run_exactly_are_refused(tmp_path: Path) -> None:
    base = saved(tmp_path / "base")
    for bad in (Lora(targets=("query",)), Lora(targets=()), Lora(rank=0)):
        with pytest.raises(SpecError, match="adapter"):
            build_engine(toy_run(Folder(path=str(base), adapter=bad)), ToyData(), device="cpu")
    run = toy_run(Folder(path=str(base), adapter=Lora(rank=2)))
    engine = build_engine(run, ToyData(), device="cpu")
    path = save_folder(run, engine.weights(), tmp_path / "adapter")
    good = (path / "adapter_config.json").read_bytes()
    for key, value in {"use_dora": True, "peft_type": "IA3", "bias": "all", "target_modules": "q.*"}.items():
        (path / "adapter_config.json").write_bytes(msgspec.json.encode(msgspec.json.decode(good) | {key: value}))
        with pytest.raises(SpecError, match=key):
            read_adapter(path)
    (path / "adapter_config.json").write_bytes(msgspec.json.encode(msgspec.json.decode(good) | {"r": 3}))
    with pytest.raises(LocalError, match="shape"):
        open_model(path)
