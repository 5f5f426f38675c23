"""The checks of lesson 5.

Kernels run in the course's interpreter, wherever the check runs: they are judged by their results, on
memory full of NaN, with guards around what they may write. Then they are compiled for a GPU
that need not be there, where Triton is installed.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from ...kit.checks import Draw, check_for, poisoned
from ...kit.expecting import Words, expect_tensor, fail, has_failed, value
from ...kit.subject import Ref, Subject, SubjectError

KERNEL = "minipaged.interpreter:Kernel"
COMPILE = "minipaged.interpreter:compile_for"
FAR_MEMORY = "torch.nn.parameter:UninitializedParameter"
NUM_KV_HEADS, HEAD_DIM = 2, 8
GUARD, GUARDED_BY = 40, -777.0  # elements before and after what a kernel may write
CACHE_STRIDES = (
    "cache_stride_block",
    "cache_stride_token",
    "cache_stride_head",
    "cache_stride_dim",
)

# ------------------------------------------------------------------------------------- kernels


def kernel_of(subject: Subject, name: str) -> Ref | None:
    """The learner's kernel, for the course's interpreter whatever Triton there is; None where it is
    a plain function."""
    reply = subject.call(f"{name}.__getattribute__", "fn")
    if reply.error is not None and reply.error.kind == "AttributeError":
        fail(Words(f"a plain function {name}"), Words("a kernel"), phrases={"kernel decorator": {}})
        return None
    return subject.new(KERNEL, value(reply))


def launch(
    subject: Subject,
    name: str,
    grid: tuple[int, ...],
    arguments: dict[str, Any],
    rule: str,
    rule_of_out: str = "",
) -> dict[str, Any] | None:
    """Run a kernel; gives its arguments afterwards by their names, None where it raised.

    Args:
        rule: what a read or write outside of a tensor breaks.
        rule_of_out: the same of out_ptr, where that is another.
    """
    kernel = kernel_of(subject, name)
    if kernel is None:
        return None
    reply = subject.call((kernel, "launch"), grid, (), arguments)
    if reply.error is None:
        return reply.args_after[2]  # type: ignore[no-any-return]
    phrase = {
        "TypeError": "kernel index"
        if re.search(r"_ptr\s*\[", reply.error.line)
        else "kernel language",
        "AttributeError": "kernel language",
        "ValueError": "kernel powers" if "powers of 2" in reply.error.text else "kernel tiles",
        "RuntimeError": "kernel tiles",
    }.get(reply.error.kind)
    if phrase:
        fail(Words(reply.error), Words("no exception"), phrases={phrase: {}})
    else:
        is_out = rule_of_out and " out_ptr" in reply.error.text
        value(reply, {"IndexError": rule_of_out if is_out else rule})
    return None


def guarded(filled: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in the middle of a memory whose other numbers must not change."""
    memory = torch.full((filled.numel() + 2 * GUARD,), GUARDED_BY, dtype=filled.dtype)
    view = memory[GUARD : GUARD + filled.numel()].view(filled.shape)
    return view.copy_(filled)


def expect_guard(saw: torch.Tensor) -> None:
    """Fail where something outside of a guarded tensor has changed."""
    memory = torch.empty(0, dtype=saw.dtype).set_(saw.untyped_storage())
    around = torch.cat([memory[:GUARD], memory[GUARD + saw.numel() :]])
    expect_tensor(around, torch.full((2 * GUARD,), GUARDED_BY, dtype=saw.dtype), "writes")


def expect_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Fail where a kernel wrote into what it should only read."""
    for name, tensor in before.items():
        if isinstance(tensor, torch.Tensor):
            expect_tensor(after[name], tensor, "writes", tolerance=0.0)


COMPLAINTS = {
    "Loop-carried": "compiler one type",
    "Continue": "compiler continue",
    "Break": "compiler break",
    "not defined": "compiler not defined",
    "comprehension": "compiler lists",
}


def expect_compiles(
    subject: Subject, name: str, signature: dict[str, str], constexprs: dict[str, Any]
) -> None:
    """Compile for an H100 or H200, where Triton is there, and tell in words why that fails."""
    kernel = None if has_failed() else kernel_of(subject, name)
    if kernel is None:
        return
    reply = subject.call(COMPILE, kernel, signature, constexprs, "sm_90")
    if reply.error is None or reply.error.kind != "Exception":
        return  # compiled; or there is no compiler here, and what the interpreter said counts
    shown, _, reason = reply.error.text.rpartition("^")
    lines = [line.strip() for line in shown.rstrip().splitlines() if line.strip()]
    reason = reason.strip() or lines[-1]
    known = (phrase for sign, phrase in COMPLAINTS.items() if sign in reason)
    fail(
        Words(f"{reason} at the line {lines[-1]!r}"),
        Words("machine code for sm_90, an H100 or H200"),
        phrases={"compiler": {}, next(known, "compiler part"): {}},
    )


# ------------------------------------------------------------------------- 05.1, online softmax


@check_for("05.1")
def check_merge_two(subject: Subject, draw: Draw) -> None:
    """Two scores, two blocks, large scores, rows and sides far apart, sides without keys."""
    values = draw.tensor(2, 1, HEAD_DIM)
    scores = torch.tensor([[draw.choice([1.0, 1.5])], [draw.choice([3.0, 4.0])]])
    merge(subject, "merge_two", values.double(), scores.double(), "shares")
    few, many = draw.sample([2, 5, 7], 2)
    parts = [draw.tensor(count, 3, 2) for count in (few, many)]
    mixed = [draw.tensor(count, 3, 2, HEAD_DIM) for count in (few, many)]
    for shift in (0.0, 300.0, -300.0):
        outs, lses = attended([part + shift for part in parts], mixed)
        merge(subject, "merge_two", outs, lses, "far from 0" if shift else "shares")
    for ahead in (-200.0, 200.0):
        outs, lses = attended([parts[0] + ahead, parts[1] - ahead], mixed)
        merge(subject, "merge_two", outs, lses, "far from 0")
    rows = torch.tensor([[300.0], [0.0], [-300.0]])
    outs, lses = attended([part + rows for part in parts], mixed)
    merge(subject, "merge_two", outs, lses, "far from 0")
    outs, lses = attended(parts, mixed)
    empty = draw.randrange(2)
    outs[empty, 1], lses[empty, 1] = 0.0, -math.inf
    merge(subject, "merge_two", outs, lses, "no keys")
    outs[:, 2], lses[:, 2] = 0.0, -math.inf
    merge(subject, "merge_two", outs, lses, "no keys")


def attended(
    scores: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over each of several parts in float64: outs [parts, ..., D] and lses [parts, ...]."""
    outs, lses = [], []
    for score, mixed in zip(scores, values, strict=True):
        weights = score.double().softmax(0)
        outs.append((weights[..., None] * mixed.double()).sum(0))
        lses.append(score.double().logsumexp(0))
    return torch.stack(outs), torch.stack(lses)


def merge(subject: Subject, name: str, outs: torch.Tensor, lses: torch.Tensor, rule: str) -> None:
    """Merge parts by the learner's function, in float32, and compare with float64."""
    parts = outs.float(), lses.float()
    arguments = parts
    if name == "merge_two":
        arguments = (parts[0][0], parts[1][0], parts[0][1], parts[1][1])  # type: ignore[assignment]
    reply = subject.call(name, *arguments)
    saw = value(reply, {"RuntimeError": "shapes"})
    if type(saw) is not tuple or len(saw) != 2:
        fail(saw, Words("a tuple (out, lse)"), "shapes")
        return
    lse = lses.logsumexp(0)
    weights = torch.exp(lses - lse.clamp(min=-1e300))
    expect_tensor(saw[0], (weights[..., None] * outs).sum(0).float(), rule, tolerance=2e-4)
    expect_tensor(saw[1], lse.float(), rule, tolerance=2e-5)
    for before, after in zip(arguments, reply.args_after, strict=True):
        expect_tensor(after, before, "only reads")


# --------------------------------------------------------------------------- 05.2, a first kernel


@check_for("05.2", needs=(KERNEL, COMPILE), slow=True)
def check_masked_copy(subject: Subject, draw: Draw) -> None:
    """Whole tiles, one more, one less, less than a tile; then the compiler."""
    name = "masked_copy"
    tile = draw.choice([4, 8])
    sizes = [(n, n) for n in (2 * tile, 2 * tile + 1, 3 * tile - 1, 2)]
    for n, room in (*sizes, (2 * tile + 1, 3 * tile)):  # at the end there is more than is copied
        x, out = guarded(draw.tensor(room)), guarded(poisoned(room))
        due = out.clone()
        due[:n] = x[:n]
        arguments = {"out_ptr": out, "x_ptr": x, "num_elements": n, "TILE": tile}
        after = launch(subject, name, (-(-n // tile),), arguments, "inside")
        if after:
            expect_tensor(after["out_ptr"], due, "own tile" if n == room else "inside")
            expect_guard(after["out_ptr"])
            expect_unchanged({"x_ptr": x}, after)
    expect_compiles(
        subject,
        name,
        {"out_ptr": "*fp32:16", "x_ptr": "*fp32:16", "num_elements": "i32"},
        {"TILE": 128},
    )


# ------------------------------------------------------------------------------- 05.3, the store


@check_for("05.3", needs=(KERNEL, COMPILE, FAR_MEMORY), slow=True)
def check_store(subject: Subject, draw: Draw) -> None:
    """Contiguous and other caches, a head_dim that is not a power of 2, -1 anywhere."""
    name = "store_kv_kernel"
    check_stored(subject, draw, name, "contiguous", 4, HEAD_DIM)
    check_stored(subject, draw, name, "heads before tokens", 3, 6)
    check_stored(subject, draw, name, "dims before heads", draw.choice([3, 5]), 6)
    check_far_store(subject, draw, name)
    pointers = ("k_cache_ptr", "v_cache_ptr", "k_ptr", "v_ptr")
    expect_compiles(
        subject,
        name,
        {
            **dict.fromkeys(pointers, "*bf16:16"),
            "slot_mapping_ptr": "*i64:16",
            **dict.fromkeys((*CACHE_STRIDES[:3], "kv_stride_token", "kv_stride_head"), "i32:16"),
        },
        {"cache_stride_dim": 1, "BLOCK_SIZE": 16, "HEAD_DIM": 128, "DIM_TILE": 128},
    )


# how a cache [num_blocks, block_size, num_kv_heads, head_dim] is ordered in memory
ORDERS = {
    "contiguous": (0, 1, 2, 3),
    "heads before tokens": (0, 2, 1, 3),
    "dims before heads": (0, 3, 2, 1),
}


def in_order(layout: str, *sizes: int, unused: float = math.nan) -> torch.Tensor:
    """Unused memory in the shape of a cache, a view of memory in another order."""
    order = ORDERS[layout]
    memory = torch.full([sizes[axis] for axis in order], unused)
    return guarded(memory).permute([order.index(axis) for axis in range(4)])


def check_stored(
    subject: Subject, draw: Draw, name: str, layout: str, block_size: int, head_dim: int
) -> None:
    """Store some tokens into a cache with this layout."""
    num_blocks = draw.choice([5, 6])
    sizes = (num_blocks, block_size, NUM_KV_HEADS, head_dim)
    k_cache, v_cache = in_order(layout, *sizes), in_order(layout, *sizes)
    slots = [0, *draw.sample(range(1, num_blocks * block_size), 4)]
    draw.shuffle(slots)
    slots.insert(draw.randrange(1, 4), -1)
    slots.append(-1)
    packed = draw.tensor(2, len(slots), NUM_KV_HEADS + 1, head_dim + 1)
    k, v = packed[:, :, :NUM_KV_HEADS, :head_dim]
    arguments = {
        "k_cache_ptr": k_cache,
        "v_cache_ptr": v_cache,
        "k_ptr": k,
        "v_ptr": v,
        "slot_mapping_ptr": torch.tensor(slots),
        **dict(zip(CACHE_STRIDES, k_cache.stride(), strict=True)),
        "kv_stride_token": k.stride(0),
        "kv_stride_head": k.stride(1),
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "DIM_TILE": 8,
    }
    after = launch(subject, name, (len(slots), NUM_KV_HEADS), arguments, "inside")
    if after is None:
        return
    for name, before, new in (("k_cache_ptr", k_cache, k), ("v_cache_ptr", v_cache, v)):
        due = before.clone()
        for slot, row in zip(slots, new, strict=True):
            if slot >= 0:
                due[slot // block_size, slot % block_size] = row
        expect_tensor(after[name], due, "places" if layout == "contiguous" else "strides")
        expect_guard(after[name])
    expect_unchanged({"k_ptr": k, "v_ptr": v}, after)


def check_far_store(subject: Subject, draw: Draw, name: str) -> None:
    """A block, and then a token of k, beyond element 2**31; see `check_far_block`.

    Keys and values are the same here, and so are the two caches: one memory serves for both.
    """
    stride = 2**27
    memory = far_memory(subject, 16 * stride + 64)
    if memory is None:
        return
    new = torch.tensor([[draw.sample(range(1, 100), HEAD_DIM)]], dtype=torch.int8)
    far = torch.arange(16 * stride + 2 * HEAD_DIM, 16 * stride + 3 * HEAD_DIM)
    arguments = {
        **dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), memory),
        **dict.fromkeys(("k_ptr", "v_ptr"), new),
        "slot_mapping_ptr": torch.tensor([16 * 4 + 2], dtype=torch.int32),
        **dict(zip(CACHE_STRIDES, (stride, HEAD_DIM, HEAD_DIM, 1), strict=True)),
        "kv_stride_token": HEAD_DIM,
        "kv_stride_head": HEAD_DIM,
        "BLOCK_SIZE": 4,
        "HEAD_DIM": HEAD_DIM,
        "DIM_TILE": 8,
    }
    if launch(subject, name, (1, 1), arguments, "64 bits"):
        found = value(subject.call((memory, "index_select"), 0, far))
        expect_tensor(found, new.flatten(), "64 bits")

    cache = torch.full((1, 4, 1, HEAD_DIM), -1, dtype=torch.int8)
    arguments |= {
        **dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), cache),
        **dict.fromkeys(("k_ptr", "v_ptr"), memory),
        "slot_mapping_ptr": torch.tensor([-1] * 16 + [3]),
        **dict(zip(CACHE_STRIDES, cache.stride(), strict=True)),
        "kv_stride_token": stride,
    }
    near = torch.arange(16 * stride, 16 * stride + HEAD_DIM)
    subject.call((memory, "index_copy_"), 0, near, new.flatten())
    if after := launch(subject, name, (17, 1), arguments, "64 bits"):
        due = cache.clone()
        due[0, 3] = new[0]
        expect_tensor(after["k_cache_ptr"], due, "64 bits")


def far_memory(subject: Subject, num_elements: int) -> Ref | None:
    """Memory where the kernel runs, hardly any of it touched; None where it cannot be had.

    Its elements are int8: 2**31 of them are 2 GiB of address space, which the grader allows.
    """
    try:
        memory = subject.new(FAR_MEMORY, False)
    except SubjectError:
        return None
    made = subject.call((memory, "materialize"), (num_elements,), None, torch.int8)
    return None if made.error else memory


# ------------------------------------------------------------------------------ 05.4, 05.5, decode


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of one query in float64."""
    heads = torch.arange(len(q)) // (len(q) // k.shape[1])
    if not len(k):
        return torch.zeros(q.shape, dtype=torch.float64)
    scores = torch.einsum("hd,thd->ht", q.double(), k.double()[:, heads]) * scale
    return torch.einsum("ht,thd->hd", scores.softmax(1), v.double()[:, heads])


class Batch:
    """Queries, keys and values of sequences, before they are put into any memory.

    Args:
        scores: "", "large" (some hundreds) or "low" (all about -300).
    """

    def __init__(
        self, draw: Draw, lens: list[int], group_size: int, head_dim: int, scores: str
    ) -> None:
        factor = 200 if scores == "large" else 1
        self.lens, self.group_size, self.head_dim = lens, group_size, head_dim
        self.keys = [draw.tensor(n, NUM_KV_HEADS, head_dim) * factor for n in lens]
        self.values = [draw.tensor(n, NUM_KV_HEADS, head_dim) for n in lens]
        self.scale = draw.choice([0.25, 0.3])
        num_heads = NUM_KV_HEADS * group_size
        # a slice of q, k and v side by side, with something between their heads
        packed = draw.tensor(len(lens), num_heads + 2 * NUM_KV_HEADS, head_dim + 1)
        self.q = packed[:, :num_heads, :head_dim]
        if scores == "low":
            self.q[..., 0] = 4.0
            for keys in self.keys:
                keys[..., 0] = -300 / (4.0 * self.scale)
        self.rule = "largest so far" if scores else "attention"
        self.tolerance = 2e-4 if scores == "low" else 2e-5

    def arguments(self, tile: int) -> dict[str, Any]:
        """Those arguments that every decode kernel has."""
        return {
            "q_ptr": self.q,
            "seq_lens_ptr": torch.tensor(self.lens, dtype=torch.int32),
            "softmax_scale": self.scale,
            "q_stride_seq": self.q.stride(0),
            "q_stride_head": self.q.stride(1),
            "GROUP_SIZE": self.group_size,
            "HEAD_DIM": self.head_dim,
            "DIM_TILE": 8,
            "TILE": tile,
        }

    def check(self, subject: Subject, name: str, arguments: dict[str, Any]) -> None:
        """Launch a kernel that decodes a head a program, and compare with float64."""
        given = {"out_ptr": guarded(poisoned(*self.q.shape)), **arguments}
        after = launch(subject, name, tuple(self.q.shape[:2]), given, "places", "rows of out")
        if after is None:
            return
        rows = zip(self.q, self.keys, self.values, strict=True)
        due = torch.stack([dense_attention(*row, self.scale) for row in rows]).float()
        expect_tensor(after["out_ptr"], due, self.rule, self.tolerance)
        expect_guard(after["out_ptr"])
        expect_unchanged(arguments, after)


@check_for("05.4", needs=(KERNEL, COMPILE), slow=True)
def check_decode_contiguous(subject: Subject, draw: Draw) -> None:
    """Lengths around whole tiles; large and low scores; other groups and dims, length 0.

    What is past a length is NaN, except at first: there it is a number, which nothing but a length
    keeps out.
    """
    name = "decode_contiguous"
    lens = [draw.choice([5, 6, 7])]
    contiguous(subject, draw, name, lens, tile=4, group_size=1, unused=3.0)
    lens = [8, *draw.sample([9, 7, 3], 2)]
    draw.shuffle(lens)
    contiguous(subject, draw, name, lens, tile=4, group_size=3)
    for scores in ("large", "low"):
        lens = draw.sample([9, 12, 7], 2)
        contiguous(subject, draw, name, lens, tile=4, group_size=1, scores=scores)
    lens = draw.sample([0, 8, 17], 3)
    contiguous(subject, draw, name, lens, tile=8, group_size=draw.choice([2, 4]), head_dim=6)
    strides = ("kv_stride_seq", "kv_stride_token", "kv_stride_head")
    expect_compiles(
        subject,
        name,
        {
            **dict.fromkeys(("out_ptr", "q_ptr", "k_ptr", "v_ptr"), "*bf16:16"),
            "seq_lens_ptr": "*i32:16",
            "softmax_scale": "fp32",
            **dict.fromkeys(("q_stride_seq", "q_stride_head", *strides), "i32:16"),
        },
        {"GROUP_SIZE": 4, "HEAD_DIM": 128, "DIM_TILE": 128, "TILE": 64},
    )


def contiguous(
    subject: Subject,
    draw: Draw,
    name: str,
    lens: list[int],
    tile: int,
    group_size: int,
    head_dim: int = HEAD_DIM,
    scores: str = "",
    unused: float = math.nan,
) -> None:
    """Decode over keys and values in one piece, which is a view of a larger memory."""
    batch = Batch(draw, lens, group_size, head_dim, scores)
    room = max(lens) + tile
    memory = torch.full((2, len(lens) + 1, room, NUM_KV_HEADS + 1, head_dim + 3), unused)
    k, v = memory[:, : len(lens), :, :NUM_KV_HEADS, :head_dim]
    for idx, (keys, values) in enumerate(zip(batch.keys, batch.values, strict=True)):
        k[idx, : len(keys)], v[idx, : len(keys)] = keys, values
    strides = zip(("kv_stride_seq", "kv_stride_token", "kv_stride_head"), k.stride()[:3])
    arguments = {"k_ptr": k, "v_ptr": v, **dict(strides), **batch.arguments(tile)}
    batch.check(subject, name, arguments)


@check_for("05.5", needs=(KERNEL, COMPILE, FAR_MEMORY), slow=True)
def check_decode_paged(subject: Subject, draw: Draw) -> None:
    """Blocks and tiles of different sizes, caches as views, and a memory of 2**31 elements.

    What nobody uses is NaN, except at first; see `check_decode_contiguous`.
    """
    name = "decode_paged"
    paged(subject, draw, name, [draw.choice([5, 6, 7])], 4, 8, group_size=1, unused=3.0)
    lens = [8, draw.choice([9, 13]), draw.choice([7, 11])]
    draw.shuffle(lens)
    paged(subject, draw, name, lens, block_size=4, tile=8, group_size=3, spare_first=True)
    lens = draw.sample([0, 7, 15], 3)
    group_size = draw.choice([1, 4])
    layout = "heads before tokens"
    paged(subject, draw, name, lens, 3, 4, group_size, head_dim=6, layout=layout)
    for scores in ("large", "low"):
        paged(subject, draw, name, [9], block_size=5, tile=4, group_size=1, scores=scores)
    check_far_block(subject, draw, name)
    pointers = ("out_ptr", "q_ptr", "k_cache_ptr", "v_cache_ptr")
    strides = ("q_stride_seq", "q_stride_head", "table_stride_seq", *CACHE_STRIDES[:3])
    expect_compiles(
        subject,
        name,
        {
            **dict.fromkeys(pointers, "*bf16:16"),
            "block_tables_ptr": "*i32:16",
            "seq_lens_ptr": "*i32:16",
            "softmax_scale": "fp32",
            **dict.fromkeys(strides, "i32:16"),
        },
        {"BLOCK_SIZE": 16, "GROUP_SIZE": 4, "HEAD_DIM": 128, "DIM_TILE": 128, "TILE": 64},
    )


def paged(
    subject: Subject,
    draw: Draw,
    name: str,
    lens: list[int],
    block_size: int,
    tile: int,
    group_size: int,
    head_dim: int = HEAD_DIM,
    layout: str = "contiguous",
    scores: str = "",
    spare_first: bool = False,
    unused: float = math.nan,
) -> None:
    """Decode through block tables; padding is nonsense, free blocks and tails hold `unused`.

    Args:
        spare_first: nobody owns block 0, which lanes without a token may read by mistake.
    """
    batch = Batch(draw, lens, group_size, head_dim, scores)
    num_blocks = sum(-(-n // block_size) for n in lens) + 3
    sizes = (num_blocks, block_size, NUM_KV_HEADS, head_dim)
    k_cache, v_cache = (in_order(layout, *sizes, unused=unused) for _ in "kv")
    ids = iter([idx for idx in draw.permutation(num_blocks) if idx or not spare_first])
    width = -(-max(lens) // block_size)
    tables = torch.full((len(lens), width + 2), -1, dtype=torch.int32)[:, :width]
    tables[:, 1::2] = 2**30
    for table, seq_len, keys, values in zip(tables, lens, batch.keys, batch.values, strict=True):
        for token in range(seq_len):
            block_idx, offset = divmod(token, block_size)
            if offset == 0:
                table[block_idx] = next(ids)
            k_cache[table[block_idx], offset] = keys[token]
            v_cache[table[block_idx], offset] = values[token]
    arguments = {
        "k_cache_ptr": k_cache,
        "v_cache_ptr": v_cache,
        "block_tables_ptr": tables,
        "table_stride_seq": tables.stride(0),
        **dict(zip(CACHE_STRIDES, k_cache.stride()[:3])),
        "BLOCK_SIZE": block_size,
        **batch.arguments(tile),
    }
    batch.check(subject, name, arguments)


def check_far_block(subject: Subject, draw: Draw, name: str) -> None:
    """A block beyond element 2**31: its offset does not fit into 32 bits.

    The memory is made where the kernel runs and is hardly touched; where it cannot be had, the
    check goes on without.
    """
    stride = 2**27
    memory = far_memory(subject, 16 * stride + 64)
    if memory is None:
        return
    keys = (2 * draw.tensor(6, 1, HEAD_DIM)).round().clamp(-9, 9)
    cells = [
        ((16, 1)[t // 4] * stride + t % 4 * HEAD_DIM) + dim
        for t in range(6)
        for dim in range(HEAD_DIM)
    ]
    subject.call((memory, "index_copy_"), 0, torch.tensor(cells), keys.flatten().to(torch.int8))
    q = draw.tensor(1, 1, HEAD_DIM)
    arguments = {
        "out_ptr": guarded(poisoned(1, 1, HEAD_DIM)),
        "q_ptr": q,
        "k_cache_ptr": memory,
        "v_cache_ptr": memory,
        "block_tables_ptr": torch.tensor([[16, 1]], dtype=torch.int32),
        "seq_lens_ptr": torch.tensor([6], dtype=torch.int32),
        "softmax_scale": 0.3,
        "q_stride_seq": HEAD_DIM,
        "q_stride_head": HEAD_DIM,
        "table_stride_seq": 2,
        **dict(zip(CACHE_STRIDES, (stride, HEAD_DIM, HEAD_DIM))),
        "BLOCK_SIZE": 4,
        "GROUP_SIZE": 1,
        "HEAD_DIM": HEAD_DIM,
        "DIM_TILE": 8,
        "TILE": 8,
    }
    if after := launch(subject, name, (1, 1), arguments, "64 bits"):
        due = dense_attention(q[0], keys, keys, 0.3)[None].float()
        expect_tensor(after["out_ptr"], due, "64 bits", tolerance=1e-3)


# ------------------------------------------------------------------------------ 05.6, merge splits


@check_for("05.6")
def check_merge_splits(subject: Subject, draw: Draw) -> None:
    """Some pieces; large scores; pieces and rows far apart; empty ones; nothing at all; one piece."""
    num_splits, num_seqs = draw.choice([3, 4]), 5
    counts = draw.sample([2, 4, 5, 7, 9], num_splits)
    parts = [draw.tensor(count, num_seqs, 3) for count in counts]
    mixed = [draw.tensor(count, num_seqs, 3, HEAD_DIM) for count in counts]
    outs, lses = attended(parts, mixed)
    merge(subject, "merge_splits", outs, lses, "shares")
    rows = torch.tensor([[300.0], [-300.0], [0.0], [300.0], [-300.0]])
    for shift in (300.0, -300.0, rows):
        far = attended([part + shift for part in parts], mixed)
        merge(subject, "merge_splits", *far, "far from 0")
    for step in (400, -400):
        spread = [part + step * (idx - 1) for idx, part in enumerate(parts)]
        merge(subject, "merge_splits", *attended(spread, mixed), "far from 0")
    outs[1:, 2], lses[1:, 2] = 0.0, -math.inf
    outs[0, 3], lses[0, 3] = 0.0, -math.inf
    merge(subject, "merge_splits", outs, lses, "no keys")
    outs[:, 1], lses[:, 1] = 0.0, -math.inf
    merge(subject, "merge_splits", outs, lses, "no keys")
    merge(subject, "merge_splits", *attended(parts[:1], mixed[:1]), "shares")
