"""Lesson 1: causal grouped-query attention in plain PyTorch.

Follows `given/model.py`, which uses PyTorch's own kernel. This version is written to be read, and
is the oracle of every later lesson: the caches, the Triton kernels and FlashAttention must agree
with it.
It leaves out dropout, sliding windows and batches: one sequence at a time, all scores in memory.
"""

import torch

from .given.validation import validate_attention_inputs


def causal_mask(
    query_len: int, seq_len: int, device: torch.device | str | None = None
) -> torch.Tensor:
    """Say which keys each query may see.

    The queries are the last `query_len` tokens of a sequence of `seq_len` tokens.

    Args:
        query_len: number of queries, at most `seq_len`.
        seq_len: number of keys, cached ones included.
        device: where the mask is made.

    Returns:
        bool tensor [query_len, seq_len], True where the query may see the key.

    >>> causal_mask(2, 5).int().tolist()
    [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    """
    query_idx = torch.arange(query_len, device=device)[:, None]
    key_idx = torch.arange(seq_len, device=device)[None, :]
    return key_idx <= query_idx + (seq_len - query_len)


def group_heads(q: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Put the query heads that share a KV head side by side (a view, nothing is copied).

    Query head `h` reads KV head `h // group_size`, where `group_size` is
    `num_query_heads / num_kv_heads`.

    Args:
        q: [query_len, num_query_heads, head_dim].
        num_kv_heads: KV heads, of which num_query_heads is a multiple.

    Returns:
        [num_kv_heads, group_size, query_len, head_dim].

    >>> group_heads(torch.zeros(5, 6, 8), num_kv_heads=2).shape
    torch.Size([2, 3, 5, 8])
    """
    query_len, num_query_heads, head_dim = q.shape
    group_size = num_query_heads // num_kv_heads
    return q.reshape(query_len, num_kv_heads, group_size, head_dim).permute(1, 2, 0, 3)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = True,
) -> torch.Tensor:
    """Attend: for each query, mix the values of the keys it may see.

    The queries are the last `query_len` tokens of the sequence whose keys and values are k and v.
    Scores are computed in float32 whatever the inputs' dtype.

    Args:
        q: [query_len, num_query_heads, head_dim].
        k: [seq_len, num_kv_heads, head_dim].
        v: like k.
        softmax_scale: what scores are multiplied by; None is head_dim ** -0.5.
        causal: a query sees no later token; False: it sees every key.

    Returns:
        [query_len, num_query_heads, head_dim] in q's dtype; zeros where there are no keys.

    Raises:
        ValueError: shapes that do not fit together.

    >>> attention(torch.ones(1, 6, 8), torch.ones(5, 2, 8), torch.full((5, 2, 8), 3.0))[0, 0, 0]
    tensor(3.)
    """
    validate_attention_inputs(q, k, v, causal)
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    grouped_q = group_heads(q.float() * scale, k.shape[1])
    keys = k.float().permute(1, 2, 0)[:, None]  # [num_kv_heads, 1, head_dim, seq_len]
    values = v.float().permute(1, 0, 2)[:, None]  # [num_kv_heads, 1, seq_len, head_dim]
    scores = grouped_q @ keys  # [num_kv_heads, group_size, query_len, seq_len]
    if causal:
        allowed = causal_mask(q.shape[0], k.shape[0], q.device)
        scores = scores.masked_fill(~allowed, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    mixed = weights @ values  # [num_kv_heads, group_size, query_len, head_dim]
    return mixed.permute(2, 0, 1, 3).reshape(q.shape).to(q.dtype)
