"""Decode attention, timed: one table of ratios from one run.

    python -m minipaged.course.bench [--batch 8,32] [--lengths 1024,4096] [--block-size 16]
                                     [--device cpu] [--dtype float32] [--repeats 21] [--threads 1]

Every contender gets the same queries, keys, values, lengths, mask, scale and dtype, and its result
is compared with the first one's before anything is timed. The contenders take turns, each after a
run of the first one, so that a slow moment of the machine, or what another contender left in its
caches, affects both of a pair. A ratio is the median, over the turns, of a contender's time divided
by the first one's right before it. On a CPU a time is the CPU time of the process; on a GPU it is
the time between two events after a flush of the L2 cache, and what is compiled or planned only once
is done before.
"""

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from minipaged.block_table import pad_block_tables
from minipaged.given.checkpoint import ModelConfig
from minipaged.paged_cache import PagedKVCache, gather_kv, paged_attention

Attend = Callable[[], torch.Tensor]
FLUSH_BYTES = 256 << 20  # more than the L2 cache of any GPU


@dataclass(frozen=True, slots=True)
class Work:
    """What a contender computes. Only equal work is compared.

    Attributes:
        lengths: tokens of each sequence.
        mask: "decode": each query sees every token of its sequence.
    """

    dtype: torch.dtype
    softmax_scale: float
    lengths: tuple[int, ...]
    mask: str = "decode"


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to attend.

    Attributes:
        attend: gives [num_seqs, num_query_heads, head_dim].
        capacity: bytes of keys and values that it was given room for.
    """

    name: str
    attend: Attend
    work: Work
    capacity: int


@dataclass(frozen=True, slots=True)
class Row:
    """A contender's times in one case, in seconds, one a turn, and the first one's before each."""

    contender: Contender
    seconds: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Quartiles of the ratio to the first one's time: median, lower, upper."""
        ratios = [own / first for own, first in zip(self.seconds, self.before, strict=True)]
        lower, median, upper = statistics.quantiles(ratios, n=4)
        return median, lower, upper


# --- clocks ------------------------------------------------------------------------------------


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of the process that some work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


class GpuClock:
    """Time between two events, after a flush of L2; waits for the device only at the end."""

    def __init__(self) -> None:
        self.flushed = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def __call__(self, work: Callable[[], object]) -> float:
        """Seconds that the device spends on some work."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flushed.zero_()
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def copy_bandwidth(clock: Callable[..., float], device: str, repeats: int = 9) -> float:
    """Bytes a second that a copy of a tensor reads and writes, on this machine now."""
    num_bytes = 1 << (30 if device == "cuda" else 27)
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    seconds = statistics.median(clock(lambda: target.copy_(source)) for _ in range(repeats))
    return 2 * num_bytes / seconds


# --- contenders --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One batch in blocks, in shuffled order, with the same keys and values in one piece."""

    cache: PagedKVCache
    q: torch.Tensor  # [num_seqs, num_query_heads, head_dim]
    tables: list[list[int]]
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    work: Work

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        num_seqs: int,
        seq_len: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        shuffled: bool = True,
        seed: int = 0,
    ) -> "Case":
        """Random keys and values; no block holds two sequences."""
        generator = torch.Generator(device).manual_seed(seed)
        width = -(-seq_len // block_size)
        num_blocks = num_seqs * width
        cache = PagedKVCache(config, num_blocks, block_size, dtype, device)
        for memory in (cache.k_cache[0], cache.v_cache[0]):
            memory.normal_(generator=generator)
        order = torch.randperm(num_blocks) if shuffled else torch.arange(num_blocks)
        tables = order.view(num_seqs, width).tolist()
        shape = (num_seqs, config.num_query_heads, config.head_dim)
        q = torch.randn(shape, generator=generator, dtype=dtype, device=device)
        lengths = (seq_len,) * num_seqs
        seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
        work = Work(dtype, config.head_dim**-0.5, lengths)
        return cls(cache, q, tables, pad_block_tables(tables).to(device), seq_lens, work)

    @property
    def memory(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The blocks' keys and values."""
        return self.cache.k_cache[0], self.cache.v_cache[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values that every contender must read."""
        _, _, num_kv_heads, head_dim = self.memory[0].shape
        per_token = 2 * num_kv_heads * head_dim * self.q.element_size()
        return sum(self.work.lengths) * per_token

    def contiguous(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each [num_seqs, num_kv_heads, seq_len, head_dim] in one piece."""
        pairs = [gather_kv(*self.memory, *item) for item in zip(self.tables, self.work.lengths)]
        k, v = (torch.stack(side).transpose(1, 2).contiguous() for side in zip(*pairs))
        return k, v

    def contender(self, name: str, attend: Attend, capacity: int | None = None) -> Contender:
        """A contender that does this case's work."""
        return Contender(name, attend, self.work, capacity or self.cache.num_bytes)


def contenders(case: Case) -> list[Contender]:
    """The contiguous kernel of PyTorch, which all are compared with, and whatever can run here."""
    k, v = case.contiguous()

    def contiguous_attend(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(case.q[:, :, None], k, v, enable_gqa=True)[:, :, 0]

    arguments = (case.q, *case.memory, case.block_tables, case.seq_lens)
    found = [
        case.contender(
            "contiguous, scaled_dot_product_attention",
            lambda: contiguous_attend(k, v),
            k.nbytes + v.nbytes,
        ),
        case.contender(
            "gather all blocks, then the same", lambda: contiguous_attend(*case.contiguous())
        ),
        case.contender("paged_attention", lambda: paged_attention(*arguments)),
    ]
    if case.q.is_cuda:
        found += kernel_contenders(case) + library_contenders(case)
    return found


def kernel_contenders(case: Case) -> list[Contender]:
    """The steps of lesson 5, on a GPU: without one they run in an interpreter."""
    from minipaged.given.launches import contiguous_decode, paged_decode_by_head
    from minipaged.triton_kernels import decode_contiguous, decode_paged, paged_decode

    k, v = (side.transpose(1, 2).contiguous() for side in case.contiguous())
    arguments = (case.q, *case.memory, case.block_tables, case.seq_lens)

    def decode(num_splits: int | None) -> torch.Tensor:
        out = paged_decode(*arguments, num_splits=num_splits)
        assert isinstance(out, torch.Tensor)
        return out

    return [
        case.contender(
            "kernel: contiguous, a head a program",
            lambda: contiguous_decode(decode_contiguous, case.q, k, v, case.seq_lens),
            k.nbytes + v.nbytes,
        ),
        case.contender(
            "kernel: through the table", lambda: paged_decode_by_head(decode_paged, *arguments)
        ),
        case.contender("kernel: grouped, not split", lambda: decode(1)),
        case.contender("kernel: paged_decode", lambda: decode(None)),
    ]


def library_contenders(case: Case) -> list[Contender]:
    """FlashAttention and FlashInfer, where they are installed; their plans are made before."""
    found = []
    k_cache, v_cache = (memory.contiguous() for memory in case.memory)
    flash_attn: Any = optional("flash_attn")
    if flash_attn and k_cache.shape[1] % 256 == 0:  # FlashAttention-2 takes no smaller blocks
        attend = partial(
            flash_attn.flash_attn_with_kvcache,
            case.q[:, None],
            k_cache,
            v_cache,
            cache_seqlens=case.seq_lens,
            block_table=case.block_tables,
        )
        found.append(case.contender("flash_attn_with_kvcache", lambda: attend()[:, 0]))
    flashinfer: Any = optional("flashinfer")
    if flashinfer:
        from minipaged.flash_attention import to_kv_indptr

        _, block_size, num_kv_heads, head_dim = k_cache.shape
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
        flat = to_kv_indptr(case.block_tables, case.seq_lens, block_size)
        wrapper.plan(
            *(part.to("cuda", torch.int32) for part in flat),
            case.q.shape[1],
            num_kv_heads,
            head_dim,
            block_size,
            q_data_type=case.q.dtype,
            kv_data_type=k_cache.dtype,
        )
        found.append(
            case.contender(
                "FlashInfer, planned before", lambda: wrapper.run(case.q, (k_cache, v_cache))
            )
        )
    return found


def optional(name: str) -> Any:
    """A module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# --- running -----------------------------------------------------------------------------------


def refuse_unlike(contenders: Sequence[Contender]) -> None:
    """Raise ValueError where contenders do not compute the same: by what they say, and by result.

    Also compiles whatever is compiled at its first use.
    """
    first = contenders[0]
    expected = first.attend()
    tolerance = {torch.float32: 1e-4, torch.float16: 5e-3}.get(expected.dtype, 3e-2)
    for contender in contenders:
        for name in Work.__dataclass_fields__:
            own, other = getattr(contender.work, name), getattr(first.work, name)
            if own != other:
                raise ValueError(
                    f"{contender.name!r} has {name} {own}, {first.name!r} has {other}: unlike work "
                    "is not compared"
                )
        out = contender.attend()
        if out.dtype != expected.dtype or out.shape != expected.shape:
            raise ValueError(
                f"{contender.name!r} gives {out.dtype} {list(out.shape)}, {first.name!r} gives "
                f"{expected.dtype} {list(expected.shape)}: nothing to compare"
            )
        if not torch.allclose(out.float(), expected.float(), rtol=tolerance, atol=tolerance):
            off = float((out.float() - expected.float()).abs().max())
            raise ValueError(f"{contender.name!r} is off by {off:.3g} from {first.name!r}")


def run_case(
    contenders: Sequence[Contender], repeats: int, clock: Callable[..., float] = cpu_seconds
) -> list[Row]:
    """Compare the contenders' results, then time them in turns."""
    if repeats < 2:
        raise ValueError(f"repeats must be at least 2 for a median and its spread, got {repeats}")
    refuse_unlike(contenders)
    rows = [Row(contender) for contender in contenders]
    for _ in range(repeats):
        for row in rows:
            row.before.append(clock(contenders[0].attend))
            row.seconds.append(clock(row.contender.attend))
    return rows


def print_table(
    config: ModelConfig,
    batch_sizes: Sequence[int],
    lengths: Sequence[int],
    block_size: int,
    dtype: torch.dtype,
    device: str,
    repeats: int,
) -> None:
    """Run every case and print its rows."""
    clock: Callable[..., float] = GpuClock() if device == "cuda" else cpu_seconds
    where = (
        torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} thread(s)"
    )
    print(
        f"decode, {str(dtype).removeprefix('torch.')}, {config.num_query_heads} query and "
        f"{config.num_kv_heads} KV heads, head_dim {config.head_dim}, block_size {block_size}, "
        f"shuffled tables, {repeats} turns; torch {torch.__version__}, {where}"
    )
    bandwidth = copy_bandwidth(clock, device)
    print(f"a copy moves {bandwidth / 1e9:.1f} GB/s; the last column is the share of it\n")
    print(f"{'':44}{'median ms':>10}{'ratio':>8}{'quartiles':>14}{'room MB':>9}{'share':>7}")
    for num_seqs in batch_sizes:
        for seq_len in lengths:
            case = Case.make(config, num_seqs, seq_len, block_size, dtype, device)
            rows = run_case(contenders(case), repeats, clock)
            print(
                f"{num_seqs} sequences of {seq_len} tokens, {case.num_bytes / 1e6:.1f} MB to read"
            )
            for row in rows:
                median, lower, upper = row.ratio
                seconds = statistics.median(row.seconds)
                print(
                    f"  {row.contender.name:42}{seconds * 1e3:10.3f}{median:8.2f}"
                    f"{f'{lower:.2f}-{upper:.2f}':>14}{row.contender.capacity / 1e6:9.1f}"
                    f"{case.num_bytes / seconds / bandwidth:7.0%}"
                )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        prog="minipaged bench", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--batch", type=numbers, default=[8, 32], metavar="8,32")
    parser.add_argument("--lengths", type=numbers, default=[1024, 4096], metavar="1024,4096")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if on_gpu else "cpu")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"])
    parser.add_argument(
        "--heads", type=numbers, metavar="QUERY,KV,DIM", help="8,2,64; GPU 32,8,128"
    )
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    small = options.device == "cpu"
    num_query_heads, num_kv_heads, head_dim = options.heads or (
        [8, 2, 64] if small else [32, 8, 128]
    )
    config = ModelConfig(
        num_layers=1,
        num_query_heads=num_query_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=num_query_heads * head_dim,
        vocab_size=2,
        max_seq_len=max(options.lengths),
    )
    dtype = getattr(torch, options.dtype or ("float32" if small else "bfloat16"))
    print_table(
        config,
        options.batch,
        options.lengths,
        options.block_size,
        dtype,
        options.device,
        options.repeats,
    )


if __name__ == "__main__":
    main()
