"""Given: a model's directory: its sizes, its tokenizer, its tensors.

Reads what Hugging Face keeps of a Llama-shape model: config.json, tokenizer.json, and
model.safetensors or its shards; `model.py` uses it, and is the one to read first. Leaves out
downloads, other architectures, scaled RoPE, biases, quantised weights and generation_config.json.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors import SafetensorError, safe_open


@dataclass(slots=True, frozen=True)
class ModelConfig:
    """The sizes of a decoder. A bare one, of a model that is not here, serves for arithmetic.

    Attributes:
        num_layers, num_query_heads, num_kv_heads, head_dim, hidden_size, vocab_size: sizes.
        max_seq_len: tokens, prompt and output together.
        intermediate_size: width of the MLP; 0 is unknown (a bare config).
        eos_token_id: the token that ends a text; None: there is none.
        stop_token_ids: further tokens that end a text (some checkpoints name several).
        rms_norm_eps, rope_theta, tie_word_embeddings: as in Hugging Face's config.json.

    Raises:
        ValueError: naming a size below 1, or query heads that are not a multiple of the KV heads.

    >>> tiny = ModelConfig(num_layers=2, num_query_heads=6, num_kv_heads=2, head_dim=8,
    ...                    hidden_size=48, vocab_size=100, max_seq_len=64)
    >>> tiny.num_query_heads // tiny.num_kv_heads
    3
    """

    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_seq_len: int
    intermediate_size: int = 0
    eos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        sizes = "num_layers num_query_heads num_kv_heads head_dim hidden_size vocab_size"
        for name in f"{sizes} max_seq_len".split():
            size = getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a whole number from 1 up, got {size!r}")
        if self.num_query_heads % self.num_kv_heads:
            raise ValueError(
                f"num_query_heads {self.num_query_heads} is not a multiple of num_kv_heads "
                f"{self.num_kv_heads}"
            )

    @classmethod
    def from_dict(cls, hf_config: dict[str, Any]) -> "ModelConfig":
        """Read the contents of a Hugging Face config.json, old or new.

        Raises:
            ValueError: naming what is missing, or what this model does not compute: another
                architecture or activation, biases, quantised weights, scaled RoPE.
        """
        rope_theta = refuse_unsupported(hf_config)

        def required(key: str) -> int:
            value = hf_config.get(key)
            if isinstance(value, int) and value >= 1:
                return value
            raise ValueError(f"{key} must be a whole number from 1 up, got {value!r}")

        num_query_heads, hidden_size = required("num_attention_heads"), required("hidden_size")
        if hf_config.get("head_dim") is not None:
            head_dim = required("head_dim")
        elif hidden_size % num_query_heads == 0:
            head_dim = hidden_size // num_query_heads
        else:
            raise ValueError(
                f"hidden_size {hidden_size} is not a multiple of num_attention_heads "
                f"{num_query_heads}, and head_dim is not given"
            )
        if head_dim % 2:
            raise ValueError(f"head_dim {head_dim} is odd: RoPE turns pairs")
        eos = hf_config.get("eos_token_id")
        eos_ids = [eos] if isinstance(eos, int) else list(eos or [])
        return cls(
            num_layers=required("num_hidden_layers"),
            num_query_heads=num_query_heads,
            num_kv_heads=hf_config.get("num_key_value_heads") or num_query_heads,
            head_dim=head_dim,
            hidden_size=hidden_size,
            vocab_size=required("vocab_size"),
            max_seq_len=required("max_position_embeddings"),
            intermediate_size=required("intermediate_size"),
            eos_token_id=eos_ids[0] if eos_ids else None,
            stop_token_ids=tuple(eos_ids[1:]),
            rms_norm_eps=hf_config.get("rms_norm_eps", 1e-6),
            rope_theta=rope_theta or 10000.0,
            tie_word_embeddings=bool(hf_config.get("tie_word_embeddings", False)),
        )


def refuse_unsupported(hf_config: dict[str, Any]) -> float | None:
    """Raise ValueError naming what the model does not compute; give back its rope_theta, if any."""
    if hf_config.get("model_type") != "llama":
        raise ValueError(
            f"model_type is {hf_config.get('model_type')!r}: only 'llama' is supported, "
            "choose a checkpoint of that architecture"
        )
    for key, supported in (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("quantization_config", None),
    ):
        value = hf_config.get(key)
        if value is not None and value != supported:
            raise ValueError(f"{key} is {value!r}: only {supported!r} is supported")
    rope: dict[str, Any] = {"rope_theta": hf_config.get("rope_theta")}
    rope |= hf_config.get("rope_scaling") or {}
    rope |= hf_config.get("rope_parameters") or {}
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type != "default":
        raise ValueError(
            f"rope_type is {rope_type!r}: scaled RoPE is not supported, only 'default'"
        )
    rope_theta: float | None = rope["rope_theta"]
    return rope_theta


class Tokenizer:
    """Text to token ids and back, by a tokenizer.json that is read at the first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tokenizer: tokenizers.Tokenizer | None = None

    def _load(self) -> tokenizers.Tokenizer:
        if self._tokenizer is None:
            if not self.path.is_file():
                raise FileNotFoundError(
                    f"{self.path} is missing: put the model's tokenizer.json there, or use token "
                    "ids in place of text"
                )
            try:
                self._tokenizer = tokenizers.Tokenizer.from_file(str(self.path))
            except Exception as error:
                raise ValueError(f"{self.path} is not a tokenizer.json: {error}") from None
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids of the text, with the special tokens that tokenizer.json itself adds."""
        return self._load().encode(text).ids

    def decode(self, token_ids: Sequence[int] | torch.Tensor) -> str:
        """Text of the token ids, without special tokens such as the end of a text."""
        return self._load().decode([int(token_id) for token_id in token_ids])


class Checkpoint:
    """The tensors of a directory by name: in model.safetensors, or in shards with an index."""

    def __init__(self, folder: Path) -> None:
        single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        self._open_files: dict[Path, Any] = {}
        if single.is_file():
            self.source = single
            self.files = dict.fromkeys(self._open(single).keys(), single)
        elif index.is_file():
            self.source = index
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ValueError(f"{index} has no weight_map: fetch the file again")
            self.files = {name: folder / str(shard) for name, shard in weight_map.items()}
        else:
            raise FileNotFoundError(
                f"{folder} has neither {single.name} nor {index.name}: weights of another format "
                "must first be saved as safetensors"
            )

    def _open(self, path: Path) -> Any:
        if path not in self._open_files:
            if not path.is_file():
                raise FileNotFoundError(f"{path}, a shard that the index names, is missing")
            try:
                self._open_files[path] = safe_open(path, framework="pt")
            except SafetensorError as error:
                raise ValueError(
                    f"{path} ({path.stat().st_size} bytes) is not a whole safetensors file "
                    f"({error}): fetch it again; a very small one may be a Git LFS pointer"
                ) from None
        return self._open_files[path]

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """Read one tensor; ValueError where it is missing or not of this shape or not floating."""
        if name not in self.files:
            raise ValueError(f"{self.source} has no tensor {name}: it does not fit its config.json")
        try:
            tensor: torch.Tensor = self._open(self.files[name]).get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{self.files[name]} gives no tensor {name}: {error}") from None
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} in {self.files[name]} has shape {list(tensor.shape)}, and by config.json "
                f"it should be {list(shape)}"
            )
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise ValueError(f"{name} in {self.files[name]} is {tensor.dtype}: it seems quantised")
        return tensor


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; FileNotFoundError or ValueError, naming the file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: a Hugging Face Llama directory has one")
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if isinstance(contents, dict):
        return contents
    raise ValueError(f"{path} must hold a JSON object, got {type(contents).__name__}")
