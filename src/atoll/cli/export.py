"""`atoll export`: a checkpoint as a folder that `transformers`, `peft` and `atoll generate` open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from atoll.errors import LocalError, SpecError


def command(
    home: Annotated[Path, typer.Argument(help="Folder of a run, or of one of its peers.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    merge: Annotated[bool, typer.Option("--merge", help="Merge adapters into the model they were trained on.")] = False,
) -> None:
    """Write the newest checkpoint of a run as a Hugging Face folder."""
    if dtype not in ("float32", "float16", "bfloat16"):
        raise SpecError(f"--dtype: {dtype!r} is not known", hint="choose float32, float16 or bfloat16")
    print(export(home, out, dtype=dtype, merge=merge))  # type: ignore[arg-type]


def export(
    home: Path, out: Path, *, dtype: Literal["float32", "float16", "bfloat16"] = "float32", merge: bool = False
) -> Path:
    """Write the newest checkpoint found below `home` as a model folder, and return that folder."""
    from atoll.cli.machine import cache
    from atoll.data.samples import open_data
    from atoll.model.folder import save_folder
    from atoll.peer.store import anchor_from_bytes
    from atoll.spec.load import decode_run
    from atoll.spec.run import Folder

    path = newest_checkpoint(home)
    peer = path.parent.parent
    run = decode_run((peer / "run.json").read_bytes(), source=str(peer / "run.json"))
    anchor = anchor_from_bytes(path.read_bytes(), str(path))
    data = open_data(run.data, run.seeds.data, cache())
    # A pretrained folder brings its own tokenizer files, chat template included.
    files = None if isinstance(run.model, Folder) else data.tokenizer().files()
    return save_folder(run, anchor.weights, out, files, vocab_size=data.vocab_size, dtype=dtype, merge=merge)


def newest_checkpoint(home: Path) -> Path:
    """Return the checkpoint of the highest version in a run's or a peer's folder."""
    found = [*home.glob("checkpoint/*.safetensors"), *home.glob("peers/*/checkpoint/*.safetensors")]
    if not found:
        raise LocalError(f"{home}: no checkpoint here", hint="give the folder that `atoll train` printed")
    return max(found, key=lambda path: (int(path.stem), str(path)))
