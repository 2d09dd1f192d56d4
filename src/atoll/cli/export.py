"""`atoll export`: a checkpoint as a folder that `transformers`, `peft` and `atoll generate` open."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from atoll.model.compute import Vector
    from atoll.spec.run import Run


def export(
    run: Run,
    vector: Vector,
    out: Path,
    *,
    tokenizer_files: Path | Mapping[str, bytes] | None = None,
    vocab_size: int | None = None,
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    merge: bool = False,
) -> Path:
    """Write a run's weights as a model folder and return it; see `atoll.model.folder.save_folder`."""
    from atoll.model.folder import save_folder

    return save_folder(run, vector, out, tokenizer_files, vocab_size=vocab_size, dtype=dtype, merge=merge)
