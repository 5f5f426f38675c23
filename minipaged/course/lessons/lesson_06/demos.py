"""Helpers of lesson 6: what PyTorch's operations move, how fast this machine is, four ways to attend.

`counting` is for PyTorch what the interpreter's `recording` is for kernels.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from minipaged.attention import attention
from minipaged.flash_attention import flash_attention_triton
from minipaged.interpreter import recording
from minipaged.paged_cache import gather_kv

# --- what PyTorch's operations move --------------------------------------------------------------


@dataclass
class Counted:
    """What the operations inside `counting` did.

    Attributes:
        operations: name, bytes read and bytes written of each that touched memory.
        peak_bytes: the most that the tensors made inside held at once, measured after each operation.
    """

    operations: list[tuple[str, int, int]] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Read and written, by all operations."""
        return sum(read + written for _, read, written in self.operations)

    def __repr__(self) -> str:
        lines = [f"{'operation':14}{'read':>14}{'written':>14}   bytes"]
        lines += [f"{name:14}{read:14,}{written:14,}" for name, read, written in self.operations]
        return "\n".join([*lines, f"{'in all':14}{self.num_bytes:28,}"])


class Counter(TorchDispatchMode):
    """Sees every operation below PyTorch's functions; see `counting`."""

    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self.counted = counted
        self.alive: dict[StorageWeakRef, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to skip it, PyTorch would import its whole compiler first, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = tensors_of(out)
        returns = func._schema.returns
        name = func._schema.name.removeprefix("aten::").strip("_")
        is_view = name == "unsafe_view" or any(
            r.alias_info and not r.alias_info.is_write for r in returns
        )
        if not is_view and not name.startswith(("empty", "new_empty", "detach")):
            written = sum(size_of(x) for x in made)
            read = sum(size_of(x) for x in tensors_of((args, kwargs)))
            if name in ("index_select", "index"):  # reads what it picks, not all there is
                read = written
            self.counted.operations.append((name, read, written))
        if not is_view and not any(r.alias_info for r in returns):
            self.note(made)
        return out

    def note(self, made: list[torch.Tensor]) -> None:
        """Keep the peak of what is alive."""
        for tensor in made:
            self.alive[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        self.alive = {ref: size for ref, size in self.alive.items() if not ref.expired()}
        self.counted.peak_bytes = max(self.counted.peak_bytes, sum(self.alive.values()))


def tensors_of(item: Any) -> list[torch.Tensor]:
    """The tensors somewhere in arguments."""
    if isinstance(item, torch.Tensor):
        return [item]
    if isinstance(item, dict):
        item = list(item.values())
    return [x for part in item for x in tensors_of(part)] if isinstance(item, tuple | list) else []


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's different elements: an expanded axis is one element."""
    sizes = (n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or n == 0)
    return math.prod(sizes) * tensor.element_size()


@contextmanager
def counting() -> Iterator[Counted]:
    """Count what PyTorch's operations inside the `with` read and write: each its inputs, each its
    result. A view moves nothing."""
    counted = Counted()
    with torch.no_grad(), Counter(counted):
        yield counted


# --- a row that forgets ----------------------------------------------------------------------------


def forgetful(scores: torch.Tensor, values: torch.Tensor, tile: int) -> torch.Tensor:
    """One query's attention by tiles, by a program that never converts its old sums."""
    top, total, mixed = -torch.inf, torch.tensor(0.0), torch.zeros(values.shape[1])
    for start in range(0, len(scores), tile):
        part = scores[start : start + tile]
        top = max(top, float(part.max()))
        weights = (part - top).exp()
        total = total + weights.sum()
        mixed = mixed + weights @ values[start : start + tile]
    return mixed / total


# --- this machine --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """What a machine can do: bytes a second through its memory, and operations a second."""

    name: str
    bandwidth: float
    flops: float


H200 = Machine("H200, bf16, data sheet", 4.8e12, 989e12)


def this_machine(device: str = "cpu") -> Machine:
    """Measured now: a copy, and a product of float32 matrices (bf16 on a GPU)."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    n = 8192 if device == "cuda" else 1024
    source = torch.ones((1 << 30 if device == "cuda" else 1 << 26) // 4, device=device)
    target = torch.empty_like(source)
    a = torch.randn(n, n, dtype=dtype, device=device)
    seconds = quickest(lambda: target.copy_(source)), quickest(lambda: a @ a)
    name = torch.cuda.get_device_name() if device == "cuda" else "this CPU"
    kind = str(dtype).removeprefix("torch.")
    return Machine(
        f"{name}, {kind}, measured", 2 * source.nbytes / seconds[0], 2 * n**3 / seconds[1]
    )


def quickest(work: Callable[[], object], repeats: int = 7) -> float:
    """Seconds of the quickest of some runs, the first one left out."""
    work()
    best = math.inf
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - start)
    return best


def wait() -> None:
    """Let a GPU finish what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def attention_speed(query_len: int, seq_len: int, device: str = "cpu") -> float:
    """Operations a second that PyTorch's own attention reaches: 8 heads, head_dim 64, no mask."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q = torch.randn(1, 8, query_len, 64, dtype=dtype, device=device)
    k, v = torch.randn(2, 1, 8, seq_len, 64, dtype=dtype, device=device)
    seconds = quickest(lambda: scaled_dot_product_attention(q, k, v))
    return 8 * 4 * query_len * seq_len * 64 / seconds


# --- four ways -----------------------------------------------------------------------------------


class FourWays:
    """One batch, kept in slabs and in blocks, and attended to naively and by tiles.

    Three sequences, 2 heads of 64 dims, float32. A slab has room for `max_seq_len` tokens; blocks
    of 16 are scattered over a memory for as many tokens.

    Attributes:
        reserved: bytes of keys and values that "contiguous" and "paged" keep for the batch.
    """

    def __init__(self, lens: tuple[int, ...] = (100, 37, 260), max_seq_len: int = 512) -> None:
        generator = torch.Generator().manual_seed(0)
        self.lens, block_size = lens, 16
        self.queries = [torch.randn(n, 2, 64, generator=generator) for n in lens]
        self.slabs = torch.full((2, len(lens), max_seq_len, 2, 64), torch.nan)
        num_blocks = len(lens) * max_seq_len // block_size
        self.cache = torch.full((2, num_blocks, block_size, 2, 64), torch.nan)
        ids = iter(torch.randperm(num_blocks, generator=generator).tolist())
        self.tables = [[next(ids) for _ in range(-(-n // block_size))] for n in lens]
        for seq_idx, (seq_len, table) in enumerate(zip(lens, self.tables, strict=True)):
            kv = torch.randn(2, seq_len, 2, 64, generator=generator)
            self.slabs[:, seq_idx, :seq_len] = kv
            for token in range(seq_len):
                block_id = table[token // block_size]
                self.cache[:, block_id, token % block_size] = kv[:, token]
        taken = sum(map(len, self.tables))
        self.reserved = {
            "contiguous": self.slabs.nbytes,
            "paged": taken * self.cache[:, 0].nbytes + 4 * taken,  # and the table
        }

    def run(self, how: str, where: str, query_len: int | None) -> tuple[list[torch.Tensor], int]:
        """Attend with each sequence's last `query_len` tokens (None: all of them).

        Args:
            how: "naive" or "flash".
            where: "contiguous" or "paged".

        Returns:
            Each sequence's result, and the bytes moved: counted, not computed.
        """
        outs, moved = [], 0
        for seq_idx, seq_len in enumerate(self.lens):
            q = self.queries[seq_idx][-(query_len or seq_len) :]
            k, v = self.slabs[:, seq_idx, :seq_len]
            table = self.tables[seq_idx]
            if how == "naive":
                with counting() as counted:
                    if where == "paged":
                        k, v = gather_kv(self.cache[0], self.cache[1], table, seq_len)
                    outs.append(attention(q, k, v))
                moved += counted.num_bytes
            else:
                with recording() as record:
                    if where == "paged":
                        k, v = self.cache
                        paged: Any = {"block_table": torch.tensor(table).int(), "seq_len": seq_len}
                    else:
                        paged = {}
                    out = flash_attention_triton(q, k, v, query_tile=64, key_tile=64, **paged)
                assert isinstance(out, torch.Tensor)
                outs.append(out)
                moved += record.num_bytes()
        return outs, moved

    def table(self, query_len: int | None) -> dict[tuple[str, str], int]:
        """Bytes moved of all four, after their results were found equal."""
        moved, first = {}, self.run("naive", "contiguous", query_len)[0]
        for how in ("naive", "flash"):
            for where in ("contiguous", "paged"):
                outs, moved[how, where] = self.run(how, where, query_len)
                for due, out in zip(first, outs, strict=True):
                    torch.testing.assert_close(out, due, atol=1e-5, rtol=1e-5)
        return moved


# --- the real ones -------------------------------------------------------------------------------


def real_ones(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    indptr: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    due: torch.Tensor,
) -> None:
    """Run the libraries that are installed on a decode batch, and print how far each is from ours.

    Args:
        q: [num_seqs, num_query_heads, head_dim].
        indptr: `to_kv_indptr` of the tables.
        due: our result.
    """
    contenders: dict[str, Callable[[], torch.Tensor]] = {
        "scaled_dot_product_attention": lambda: sdpa_padded(
            q, k_cache, v_cache, block_tables, seq_lens
        ),
        "FlexAttention": lambda: flex_padded(q, k_cache, v_cache, block_tables, seq_lens),
        "flash_attn_with_kvcache": lambda: flash_attn(q, k_cache, v_cache, block_tables, seq_lens),
        "FlashInfer": lambda: flashinfer(q, k_cache, v_cache, indptr),
    }
    needs = {"flash_attn_with_kvcache": "flash_attn", "FlashInfer": "flashinfer"}
    for name, attend in contenders.items():
        library = needs.get(name)
        if library and (find_spec(library) is None or not q.is_cuda):
            why = "is not installed" if find_spec(library) is None else "needs a GPU"
            print(f"{name:30} left out: {library} {why}")
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # FlexAttention would rather be compiled
                difference = float((attend().double() - due.double()).abs().max())
            print(f"{name:30} largest difference {difference:.0e}")
        except Exception as error:  # a library of another version, or without this feature here
            print(f"{name:30} left out: {type(error).__name__}: {str(error).splitlines()[0][:60]}")


def padded(
    k_cache: torch.Tensor, v_cache: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values gathered into [num_seqs, heads, longest, head_dim], and which are tokens."""
    longest = int(seq_lens.max())
    k, v = (
        torch.zeros(len(seq_lens), longest, *k_cache.shape[2:], dtype=k_cache.dtype) for _ in "kv"
    )
    for idx, seq_len in enumerate(seq_lens.tolist()):
        k[idx, :seq_len], v[idx, :seq_len] = gather_kv(
            k_cache, v_cache, block_tables[idx].tolist(), seq_len
        )
    is_token = torch.arange(longest) < seq_lens.cpu()[:, None]
    return tuple(x.to(k_cache.device) for x in (k.transpose(1, 2), v.transpose(1, 2), is_token))  # type: ignore[return-value]


def sdpa_padded(q: torch.Tensor, *batch: torch.Tensor) -> torch.Tensor:
    """PyTorch's own, which knows no block table."""
    k, v, is_token = padded(*batch)
    mask = is_token[:, None, None]
    return scaled_dot_product_attention(q[:, :, None], k, v, mask, enable_gqa=True)[:, :, 0]


def flex_padded(q: torch.Tensor, *batch: torch.Tensor) -> torch.Tensor:
    """FlexAttention, uncompiled: the length enters as a change of the score."""
    from torch.nn.attention.flex_attention import flex_attention

    k, v, _ = padded(*batch)
    lens = batch[3]

    def cut(
        score: torch.Tensor, seq: torch.Tensor, head: Any, query: Any, key: torch.Tensor
    ) -> torch.Tensor:
        return torch.where(key < lens[seq], score, -torch.inf)

    return flex_attention(q[:, :, None], k, v, score_mod=cut, enable_gqa=True)[:, :, 0]  # type: ignore[index,union-attr,return-value]


def flash_attn(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
) -> torch.Tensor:
    """FlashAttention-2, our arguments under its names; its blocks are multiples of 256 tokens."""
    from flash_attn import flash_attn_with_kvcache

    out = flash_attn_with_kvcache(
        q[:, None], k_cache, v_cache, cache_seqlens=seq_lens, block_table=block_tables, causal=True
    )
    return out[:, 0]


def flashinfer(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indptr: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """FlashInfer's decode, planned with its form of the tables."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    _, block_size, num_kv_heads, head_dim = k_cache.shape
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=q.device)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        *indptr,
        q.shape[1],
        num_kv_heads,
        head_dim,
        block_size,
        q_data_type=q.dtype,
        kv_data_type=k_cache.dtype,
    )
    return wrapper.run(q, (k_cache, v_cache))
