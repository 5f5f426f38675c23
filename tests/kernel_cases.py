"""Batches and an oracle for the kernels' tests; as a program, the kernels' results in a file.

    TRITON_INTERPRET=1 python -m tests.kernel_cases results.pt

runs every kernel of the course in Triton's own interpreter.
"""

import sys
from dataclasses import dataclass

import torch

PADDING = (-1, 2**30, -(2**31))  # what may stand behind a length


@dataclass
class Batch:
    """Sequences in memory full of NaN; block ids shuffled, tables padded with nonsense."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.seq_lens

    def to(self, device: str) -> "Batch":
        """Here, or on another device with the same strides."""
        if device == "cpu":
            return self
        moved = [move(x, device) for x in self.arguments]
        return Batch(*moved, self.keys, self.values)


def move(x: torch.Tensor, device: str) -> torch.Tensor:
    """A copy elsewhere that keeps its strides and what lies between them."""
    storage = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return storage.to(device).as_strided(x.shape, x.stride(), x.storage_offset())


def make_batch(
    lens: list[int],
    block_size: int = 16,
    head_dim: int = 32,
    group_size: int = 3,
    num_kv_heads: int = 2,
    dtype: torch.dtype = torch.float32,
    layout: str = "tokens first",
    packed: bool = False,
    seed: int = 0,
) -> Batch:
    """Make sequences of these lengths, one query each.

    Args:
        layout: how the cache lies in memory; it is always a view in the field's order.
        packed: q is a slice of a packed q, k and v.
    """
    generator = torch.Generator().manual_seed(seed)
    num_blocks = sum(-(-n // block_size) for n in lens) + 3
    shape = {
        "tokens first": (num_blocks, block_size, num_kv_heads, head_dim),
        "heads first": (num_blocks, num_kv_heads, block_size, head_dim),
        "head major": (num_kv_heads, num_blocks, block_size, head_dim),
        "dims first": (num_blocks, head_dim, num_kv_heads, block_size),
        "wider": (num_blocks, block_size, num_kv_heads + 1, head_dim + 16),
    }[layout]
    order = {
        "tokens first": (0, 1, 2, 3), "heads first": (0, 2, 1, 3), "head major": (1, 2, 0, 3),
        "dims first": (0, 3, 2, 1), "wider": (0, 1, 2, 3),
    }[layout]  # fmt: skip
    k_cache, v_cache = (
        torch.full(shape, torch.nan, dtype=dtype).permute(order)[..., :num_kv_heads, :head_dim]
        for _ in range(2)
    )
    ids = iter(torch.randperm(num_blocks, generator=generator).tolist())
    width = max([-(-n // block_size) for n in lens], default=0) + 1
    tables = torch.tensor([[PADDING[i % 3] for i in range(width)]] * len(lens), dtype=torch.int32)
    tables = tables.reshape(len(lens), width)
    keys, values = [], []
    for row, seq_len in zip(tables, lens, strict=True):
        k, v = torch.randn(2, seq_len, num_kv_heads, head_dim, generator=generator).to(dtype)
        for token in range(seq_len):
            block, offset = divmod(token, block_size)
            if offset == 0:
                row[block] = next(ids)
            k_cache[row[block], offset], v_cache[row[block], offset] = k[token], v[token]
        keys.append(k)
        values.append(v)
    num_heads = num_kv_heads * group_size
    qkv = torch.randn(len(lens), num_heads + 4, head_dim, generator=generator).to(dtype)
    q = qkv[:, 2 : 2 + num_heads]
    return Batch(
        q if packed else q.contiguous(), k_cache, v_cache, tables,
        torch.tensor(lens, dtype=torch.int32), keys, values,
    )  # fmt: skip


def oracle(
    batch: Batch, dtype: torch.dtype = torch.float64, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, all of it computed in that dtype in PyTorch; the keys never saw a block."""
    outs, lses = [], []
    for q, k, v in zip(batch.q.cpu(), batch.keys, batch.values, strict=True):
        group_size = q.shape[0] // k.shape[1]
        k, v = (x.to(dtype).repeat_interleave(group_size, 1).transpose(0, 1) for x in (k, v))
        scores = (q.to(dtype)[:, None] @ k.transpose(1, 2))[:, 0]
        scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
        lses.append(scores.logsumexp(-1))
        outs.append((scores.softmax(-1)[:, None] @ v)[:, 0] if k.shape[1] else torch.zeros_like(q))
    return torch.stack([out.to(dtype) for out in outs]), torch.stack(lses)


def error_bound(batch: Batch, factor: float = 2.0) -> float:
    """How far a result may be from the oracle: PyTorch's own error in the batch's dtype, times."""
    exact, own = oracle(batch)[0], oracle(batch, batch.q.dtype)[0]
    slack = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[batch.q.dtype]
    return factor * float((own.double() - exact).abs().max()) + slack


def operations() -> torch.Tensor:
    """The operations of test_interpreter.py, by the Triton that the course uses here."""
    from minipaged.interpreter import BACKEND, tl, triton
    from tests import test_interpreter

    if BACKEND == "interpreter":
        return test_interpreter.run_many_operations()
    vars(test_interpreter).update(tl=tl, triton=triton, SCALE=tl.constexpr(3))
    return test_interpreter.run_many_operations(triton.jit)


def results() -> dict[str, torch.Tensor]:
    """What the course's kernels give, small enough for Triton's own interpreter."""
    from minipaged import triton_kernels as kernels
    from minipaged.given import launches
    from tests.twins import decode_split_twin

    found = {
        "operations": operations(),
        "copy": launches.copy_by_kernel(kernels.masked_copy, torch.arange(37.0), tile=16),
    }
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        batch = make_batch([0, 7, 40], block_size=3, head_dim=24, dtype=dtype)
        name = str(dtype).removeprefix("torch.")
        for num_splits in (1, 2):
            out, lse = kernels.paged_decode(
                *batch.arguments, num_splits=num_splits, return_lse=True
            )
            found[f"paged {name} {num_splits}"], found[f"lse {name} {num_splits}"] = out, lse
        if dtype is not torch.float16:
            found[f"by head {name}"] = launches.paged_decode_by_head(
                kernels.decode_paged, *batch.arguments
            )
    k, v = torch.randn(2, 2, 9, 1, 24, generator=torch.Generator().manual_seed(1))
    q = torch.randn(2, 2, 24, generator=torch.Generator().manual_seed(2))
    lens = torch.tensor([9, 0], dtype=torch.int32)
    found["contiguous"] = launches.contiguous_decode(
        kernels.decode_contiguous, q, k, v, lens, tile=4
    )
    cache = torch.zeros(2, 4, 3, 1, 24)
    kernels.store_kv(*cache, k[:, 0], v[:, 0], torch.tensor([10, -1]))
    found["store"] = cache
    batch = make_batch([5, 300], head_dim=16, group_size=1, num_kv_heads=1)
    outs, lses = decode_split_twin(*batch.arguments, 4)
    found["merged"], found["merged lse"] = launches.merge_by_kernel(
        kernels.merge_splits_kernel, outs, lses, torch.float32
    )
    return found


if __name__ == "__main__":
    torch.save(results(), sys.argv[1])
