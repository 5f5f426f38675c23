"""Given: the model, a decoder of Llama's shape.

RMSNorm, rotary positions, grouped-query attention, SwiGLU; `checkpoint.py` reads its files, and
`generation.py` makes text of its logits. The model knows one thing of caches, the call
`cache.attend(layer_idx, q, k, v)`, and the lessons are about what a cache does when it is called.
Leaves out training and dropout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F

from .checkpoint import Checkpoint, ModelConfig, Tokenizer, read_json

Ints = Sequence[int] | torch.Tensor


class Attends(Protocol):
    """What the model asks of a cache."""

    def attend(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor: ...


class SequenceCache(Attends, Protocol):
    """What `generate` asks of the cache of one sequence."""

    @property
    def num_tokens(self) -> int: ...

    def extend(self, n: int) -> bool: ...


class NoCache:
    """Attention among the tokens of one call, causal, by PyTorch's own kernel; keeps nothing."""

    def attend(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Attend. q [num_tokens, num_query_heads, head_dim], k and v with num_kv_heads."""
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # [1, heads, num_tokens, head_dim]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)


@dataclass(slots=True)
class Layer:
    """The weights of one layer. Projections of one input are stacked: one matmul for all."""

    attention_norm: torch.Tensor  # [hidden_size]
    qkv: torch.Tensor  # [(num_query_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    output: torch.Tensor  # [hidden_size, num_query_heads * head_dim]
    mlp_norm: torch.Tensor  # [hidden_size]
    gate_up: torch.Tensor  # [2 * intermediate_size, hidden_size]
    down: torch.Tensor  # [hidden_size, intermediate_size]


class Model:
    """A decoder that gives the logits of the next token at each of its tokens.

    Attributes:
        config: its sizes.
        tokenizer: text to token ids and back.
        dtype, device: of the weights, and of the q, k and v that a cache receives.
    """

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        tokenizer: Tokenizer,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config, self.tokenizer, self.dtype, self.device = config, tokenizer, dtype, device
        hidden, inner = config.hidden_size, config.intermediate_size
        q_width = config.num_query_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim

        def read(name: str, *shape: int) -> torch.Tensor:
            return checkpoint.tensor(f"{name}.weight", *shape).to(device=device, dtype=dtype)

        def read_layer(prefix: str) -> Layer:
            q = read(f"{prefix}.self_attn.q_proj", q_width, hidden)
            k = read(f"{prefix}.self_attn.k_proj", kv_width, hidden)
            v = read(f"{prefix}.self_attn.v_proj", kv_width, hidden)
            gate = read(f"{prefix}.mlp.gate_proj", inner, hidden)
            up = read(f"{prefix}.mlp.up_proj", inner, hidden)
            return Layer(
                attention_norm=read(f"{prefix}.input_layernorm", hidden),
                qkv=torch.cat([q, k, v]),
                output=read(f"{prefix}.self_attn.o_proj", hidden, q_width),
                mlp_norm=read(f"{prefix}.post_attention_layernorm", hidden),
                gate_up=torch.cat([gate, up]),
                down=read(f"{prefix}.mlp.down_proj", hidden, inner),
            )

        self.embedding = read("model.embed_tokens", config.vocab_size, hidden)
        self.layers = [read_layer(f"model.layers.{i}") for i in range(config.num_layers)]
        self.final_norm = read("model.norm", hidden)
        tied = config.tie_word_embeddings
        self.head = self.embedding if tied else read("lm_head", config.vocab_size, hidden)
        self.rope_table = rope_table(config).to(device)

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> "Model":
        """Read a model. Nothing is downloaded.

        Args:
            path: a local Hugging Face Llama directory (config.json; model.safetensors, or shards
                and their index; tokenizer.json unless only token ids are used), weights in
                float16, bfloat16 or float32. None is the embedded model, which tells stories.
            dtype: what it computes in: float32, float16, bfloat16 or float64.
            device: where it computes.

        Raises:
            FileNotFoundError: naming the missing directory or file.
            ValueError: naming what is damaged, does not fit or is not supported.

        >>> Model.load().config.num_layers > 0
        True
        """
        if dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise ValueError(f"the model cannot compute in dtype {dtype}: choose torch.float32")
        folder = Path(str(files("minipaged"))) / "data" if path is None else Path(path)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{folder} is not a directory: Model.load reads a local Hugging Face Llama "
                "directory and downloads nothing"
            )
        hf_config = read_json(folder / "config.json")
        try:
            config = ModelConfig.from_dict(hf_config)
        except ValueError as error:
            raise ValueError(f"{folder / 'config.json'}: {error}") from None
        tokenizer = Tokenizer(folder / "tokenizer.json")
        return cls(config, Checkpoint(folder), tokenizer, dtype, torch.device(device))

    @torch.no_grad()
    def __call__(
        self,
        token_ids: Ints,
        positions: Ints,
        cache: Attends | None = None,
        logit_rows: Ints | None = None,
    ) -> torch.Tensor:
        """Compute the logits of the next token, at each token asked for.

        Everything is checked before the first `attend`: a refused call leaves the cache alone.

        Args:
            token_ids: [num_tokens], of one sequence or, where the cache knows which is which, of
                several, one after the other.
            positions: [num_tokens], the place of each token in its sequence, from 0.
            cache: its `attend(layer_idx, q, k, v)` is called once a layer, after RoPE, with q
                [num_tokens, num_query_heads, head_dim], k and v [num_tokens, num_kv_heads,
                head_dim], and returns a tensor like q. None: these tokens are one sequence alone.
            logit_rows: indices of the tokens whose logits are wanted, from the end if negative;
                None: all. Only the last row of a prompt is of use, and the head is not free.

        Returns:
            float32 [num_rows, vocab_size], on the model's device.

        Raises:
            ValueError: no tokens, lengths that differ, a token id outside the vocabulary, a
                position outside max_seq_len, a row that is not there; or an `attend` whose result
                is not like q.

        >>> Model.load()([5, 6, 7], positions=[0, 1, 2], logit_rows=[2]).shape[0]
        1
        """
        config, eps = self.config, self.config.rms_norm_eps
        ids, places = self.check_inputs(token_ids, positions)
        num_tokens = len(ids)
        rows = None
        if logit_rows is not None:
            rows = to_ints("logit_rows", logit_rows, -num_tokens, num_tokens).to(self.device)
        attend = (NoCache() if cache is None else cache).attend
        num_rotated = config.num_query_heads + config.num_kv_heads
        cos, sin = self.rope_table[places.to(self.device)].chunk(2, dim=1)

        x = F.embedding(ids.to(self.device), self.embedding)  # [num_tokens, hidden_size]
        for layer_idx, layer in enumerate(self.layers):
            normed = F.rms_norm(x, (config.hidden_size,), layer.attention_norm, eps)
            qkv = F.linear(normed, layer.qkv).view(num_tokens, -1, config.head_dim)
            qk, v = rotate(qkv[:, :num_rotated], cos, sin), qkv[:, num_rotated:]
            q, k = qk[:, : config.num_query_heads], qk[:, config.num_query_heads :]
            out = attend(layer_idx, q, k, v)
            if out.shape != q.shape:
                raise ValueError(f"attend returned {list(out.shape)}, it should be {list(q.shape)}")
            x = x + F.linear(out.reshape(num_tokens, -1), layer.output)
            normed = F.rms_norm(x, (config.hidden_size,), layer.mlp_norm, eps)
            gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        x = x if rows is None else x[rows]
        x = F.rms_norm(x, (config.hidden_size,), self.final_norm, eps)
        return F.linear(x, self.head).float()

    def check_inputs(self, token_ids: Ints, positions: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both as int64 tensors, or raise the ValueError that a call would raise."""
        ids = to_ints("token_ids", token_ids, 0, self.config.vocab_size)
        places = to_ints("positions", positions, 0, self.config.max_seq_len)
        if len(ids) != len(places):
            raise ValueError(f"{len(ids)} token_ids but {len(places)} positions")
        if len(ids) == 0:
            raise ValueError("token_ids is empty: there must be at least one token")
        return ids, places


def rope_table(config: ModelConfig) -> torch.Tensor:
    """Cosines and signed sines of the angles by which RoPE turns, for every position.

    Returns:
        float32 [max_seq_len, 2, head_dim]: [:, 0] the cosines, [:, 1] the sines, negative in the
        first half.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    positions = torch.arange(config.max_seq_len, dtype=torch.float32)[:, None]
    angles = positions * (1.0 / config.rope_theta**exponents)  # [max_seq_len, head_dim / 2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)], dim=1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (x[i], x[i + head_dim / 2]) of each head by their position's angles.

    Args:
        x: [num_tokens, num_heads, head_dim].
        cos, sin: rows of `rope_table`, each float32 [num_tokens, 1, head_dim].

    Returns:
        A new tensor like x; computed in float32 at least.
    """
    swapped = x.roll(x.shape[-1] // 2, dims=-1)  # [second half, first half]
    return torch.addcmul(x * cos, swapped, sin).to(x.dtype)


def to_ints(name: str, values: Ints, low: int, high: int) -> torch.Tensor:
    """Return values as an int64 tensor [n]; ValueError naming one outside low..high - 1.

    >>> to_ints("token_ids", [1, 9], low=0, high=8)
    Traceback (most recent call last):
    ValueError: token_ids[1] is 9, it must be from 0 to 7
    """
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be whole numbers: {error}") from None
    if tensor.dim() != 1:
        raise ValueError(f"{name} must have one dimension, got shape {list(tensor.shape)}")
    if tensor.numel() == 0:
        return tensor.to(torch.int64)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must be whole numbers, got {tensor.dtype}")
    tensor = tensor.to(torch.int64)
    if isinstance(values, list):  # much quicker than asking a short tensor
        smallest, largest = min(values), max(values)
    else:
        smallest, largest = (int(value) for value in tensor.aminmax())
    if smallest < low or largest >= high:
        index = int(((tensor < low) | (tensor >= high)).int().argmax())
        raise ValueError(f"{name}[{index}] is {tensor[index]}, it must be from {low} to {high - 1}")
    return tensor
