"""Decode attention, timed: one table of ratios from one run.

    python -m minipaged.course.bench [--batch 8,32] [--lengths 1024,4096] [--block-size 16]
                                     [--repeats 21] [--threads 1]

Every contender gets the same queries, keys, values, lengths and scale, and its result is compared
before anything is timed. The contenders take turns, so that a slow moment of the machine meets all
of them. A ratio is the median over the turns of time divided by the first contender's time in the
same turn. Times are the CPU time of the process.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..block_table import pad_block_tables
from ..model import ModelConfig
from ..paged_cache import PagedKVCache, gather_kv, paged_attention

Attend = Callable[[], torch.Tensor]

CONFIG = ModelConfig(
    num_layers=1,
    num_query_heads=8,
    num_kv_heads=2,
    head_dim=64,
    hidden_size=512,
    vocab_size=2,
    max_seq_len=1 << 20,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One contender's times in one case, in seconds, one a turn."""

    name: str
    seconds: list[float]

    def ratio_to(self, first: "Row") -> tuple[float, float, float]:
        """Quartiles of the ratio to another's time in the same turn: median, lower, upper."""
        ratios = [own / other for own, other in zip(self.seconds, first.seconds, strict=True)]
        lower, median, upper = statistics.quantiles(ratios, n=4)
        return median, lower, upper


def contenders(num_seqs: int, seq_len: int, block_size: int, seed: int = 0) -> dict[str, Attend]:
    """The ways to attend, over one batch: float32 keys and values, shuffled block tables.

    The contiguous ones read [num_seqs, num_kv_heads, seq_len, head_dim], made beforehand.
    """
    generator = torch.Generator().manual_seed(seed)
    width = -(-seq_len // block_size)
    cache = PagedKVCache(CONFIG, num_seqs * width, block_size)
    k_cache, v_cache = cache.k_cache[0], cache.v_cache[0]
    k_cache.normal_(generator=generator)
    v_cache.normal_(generator=generator)
    order = torch.randperm(cache.num_blocks, generator=generator)
    tables = order.view(num_seqs, width).tolist()
    block_tables = pad_block_tables(tables)
    seq_lens = torch.full((num_seqs,), seq_len, dtype=torch.int32)
    q = torch.randn(num_seqs, CONFIG.num_query_heads, CONFIG.head_dim, generator=generator)

    def gathered() -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [gather_kv(k_cache, v_cache, table, seq_len) for table in tables]
        k, v = (torch.stack(side).transpose(1, 2) for side in zip(*pairs))
        return k, v

    k, v = (side.contiguous() for side in gathered())

    def attend(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]

    return {
        "contiguous, scaled_dot_product_attention": lambda: attend(k, v),
        "gather all blocks, then the same": lambda: attend(*gathered()),
        "paged_attention": lambda: paged_attention(q, k_cache, v_cache, block_tables, seq_lens),
    }


def run_case(attends: dict[str, Attend], repeats: int) -> list[Row]:
    """Compare the contenders' results, then time them in turns.

    Raises:
        ValueError: naming a contender whose dtype or result is not the first one's.
    """
    first, due = next((name, attend()) for name, attend in attends.items())
    for name, attend in attends.items():
        out = attend()
        if out.dtype != due.dtype or not torch.allclose(out, due, rtol=1e-4, atol=1e-5):
            raise ValueError(f"{name!r} does not compute what {first!r} does: nothing to compare")
    rows = [Row(name, []) for name in attends]
    for _ in range(repeats):
        for row in rows:
            row.seconds.append(seconds_of(attends[row.name]))
    return rows


def seconds_of(work: Callable[[], object]) -> float:
    """CPU time that some work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def copy_bandwidth(num_bytes: int = 1 << 27, repeats: int = 7) -> float:
    """Bytes a second that a copy of a tensor reads and writes, on this machine now."""
    source = torch.ones(num_bytes // 4)
    target = torch.empty_like(source)
    return (
        2
        * num_bytes
        / statistics.median(seconds_of(lambda: target.copy_(source)) for _ in range(repeats))
    )


def print_table(
    batch_sizes: Sequence[int], lengths: Sequence[int], block_size: int, repeats: int
) -> None:
    """Run every case and print its rows."""
    kv_heads, width = CONFIG.num_kv_heads, CONFIG.head_dim
    print(
        f"decode, float32, {CONFIG.num_query_heads} query and {kv_heads} KV heads, head_dim {width}, "
        f"block_size {block_size}, shuffled tables; torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread(s), {repeats} turns"
    )
    print(f"a copy moves {copy_bandwidth() / 1e9:.1f} GB/s\n")
    print(f"{'':44}{'median ms':>10}{'ratio':>8}{'quartiles':>14}{'GB/s':>7}{'MB':>8}")
    for num_seqs in batch_sizes:
        for seq_len in lengths:
            num_bytes = 2 * num_seqs * seq_len * kv_heads * width * 4
            rows = run_case(contenders(num_seqs, seq_len, block_size), repeats)
            print(f"{num_seqs} sequences of {seq_len} tokens")
            for row in rows:
                median, lower, upper = row.ratio_to(rows[0])
                seconds = statistics.median(row.seconds)
                print(
                    f"  {row.name:42}{seconds * 1e3:10.2f}{median:8.2f}"
                    f"{lower:7.2f}-{upper:.2f}{num_bytes / seconds / 1e9:9.1f}{num_bytes / 1e6:8.1f}"
                )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(
        prog="minipaged bench", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--batch", type=numbers, default=[8, 32], metavar="8,32")
    parser.add_argument("--lengths", type=numbers, default=[1024, 4096], metavar="1024,4096")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print_table(options.batch, options.lengths, options.block_size, options.repeats)


if __name__ == "__main__":
    main()
