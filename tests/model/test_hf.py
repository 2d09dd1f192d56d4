"""Agreement with transformers and peft: the same folders, the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from atoll.data.tokenizer import bytes_tokenizer
from atoll.model.engine import build_engine
from atoll.model.folder import read_shape, save_folder
from atoll.model.sample import open_model
from atoll.model.shape import initial, shapes
from atoll.spec.run import Folder, Lora, Size
from tests.model.toys import GROUPED, PLAIN, VOCAB, ToyData, toy_run, toy_steps

# Warnings of these libraries about themselves are not ours to fix.
pytestmark = [pytest.mark.hf, pytest.mark.filterwarnings("ignore")]

TOKENS = torch.from_numpy(ToyData().batch([0, 1, 2]))


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS).logits
    return found


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    assert one.abs().max() > 0.1  # not equal because both are nothing
    torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [GROUPED, PLAIN])
def test_transformers_loads_our_folder_and_gives_our_logits(transformers: Any, tmp_path: Path, size: Size) -> None:
    engine = build_engine(toy_run(size), ToyData(), device="cpu")
    engine.train(toy_steps(3))
    path = save_folder(toy_run(size), engine.weights(), tmp_path / "out", vocab_size=VOCAB)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert type(theirs).__name__ == "LlamaForCausalLM"
    with torch.no_grad():
        close(engine.model(TOKENS), logits(theirs))


@pytest.mark.parametrize("size", [GROUPED, PLAIN])
@pytest.mark.parametrize("shard", ["1GB", "8KB"])
def test_we_load_what_transformers_saves(transformers: Any, tmp_path: Path, size: Size, shard: str) -> None:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=size.dim,
        intermediate_size=size.ffn,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        rms_norm_eps=size.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": size.rope_theta},
        tie_word_embeddings=size.tied,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors").exists() == (shard == "1GB")
    assert read_shape(tmp_path).size == size
    ours, _ = open_model(tmp_path)
    close(ours(TOKENS), logits(theirs))


def test_the_exported_tokenizer_opens_in_transformers(transformers: Any, tmp_path: Path) -> None:
    tokenizer = bytes_tokenizer()
    vector = initial(shapes(GROUPED, tokenizer.vocab_size), 0, GROUPED.layers)
    path = save_folder(toy_run(), vector, tmp_path / "out", tokenizer.files(), vocab_size=tokenizer.vocab_size)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    assert theirs.encode("An atoll.", add_special_tokens=False) == tokenizer.encode("An atoll.")
    assert theirs.eos_token_id == tokenizer.end == read_shape(path).eos


def test_peft_loads_our_adapter_and_gives_our_logits(transformers: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = save_folder(toy_run(), initial(shapes(GROUPED, VOCAB), 1, 2), tmp_path / "base", vocab_size=VOCAB)
    lora = Lora(rank=3, alpha=5.0, targets=("q_proj", "v_proj", "down_proj"))
    run = toy_run(Folder(path=str(base), adapter=lora))
    engine = build_engine(run, ToyData(), device="cpu")
    engine.train(toy_steps(8))
    adapter = save_folder(run, engine.weights(), tmp_path / "adapter")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base)
    before = logits(theirs)
    adapted = peft.PeftModel.from_pretrained(theirs, adapter)
    close(engine.model(TOKENS).detach(), logits(adapted))
    assert (before - logits(adapted)).abs().max() > 1e-3
