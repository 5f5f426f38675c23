"""Lesson 0: what the keys and values of a token weigh, and how many of them fit into a memory.

Follows `given/checkpoint.py`, which has the sizes of a model. Leaves out who uses the memory, which
is lessons 2 and 4.
"""

import torch

from .given.checkpoint import ModelConfig


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Count the bytes that a cache keeps for one token: its keys and values, in all layers.

    Args:
        config: the sizes of the model.
        dtype: what the cache is stored in.

    Returns:
        Bytes.

    >>> config = ModelConfig(num_layers=2, num_query_heads=6, num_kv_heads=2, head_dim=8,
    ...                      hidden_size=48, vocab_size=100, max_seq_len=64)
    >>> kv_bytes_per_token(config, torch.float32)
    256
    """
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


def kv_slots(
    config: ModelConfig, dtype: torch.dtype, num_bytes: int, max_seq_len: int
) -> tuple[int, int]:
    """Say who fits into a memory for keys and values.

    A slot is the room of one token. A slab is the room of max_seq_len tokens side by side; it is
    reserved whole or not at all.

    Args:
        config: the sizes of the model.
        dtype: what the cache is stored in.
        num_bytes: the memory there is.
        max_seq_len: tokens of a slab.

    Returns:
        How many slots fit, and how many slabs, both whole.

    >>> config = ModelConfig(num_layers=2, num_query_heads=6, num_kv_heads=2, head_dim=8,
    ...                      hidden_size=48, vocab_size=100, max_seq_len=64)
    >>> kv_slots(config, torch.float32, num_bytes=10_000, max_seq_len=16)
    (39, 2)
    """
    num_slots = num_bytes // kv_bytes_per_token(config, dtype)
    return num_slots, num_slots // max_seq_len
