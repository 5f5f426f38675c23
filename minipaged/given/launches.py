"""Given: launching the first kernels of lesson 5, each with all that it wants to know.

The kernel is an argument: yours or the course's. `paged_decode` in `triton_kernels.py` launches the last
one.
"""

from typing import Any

import torch

from ..interpreter import triton


def copy_by_kernel(masked_copy: Any, x: torch.Tensor, tile: int = 1024) -> torch.Tensor:
    """Launch `masked_copy`: a copy of a contiguous tensor of fewer than 2**31 elements."""
    out = torch.empty_like(x)
    if x.numel():
        masked_copy[(triton.cdiv(x.numel(), tile),)](out, x, x.numel(), TILE=tile)
    return out


def contiguous_decode(
    decode_contiguous: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None = None,
    tile: int = 64,
) -> torch.Tensor:
    """Launch `decode_contiguous`.

    Args:
        q: [num_seqs, num_query_heads, head_dim], the dims of a row side by side, as in k and v.
        k: [num_seqs, max_seq_len, num_kv_heads, head_dim].
        v: like k, with the same strides.
        seq_lens: int32 [num_seqs].

    Returns:
        [num_seqs, num_query_heads, head_dim] in q's dtype; zeros where seq_len is 0.

    Raises:
        ValueError: strides that the kernel cannot walk.
    """
    num_seqs, num_query_heads, head_dim = q.shape
    check_strides(q, k, v)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    decode_contiguous[(num_seqs, num_query_heads)](
        out, q, k, v, seq_lens, head_dim**-0.5 if softmax_scale is None else softmax_scale,
        q.stride(0), q.stride(1), *k.stride()[:3], GROUP_SIZE=num_query_heads // k.shape[2],
        HEAD_DIM=head_dim, DIM_TILE=triton.next_power_of_2(head_dim), TILE=tile,
    )  # fmt: skip
    return out


def paged_decode_by_head(
    decode_paged: Any,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None = None,
    tile: int = 64,
) -> torch.Tensor:
    """Launch `decode_paged`.

    Arguments and result as `paged_decode`; strides as `contiguous_decode`.
    """
    num_seqs, num_query_heads, head_dim = q.shape
    check_strides(q, k_cache, v_cache)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    decode_paged[(num_seqs, num_query_heads)](
        out, q, k_cache, v_cache, block_tables, seq_lens,
        head_dim**-0.5 if softmax_scale is None else softmax_scale,
        q.stride(0), q.stride(1), block_tables.stride(0), *k_cache.stride()[:3],
        BLOCK_SIZE=k_cache.shape[1], GROUP_SIZE=num_query_heads // k_cache.shape[2],
        HEAD_DIM=head_dim, DIM_TILE=triton.next_power_of_2(head_dim), TILE=tile,
    )  # fmt: skip
    return out


def check_strides(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise ValueError where a row's dims don't lie side by side, or k and v are laid out apart."""
    if not q.stride(-1) == k.stride(-1) == 1:
        raise ValueError(f"strides of q {q.stride()} and k {k.stride()} must end in 1")
    if k.stride() != v.stride():
        raise ValueError(f"k and v must have the same strides, not {k.stride()} and {v.stride()}")
