"""The smallest run that the commands which play one are tried with, and how they are called."""

from __future__ import annotations

import os
import sys

RUN = """
name = "toy"

[model]
kind = "fresh"
size = { dim = 16, layers = 1, heads = 2, kv_heads = 1, ffn = 32 }

[data]
context = 512
source = { kind = "corpus", name = "austen", tokenizer = "bytes" }

[recipe]
base = "diloco"

[recipe.work]
batch = 1
schedule = { warmup_steps = 2 }

[recipe.channel.outer.when]
steps = 3

[budget]
rounds = 2
"""
COMMAND = [sys.executable, "-m", "atoll.cli.main"]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
