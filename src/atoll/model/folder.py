"""Models as folders of files: the Hugging Face layout in and out, and PEFT's for adapters.

    config.json  generation_config.json  model.safetensors  tokenizer.json ...      a model
    adapter_config.json  adapter_model.safetensors                                  an adapter

What we write, `transformers` and `peft` load. What we read must be a Llama that this engine runs exactly:
anything else is refused by name (`SpecError`), because a nearly right model trains without an error and is
worth nothing. A file that is torn or does not match its own index is damage (`LocalError`).
Only the functions that touch tensors import torch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from blake3 import blake3
from safetensors import SafetensorError, safe_open

from atoll.errors import LocalError, SpecError
from atoll.model.compute import Vector
from atoll.model.moments import travelling
from atoll.model.shape import Shape, Shapes, adapter_shapes, check, elements, pieces, shapes, size_of
from atoll.spec.run import Folder, Fresh, Lora, Run, Size, canonical

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Dtype = Literal["float32", "float16", "bfloat16"]

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja",
)  # fmt: skip
_DTYPES = {"F32", "F16", "BF16"}


class _Rope(msgspec.Struct):
    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None


class _Config(msgspec.Struct):
    """The keys of config.json that decide what a Llama computes; defaults are transformers'."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    partial_rotary_factor: float | None = None
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    quantization_config: dict[str, Any] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Adapter(msgspec.Struct):
    """The keys of adapter_config.json that decide what a LoRA computes."""

    peft_type: str
    r: int
    lora_alpha: float
    target_modules: list[str] | str
    base_model_name_or_path: str | None = None
    bias: str = "none"
    use_rslora: bool = False
    use_dora: bool = False
    fan_in_fan_out: bool = False
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    modules_to_save: list[str] | None = None


# reading


def read_shape(folder: Path) -> Shape:
    """Return what config.json describes, or raise `SpecError` when this engine cannot run it exactly."""
    file = folder / "config.json"
    config = _read_json(file, _Config, what="a model folder in the Hugging Face layout")
    for key, value, allowed in _claims(config):
        if value != allowed:
            raise SpecError(
                f"{file}: {key}: {value!r} cannot be run exactly; only {allowed!r} can",
                hint="choose a model of the plain Llama architecture (Llama 2, SmolLM, TinyLlama, ...)",
            )
    theta = (config.rope_parameters and config.rope_parameters.rope_theta) or config.rope_theta or 10000.0
    size = Size(
        dim=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        ffn=config.intermediate_size,
        tied=config.tie_word_embeddings,
        rope_theta=theta,
        norm_eps=config.rms_norm_eps,
    )
    try:
        check(size)
    except SpecError as error:
        raise SpecError(f"{file}: {error.what}", hint=error.hint) from error
    eos = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
    context = config.max_position_embeddings
    return Shape(size=size, vocab=config.vocab_size, context=context, bos=config.bos_token_id, eos=eos)


def read_weights(folder: Path, shape: Shape) -> dict[str, Tensor]:
    """Return the folder's weights as fp32 tensors by name, complete and of the right shapes."""
    wanted = shapes(shape.size, shape.vocab)
    found: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        found |= _read_tensors(file, wanted, tied=shape.size.tied)
    _check_complete(folder, wanted, found)
    return found


def read_adapter(folder: Path) -> tuple[Lora, dict[str, Tensor], str]:
    """Return an adapter's settings, its weights by our names, and the path or name of the model it adapts."""
    file = folder / "adapter_config.json"
    config = _read_json(file, _Adapter, what="an adapter folder in the PEFT layout")
    plain = _Adapter(peft_type="LORA", r=config.r, lora_alpha=config.lora_alpha, target_modules=config.target_modules)
    for key in plain.__struct_fields__:
        if key != "base_model_name_or_path" and (value := getattr(config, key)) != getattr(plain, key):
            raise SpecError(f"{file}: {key}: {value!r} cannot be run exactly", hint="only plain LoRA adapters can")
    if isinstance(config.target_modules, str):
        raise SpecError(f"{file}: target_modules: a pattern", hint="write the list of modules out")
    lora = Lora(rank=config.r, alpha=config.lora_alpha, targets=tuple(sorted(config.target_modules)))
    weights = _read_tensors(folder / ADAPTER_WEIGHTS, None, tied=False)
    stripped = {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in weights.items()}
    return lora, stripped, config.base_model_name_or_path or ""


def check_adapter(folder: Path, size: Size, lora: Lora, weights: dict[str, Tensor]) -> None:
    """Raise `LocalError` unless an adapter's weights are exactly those its settings call for."""
    _check_complete(folder, adapter_shapes(size, lora), weights)


def digest(folder: Path) -> str:
    """Return BLAKE3 over what decides a folder's model: the shape read from config.json and the weight files."""
    shape = read_shape(folder)
    total = blake3(canonical({"size": shape.size, "vocab": shape.vocab}))
    for file in _weight_files(folder):
        one = blake3()
        with _reading(file):
            one.update_mmap(file)
        total.update(one.digest())
    return total.hexdigest()


# writing


def layout_of(run: Run, vocab: int | None) -> tuple[Shape, Shapes]:
    """Return the shape of a run's model and the layout of its vector."""
    match run.model:
        case Fresh():
            if vocab is None:
                raise SpecError("the vocabulary of a fresh model comes from its data", hint="give its size")
            shape = Shape(size=size_of(run.model), vocab=vocab, context=run.data.context)
            return shape, shapes(shape.size, vocab)
        case Folder(adapter=None):
            shape = read_shape(Path(run.model.path))
            return shape, shapes(shape.size, shape.vocab)
        case Folder(adapter=lora):
            assert lora is not None
            shape = read_shape(Path(run.model.path))
            return shape, adapter_shapes(shape.size, lora)


def save_folder(
    run: Run,
    vector: Vector,
    path: Path,
    tokenizer_files: Path | Mapping[str, bytes] | None = None,
    *,
    vocab_size: int | None = None,
    dtype: Dtype = "float32",
    merge: bool = False,
) -> Path:
    """Write a run's model to a new folder, whole or not at all, and return it; what lies behind it is left out.

    A run with an adapter gives PEFT's layout, or with `merge` a plain model with the adapter folded in.
    """
    shape, layout = layout_of(run, vocab_size)
    count = elements(travelling(run.recipe, layout))
    if vector.shape != (count,):
        raise LocalError(
            f"the vector has {vector.size} elements, this run's {count}",
            hint="were they written by another run, or with another tokenizer?",
        )
    vector = vector[: elements(layout)]
    if tokenizer_files is None and isinstance(run.model, Folder):
        tokenizer_files = Path(run.model.path)
    tokenizer = tokenizer_bytes(tokenizer_files)
    with _new_folder(path) as folder:
        if isinstance(run.model, Folder) and run.model.adapter is not None and not merge:
            _save_adapter(folder, run.model, pieces(layout, vector), dtype)
        else:
            shape = _with_specials(shape, tokenizer)
            _write_json(folder / "config.json", config_json(shape, dtype))
            _write_json(folder / "generation_config.json", _generation_json(shape))
            _save_tensors(folder / WEIGHTS, _whole(run, shape, pieces(layout, vector)), dtype)
        _write_tokenizer(folder, tokenizer, shape)
    return path


def config_json(shape: Shape, dtype: Dtype = "float32") -> dict[str, Any]:
    """Return config.json for a decoder, with the keys old and new readers look for."""
    size = shape.size
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size.dim,
        "intermediate_size": size.ffn,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.dim // size.heads,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": size.norm_eps,
        "rope_theta": size.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": size.rope_theta},
        "tie_word_embeddings": size.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "use_cache": True,
        "bos_token_id": shape.bos,
        "eos_token_id": shape.eos,
        "pad_token_id": None,
        "dtype": dtype,
    }


# what is read, checked


def _claims(config: _Config) -> Iterator[tuple[str, object, object]]:
    """Yield (key, value, the only value that we run exactly)."""
    yield "model_type", config.model_type, "llama"
    yield "hidden_act", config.hidden_act, "silu"
    yield "attention_bias", config.attention_bias, False
    yield "mlp_bias", config.mlp_bias, False
    yield "quantization_config", config.quantization_config, None
    yield "head_dim", config.head_dim, config.head_dim and config.hidden_size // max(1, config.num_attention_heads)
    yield "partial_rotary_factor", config.partial_rotary_factor or 1.0, 1.0
    for key, rope in (("rope_scaling", config.rope_scaling), ("rope_parameters", config.rope_parameters)):
        if rope is not None:
            yield f"{key}.rope_type", rope.rope_type or rope.type or "default", "default"
            yield f"{key}.partial_rotary_factor", rope.partial_rotary_factor or 1.0, 1.0


def _weight_files(folder: Path) -> list[Path]:
    """Return the folder's weight files in a fixed order."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        names = sorted(set(_read_json(folder / INDEX, _Index, what="an index of weights").weight_map.values()))
        for name in names:
            if Path(name).name != name:
                raise SpecError(f"{folder / INDEX}: {name!r} points outside the folder", hint="download it again")
            if not (folder / name).is_file():
                raise LocalError(f"{folder / name} is missing", hint=f"{INDEX} names it: download the folder again")
        return [folder / name for name in names]
    raise SpecError(
        f"{folder}: there is no {WEIGHTS} and no {INDEX}",
        hint="pickled weights (*.bin, *.pth) are not read: save the model as safetensors",
    )


def _read_tensors(file: Path, wanted: Shapes | None, tied: bool) -> dict[str, Tensor]:
    import torch

    found: dict[str, Tensor] = {}
    with _reading(file), safe_open(str(file), framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 (a safetensors handle, no mapping)
            if name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight"):
                continue  # derived values that older folders carry along
            if wanted is not None and name not in wanted:
                raise SpecError(f"{file}: {name}: not a parameter of a plain Llama", hint="choose another model")
            kind = opened.get_slice(name).get_dtype()
            if kind not in _DTYPES:
                raise SpecError(f"{file}: {name}: dtype {kind}", hint="save the weights as fp32, fp16 or bf16")
            found[name] = opened.get_tensor(name).to(torch.float32)
    return found


def _check_complete(folder: Path, wanted: Shapes, found: Mapping[str, Tensor]) -> None:
    for name, shape in wanted.items():
        if name not in found:
            raise LocalError(f"{folder}: {name} is missing", hint="the folder is incomplete: download it again")
        if tuple(found[name].shape) != shape:
            raise LocalError(
                f"{folder}: {name} has shape {tuple(found[name].shape)}, config.json says {shape}",
                hint="weights and config.json belong to different models",
            )
    if extra := sorted(set(found) - set(wanted)):
        raise LocalError(f"{folder}: {extra[0]} is not wanted", hint="weights and settings belong to different models")


def _read_json(file: Path, kind: type[T], what: str) -> T:
    if not file.is_file():
        raise SpecError(f"{file} does not exist", hint=f"give {what}")
    with _reading(file):
        raw = file.read_bytes()
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise SpecError(f"{file}: {error}", hint=f"is it {what}?") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LocalError(f"{file} is damaged: {error}", hint="download or export it again") from error


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise LocalError(f"{file} cannot be read: {error}", hint="the file is damaged: download it again") from error


# what is written


def _whole(run: Run, shape: Shape, parts: dict[str, Vector]) -> dict[str, Tensor]:
    """Return the full set of weights of a plain model."""
    import torch

    own = {name: torch.tensor(part) for name, part in parts.items()}
    if isinstance(run.model, Folder) and run.model.adapter is not None:
        from atoll.model.lora import merged

        return merged(read_weights(Path(run.model.path), shape), own, run.model.adapter)
    return own


def _save_adapter(folder: Path, model: Folder, parts: dict[str, Vector], dtype: Dtype) -> None:
    import torch

    assert model.adapter is not None
    _write_json(folder / "adapter_config.json", _adapter_json(model.path, model.adapter))
    tensors = {PEFT_PREFIX + name: torch.tensor(part) for name, part in parts.items()}
    _save_tensors(folder / ADAPTER_WEIGHTS, tensors, dtype)


def _adapter_json(base: str, lora: Lora) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(lora.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
    }


def _generation_json(shape: Shape) -> dict[str, Any]:
    known = {"bos_token_id": shape.bos, "eos_token_id": shape.eos}
    return {key: value for key, value in known.items() if value is not None}


def _save_tensors(file: Path, tensors: dict[str, Tensor], dtype: Dtype) -> None:
    import torch
    from safetensors.torch import save_file

    kind = getattr(torch, dtype)
    save_file({name: tensor.to(kind).contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def tokenizer_bytes(source: Path | Mapping[str, bytes] | None) -> dict[str, bytes]:
    """Return a tokenizer's files by name, from a folder, from one tokenizer.json, or as given."""
    if source is None or isinstance(source, Mapping):
        return dict(source or {})
    files = [source / name for name in TOKENIZER_FILES] if source.is_dir() else [source]
    return {file.name: file.read_bytes() for file in files if file.is_file()}


def _write_tokenizer(folder: Path, tokenizer: dict[str, bytes], shape: Shape) -> None:
    """Write a tokenizer's files; without its config, add the line that lets transformers open it."""
    for name, content in tokenizer.items():
        (folder / name).write_bytes(content)
    if "tokenizer.json" in tokenizer and "tokenizer_config.json" not in tokenizer:
        plain = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape.context}
        _write_json(folder / "tokenizer_config.json", plain)


def _with_specials(shape: Shape, tokenizer: dict[str, bytes]) -> Shape:
    """Return the shape with the ids of the tokenizer's begin and end tokens, where it names any."""
    added = _loose(tokenizer, "tokenizer.json").get("added_tokens") or []
    ids = {entry["content"]: entry["id"] for entry in added}
    settings = _loose(tokenizer, "tokenizer_config.json")

    def look(key: str, fallback: int | None) -> int | None:
        token = settings.get(key)
        return ids.get(token.get("content") if isinstance(token, dict) else token, fallback)

    return msgspec.structs.replace(shape, bos=look("bos_token", shape.bos), eos=look("eos_token", shape.eos))


def _loose(tokenizer: dict[str, bytes], name: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(tokenizer.get(name, b"{}"), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LocalError(f"the tokenizer's {name} is damaged: {error}", hint="prepare or download it again") from error


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill beside `path`; it takes the name only when all of it is written."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise SpecError(f"{path} already exists", hint="give the name of a new folder")
    fresh = path.with_name(path.name + ".new")
    try:
        _clear(fresh)
        fresh.mkdir(parents=True)
        yield fresh
        if path.is_dir():
            path.rmdir()
        os.replace(fresh, path)
    except (OSError, SafetensorError) as error:
        raise LocalError(
            f"{path} cannot be written: {error}", hint="is there enough space, and may we write?"
        ) from error
    finally:
        _clear(fresh)


def _clear(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)
