"""Given: launching the kernels of lesson 5, each with all that it wants to know.

The kernel is an argument: yours or the course's. Tensors on a GPU are Triton's, those on the CPU an
interpreter's.
"""

from typing import Any

import torch

from ..interpreter import BACKEND, triton


def copy_by_kernel(masked_copy: Any, x: torch.Tensor, tile: int = 1024) -> torch.Tensor:
    """Launch `masked_copy`: a copy of a contiguous x of fewer than 2**31 elements, any shape."""
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
        q: [num_seqs, num_query_heads, head_dim], a row's dims adjacent in memory, as in k and v.
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


def choose_num_splits(
    num_seqs: int, num_kv_heads: int, max_seq_len: int, num_processors: int
) -> int:
    """In how many pieces to cut sequences, so that every processor has two programs.

    A piece has at least 256 tokens, and there are at most 64 pieces.

    >>> choose_num_splits(1, 8, 32768, num_processors=132)
    33
    >>> choose_num_splits(64, 8, 32768, num_processors=132)
    1
    """
    wanted = 2 * num_processors // max(1, num_seqs * num_kv_heads)
    return max(1, min(wanted, -(-max_seq_len // 256), 64))


def plan_splits(
    q: torch.Tensor, k_cache: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor
) -> int:
    """In how many pieces to cut each sequence of a batch; see `paged_decode`."""
    num_seqs, num_kv_heads = len(q), k_cache.shape[2]
    if not q.is_cuda:
        return choose_num_splits(num_seqs, num_kv_heads, max(seq_lens.tolist(), default=0), 1)
    widest = block_tables.shape[1] * k_cache.shape[1]
    num_processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    return choose_num_splits(num_seqs, num_kv_heads, widest, num_processors)


def grouped_decode(
    kernel: Any,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    num_splits: int,
    softmax_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch `decode_grouped`, for which num_splits is 1, or `decode_split`.

    Tensors as in `paged_decode`, with any strides.

    Returns:
        outs [num_splits, num_seqs, num_query_heads, head_dim], float32 where they are to be joined,
        a single one in q's dtype; and lses, float32, without the last axis.
    """
    num_seqs, num_query_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    group_size = num_query_heads // num_kv_heads
    q = q if q.stride(-1) == 1 else q.contiguous()
    block_tables = block_tables if block_tables.stride(-1) == 1 else block_tables.contiguous()
    dtype = q.dtype if num_splits == 1 else torch.float32
    outs = torch.empty(num_splits, *q.shape, dtype=dtype, device=q.device)
    lses = torch.empty(outs.shape[:-1], dtype=torch.float32, device=q.device)
    if num_seqs:
        kernel[(num_seqs, num_kv_heads, num_splits)](
            outs, lses, q, k_cache, v_cache, block_tables, seq_lens.contiguous(),
            head_dim**-0.5 if softmax_scale is None else softmax_scale,
            q.stride(0), q.stride(1), block_tables.stride(0), *k_cache.stride(), *v_cache.stride(),
            BLOCK_SIZE=block_size, GROUP_SIZE=group_size,
            # tl.dot multiplies tiles of at least 16 by 16
            GROUP_TILE=max(16, triton.next_power_of_2(group_size)), HEAD_DIM=head_dim,
            DIM_TILE=max(16, triton.next_power_of_2(head_dim)), **tile_options(q, k_cache),
        )  # fmt: skip
    return outs, lses


def tile_options(q: torch.Tensor, k_cache: torch.Tensor) -> dict[str, int | bool]:
    """How many tokens a program handles at a time, with how many warps, and in which dtype.

    Chosen so that a thread needs at most 128 registers, and none is spilled into memory.
    """
    # tl.dot takes tiles of one type, and Triton's own interpreter no bfloat16
    upcast = q.dtype != k_cache.dtype or BACKEND == "triton interpreter"
    is_narrow = k_cache.element_size() == 2 and q.shape[2] <= 128 and not upcast
    tile, num_warps = (64, 4) if is_narrow else (32, 8)
    return {"TILE": tile, "UPCAST": upcast, "num_warps": num_warps, "num_stages": 3}


def merge_by_kernel(
    merge_splits_kernel: Any, outs: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch `merge_splits_kernel`: arguments and result of `merge_splits`, out in a dtype."""
    num_splits, num_seqs, num_query_heads, head_dim = outs.shape
    out = torch.empty(outs.shape[1:], dtype=dtype, device=outs.device)
    lse = torch.empty(lses.shape[1:], dtype=torch.float32, device=outs.device)
    if num_seqs:
        merge_splits_kernel[(num_seqs * num_query_heads,)](
            out, lse, outs, lses, num_splits, HEAD_DIM=head_dim,
            DIM_TILE=triton.next_power_of_2(head_dim),
            SPLIT_TILE=triton.next_power_of_2(num_splits),
        )  # fmt: skip
    return out, lse


def check_strides(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise ValueError where a row's dims are not adjacent, or k and v are laid out differently."""
    if not q.stride(-1) == k.stride(-1) == 1:
        raise ValueError(f"strides of q {q.stride()} and k {k.stride()} must end in 1")
    if k.stride() != v.stride():
        raise ValueError(f"k and v must have the same strides, not {k.stride()} and {v.stride()}")
