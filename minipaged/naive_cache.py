"""Lesson 1: a KV cache that grows with `torch.cat`.

Follows `attention.py`. The simplest cache there is: right, and wasteful in time, since every new
token copies all tokens before it. Leaves out any thought of memory: that is lesson 2.
"""

import torch

from .attention import attention
from .given.checkpoint import ModelConfig


class NaiveKVCache:
    """The keys and values of one sequence, a pair of tensors a layer.

    Attributes:
        num_tokens: tokens whose keys and values are kept.
        k, v: per layer, [num_tokens, num_kv_heads, head_dim].
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        empty = torch.empty(0, config.num_kv_heads, config.head_dim, dtype=dtype, device=device)
        self.k = [empty] * config.num_layers
        self.v = [empty] * config.num_layers
        self.num_tokens = 0

    def extend(self, n: int) -> bool:
        """Announce n more tokens, once before a forward pass. This cache is never full."""
        if n < 0:
            raise ValueError(f"cannot extend by {n} tokens")
        self.num_tokens += n
        return True

    def append(
        self, layer_idx: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the keys and values of new tokens after those of earlier ones, in one layer.

        Args:
            layer_idx: which layer, from 0.
            k: [num_new_tokens, num_kv_heads, head_dim].
            v: like k.

        Returns:
            All keys and all values of that layer, each [seq_len, num_kv_heads, head_dim].
        """
        self.k[layer_idx] = torch.cat([self.k[layer_idx], k])
        self.v[layer_idx] = torch.cat([self.v[layer_idx], v])
        return self.k[layer_idx], self.v[layer_idx]

    def attend(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Keep k and v, then attend to everything kept. Shapes as in `attention`."""
        return attention(q, *self.append(layer_idx, k, v))
