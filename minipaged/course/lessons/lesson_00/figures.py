"""The figures of lesson 0: what comes next, what a cache takes, who fits."""

from collections.abc import Sequence
from importlib.resources import files

import torch
from safetensors.torch import load_file

from minipaged.contiguous_cache import ContiguousKVCache
from minipaged.given.model import Model, ModelConfig

from ...kit.drawing import EMPTY, FAINT, INK, SEQUENCES, drawing


def next_tokens(model: Model, text: str, num_shown: int = 6) -> None:
    """The likeliest next tokens of a text, with their probabilities."""
    token_ids = model.tokenizer.encode(text)
    logits = model(token_ids, range(len(token_ids)), logit_rows=[-1])
    shares, ids = torch.softmax(logits[-1], dim=-1).topk(num_shown)
    with drawing(7, 0.32 * num_shown + 0.9) as ax:
        ax.barh(range(num_shown), shares.tolist(), color=SEQUENCES[0])
        ax.set_yticks(
            range(num_shown), [repr(model.tokenizer.decode([idx])) for idx in ids.tolist()]
        )
        for row, share in enumerate(shares.tolist()):
            label = f"{share:.1%}" if share >= 0.0005 else "<0.1%"
            ax.text(share * 1.01, row, label, va="center", fontsize=9)
        ax.invert_yaxis()
        ax.set_xlim(0, 1.15 * max(shares.tolist()))
        ax.set_xlabel("probability of being next")
        ax.set_title(f"after: {text}", fontsize=10, loc="left")


def count_parameters() -> int:
    """The numbers in the embedded model's checkpoint."""
    path = files("minipaged") / "data" / "model.safetensors"
    return sum(tensor.numel() for tensor in load_file(str(path)).values())


CACHES = (  # each differs from the first in one size, which is doubled
    (3, 12, 2, 8, torch.float16),
    (6, 12, 2, 8, torch.float16),
    (3, 24, 2, 8, torch.float16),
    (3, 12, 4, 8, torch.float16),
    (3, 12, 2, 16, torch.float16),
    (3, 12, 2, 8, torch.float32),
)


def print_caches() -> None:
    """A table of six models, and the bytes that a real cache of one token takes in each."""
    print("layers  query heads  KV heads  head_dim  dtype      bytes a token")
    for *sizes, dtype in CACHES:
        num_layers, num_query_heads, num_kv_heads, head_dim = sizes
        hidden_size = num_query_heads * head_dim
        config = ModelConfig(
            num_layers, num_query_heads, num_kv_heads, head_dim, hidden_size, 100, 64
        )
        cache = ContiguousKVCache(config, max_seq_len=1, dtype=dtype)
        name = str(dtype).removeprefix("torch.")
        print(
            f"{num_layers:6}{num_query_heads:13}{num_kv_heads:10}{head_dim:10}  {name:9}"
            f"{cache.k.nbytes + cache.v.nbytes:15}"
        )


def who_fits(num_slots: int, max_seq_len: int, lengths: Sequence[int]) -> None:
    """One memory: as slabs of max_seq_len slots, each with one request of a given length in it."""
    num_slabs = num_slots // max_seq_len
    with drawing(9, 1.9) as ax:
        ax.barh(0, num_slots, color=EMPTY, edgecolor=FAINT, height=0.6)
        for idx in range(num_slabs):
            start, length = idx * max_seq_len, lengths[idx % len(lengths)]
            ax.barh(0, length, left=start, color=SEQUENCES[0], height=0.6)
            ax.barh(0, max_seq_len, left=start, fill=False, edgecolor=INK, height=0.6)
            ax.text(start + max_seq_len / 2, 0.42, f"slab {idx}", ha="center", fontsize=9)
        left_over = num_slots - num_slabs * max_seq_len
        if left_over:
            middle = num_slots - left_over / 2
            ax.text(middle, 0, f"{left_over:,}\nleft over", ha="center", va="center", fontsize=9)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.set_ylim(-0.4, 0.62)
        ax.set_xlim(0, num_slots)
        used = sum(lengths[idx % len(lengths)] for idx in range(num_slabs))
        ax.set_xlabel(f"slots: {used:,} of {num_slots:,} hold a token (coloured)")
