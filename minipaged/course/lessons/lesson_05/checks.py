"""The checks of lesson 5.

Kernels run in the course's interpreter, wherever the check runs: on its results, on memory full of
NaN and on guards around what a kernel may write, they are judged. Then they are compiled for a GPU
that need not be there, where Triton is installed.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ...kit.checking import CheckFailed, Draw, check_for, expect_tensor, poisoned, result
from ...kit.subject import Ref, Subject, SubjectError

KERNEL = "minipaged.interpreter:Kernel"
COMPILE = "minipaged.compiling:compile_for"
NUM_KV_HEADS, HEAD_DIM = 2, 8
GUARD, GUARDED_BY = 40, -777.0  # elements before and behind what a kernel may write

# ------------------------------------------------------------------------------------- kernels


def kernel_of(subject: Subject, name: str) -> Ref:
    """The learner's kernel, for the course's interpreter whatever Triton there is."""
    fn = result(
        subject.call(f"{name}.__getattribute__", "fn"),
        f"looking for the kernel {name}",
        {
            "AttributeError": "A kernel is a function under @triton.jit: the line above def must "
            "stay.",
        },
    )
    return subject.new(KERNEL, fn)


def launch(
    subject: Subject,
    kernel: Ref,
    grid: tuple[int, ...],
    arguments: dict[str, Any],
    about: str,
    out_of_range: str,
    out_of_out: str = "",
) -> dict[str, Any]:
    """Run a kernel, and give back its arguments afterwards, by their names.

    Args:
        out_of_range: the misconception that a read or write outside of a tensor points to.
        out_of_out: the same of out_ptr, where that is another.
    """
    reply = subject.call((kernel, "launch"), grid, (), arguments)
    text, line = (reply.error.text, reply.error.line) if reply.error else ("", "")
    result(
        reply,
        about,
        {
            "IndexError": out_of_out if out_of_out and " out_ptr" in text else out_of_range,
            "TypeError": NO_INDEX
            if re.search(r"_ptr\s*\[", line)
            else "The kernel used something in a way that Triton does not have; the text above "
            "says what.",
            "AttributeError": "A kernel has what tl and Python's arithmetic offer, and no more.",
            "ValueError": "A tile's sizes are powers of 2." if "powers of 2" in text else NO_FIT,
            "RuntimeError": NO_FIT,
        },
    )
    return reply.args_after[2]


NO_INDEX = "A pointer has no index: tl.load(ptr + idx) reads, and tl.store(ptr + idx, x) writes."
NO_FIT = (
    "The tiles do not fit together: rows are [:, None], dims [None, :], and a sum or a maximum "
    "takes one axis away, the one that it names."
)


def guarded(filled: torch.Tensor) -> torch.Tensor:
    """A copy that lies contiguous in the middle of a memory whose other numbers must not change."""
    memory = torch.full((filled.numel() + 2 * GUARD,), GUARDED_BY, dtype=filled.dtype)
    view = memory[GUARD : GUARD + filled.numel()].view(filled.shape)
    return view.copy_(filled)


def expect_guard(about: str, saw: torch.Tensor, because: str) -> None:
    """Fail where something outside of a guarded tensor has changed."""
    memory = torch.empty(0, dtype=saw.dtype).set_(saw.untyped_storage())
    around = torch.cat([memory[:GUARD], memory[GUARD + saw.numel() :]])
    due = torch.full((2 * GUARD,), GUARDED_BY, dtype=saw.dtype)
    expect_tensor(f"{about}; memory around what may be written", around, due, because)


def expect_unchanged(about: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Fail where a kernel wrote into what it should only read."""
    for name, tensor in before.items():
        if isinstance(tensor, torch.Tensor) and not torch.equal(
            torch.nan_to_num(after[name].float()), torch.nan_to_num(tensor.float())
        ):
            raise CheckFailed(
                f"{about}; {name} afterwards", "other numbers", "what it held", "It is only read."
            )


WORDS = (
    (
        "Loop-carried",
        "Python lets a name change its type from one turn of a loop to the next; the compiler "
        "needs one type for all turns. Start sums with 0.0, not 0, and tiles with tl.zeros.",
    ),
    (
        "Continue",
        "A compiled loop has no continue: all lanes go through every turn, and a mask says which "
        "of them count.",
    ),
    (
        "Break",
        "A compiled loop has no break: its bounds say how far it goes, and a mask says which "
        "lanes count.",
    ),
    (
        "not defined",
        "A name that gets its first value inside a loop or an if does not exist behind it: the "
        "body may run no time at all. Give it a value before.",
    ),
    (
        "comprehension",
        "A kernel has no Python lists: a tile, made with tl.arange, holds many numbers at once.",
    ),
)


def expect_compiles(
    subject: Subject, kernel: Ref, name: str, signature: dict[str, str], constexprs: dict[str, Any]
) -> None:
    """Compile for an H100 or H200, where Triton is there, and tell in words why that fails."""
    reply = subject.call(COMPILE, kernel, signature, constexprs, "sm_90")
    if reply.error is None or reply.error.kind != "Exception":
        return  # compiled; or there is no compiler here, and the interpreter's word stands
    shown, _, reason = reply.error.text.rpartition("^")
    lines = [line.strip() for line in shown.rstrip().splitlines() if line.strip()]
    reason = reason.strip() or lines[-1]
    because = next(
        (words for sign, words in WORDS if sign in reason),
        "The compiler knows only a part of Python.",
    )
    raise CheckFailed(
        f"compiling {name} for sm_90, an H100 or H200",
        f"{reason} at the line {lines[-1]!r}",
        "machine code",
        f"The interpreter let it pass, the compiler does not. {because}",
    )


# ------------------------------------------------------------------------- 05.1, online softmax


@check_for(
    "05.1",
    holds="Both parts are weighted by what they have of the sum of exp(score), told from the "
    "larger log-sum-exp.",
    hints=(
        (
            "Each part was divided by its own sum of exp(score). Undo that, add, and divide by the "
            "sum of both."
        ),
        (
            "exp(lse) is a part's sum, and may be too large for a float: take the larger lse away "
            "from both before exp, and add it again behind log. With no keys on either side there "
            "is nothing to take away."
        ),
        (
            "top = the maximum of both lse, with 0 where that is -inf. Weights: exp(lse - top) of "
            "each; total: their sum. out: both outs times their weights (with [..., None]), added, "
            "over total, which you keep from 0 with clamp. lse: top + log(total)."
        ),
    ),
)
def check_merge_two(subject: Subject, draw: Draw) -> None:
    """Two scores, two blocks, large scores, and sides without keys."""
    merge = partial(merging, subject, "merge_two")
    values = draw.tensor(2, 1, HEAD_DIM)
    scores = torch.tensor([[draw.choice([1.0, 1.5])], [draw.choice([3.0, 4.0])]])
    about = f"two keys, one on each side, with scores {scores.flatten().tolist()}"
    merge(about, values, scores, values.double(), scores.double(), why_merged)

    few, many = draw.sample([2, 5, 7], 2)
    parts = [draw.tensor(count, 3, 2) for count in (few, many)]
    mixed = [draw.tensor(count, 3, 2, HEAD_DIM) for count in (few, many)]
    about = f"{few} keys on one side and {many} on the other, [3, 2] rows"
    for shift, where in ((0.0, ""), (300.0, ", all scores near 300"), (-300.0, ", near -300")):
        outs, lses = attended([part + shift for part in parts], mixed)
        reason = why_merged if not shift else why_shifted
        merge(about + where, *outs_lses(outs, lses), outs, lses, reason)
    outs, lses = attended([parts[0] - 200, parts[1] + 200], mixed)
    merge(f"{about}, the second scored 400 higher", *outs_lses(outs, lses), outs, lses, why_shifted)
    outs, lses = attended(parts, mixed)
    empty = draw.randrange(2)
    outs[empty, 1], lses[empty, 1] = 0.0, -math.inf
    merge(
        f"{about}, and one side has no keys in row 1",
        *outs_lses(outs, lses),
        outs,
        lses,
        lambda *_: "A side without keys has lse -inf, and must weigh exp(-inf) = 0.",
    )
    outs[:, 2], lses[:, 2] = 0.0, -math.inf
    merge(
        f"{about}, and no keys at all in row 2",
        *outs_lses(outs, lses),
        outs,
        lses,
        lambda *_: (
            "Where neither side has keys, -inf is taken from -inf, and the total is 0: the "
            "result there is 0, with lse -inf."
        ),
    )


def outs_lses(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As a learner's function gets them, in float32."""
    return outs.float(), lses.float()


def attended(
    scores: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over each of several parts in float64: outs [parts, ..., D] and lses [parts, ...]."""
    outs, lses = [], []
    for score, value in zip(scores, values, strict=True):
        weights = score.double().softmax(0)
        outs.append((weights[..., None] * value.double()).sum(0))
        lses.append(score.double().logsumexp(0))
    return torch.stack(outs), torch.stack(lses)


def joined(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the parts make together, in float64."""
    lse = lses.logsumexp(0)
    weights = torch.exp(lses - lse.clamp(min=-1e300))
    return (weights[..., None] * outs).sum(0), lse


Why = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], str]


def merging(
    subject: Subject,
    name: str,
    about: str,
    outs: torch.Tensor,
    lses: torch.Tensor,
    exact_outs: torch.Tensor,
    exact_lses: torch.Tensor,
    why: Why,
) -> None:
    """Merge parts by the learner's function and hold the result against the exact one."""
    if name == "merge_two":
        arguments: tuple = (outs[0], lses[0], outs[1], lses[1])
    else:
        arguments = (outs, lses)
    reply = subject.call(name, *arguments)
    saw = result(
        reply,
        f"{name}: {about}",
        {
            "RuntimeError": "Look at the shapes: outs have one axis more than lses"
            + (", and pieces are joined over the first." if name == "merge_splits" else ".")
        },
    )
    if type(saw) is not tuple or len(saw) != 2:
        raise CheckFailed(f"{name}: {about}", repr(type(saw)), "a tuple (out, lse)", "Two results.")
    due = joined(exact_outs, exact_lses)
    saw_out, saw_lse = saw
    reason = partial(why, exact_outs, exact_lses)
    expect_tensor(f"{name}: {about}; out", saw_out, due[0].float(), reason, tolerance=2e-4)
    expect_tensor(f"{name}: {about}; lse", saw_lse, due[1].float(), reason, tolerance=2e-5)
    for before, after in zip(arguments, reply.args_after, strict=True):
        expect_tensor(
            f"{name}: {about}; the arguments afterwards",
            after,
            before,
            "The arguments are other people's partial results: they are read, not changed.",
        )


def why_merged(outs: torch.Tensor, lses: torch.Tensor, saw: torch.Tensor) -> str:
    """What a wrong merge of moderate scores comes from."""
    _due_out, due_lse = joined(outs, lses)
    one, everything = ("part", "both parts") if len(outs) == 2 else ("piece", "the first axis")
    part = torch.exp(lses - due_lse)[..., None]  # each part's share
    if saw.shape == due_lse.shape:
        known: list[tuple[torch.Tensor, str]] = [
            (
                lses.sum(0),
                "Adding logarithms multiplies the sums: leave the logarithm, add, and return.",
            ),
            (
                due_lse - lses.amax(0),
                "What was taken away before exp must be added again behind the logarithm.",
            ),
            (
                lses.amax(0),
                f"That is the largest {one} alone: the sum over {everything} is larger.",
            ),
            (torch.exp(due_lse), "That is the sum; its logarithm is due."),
            (due_lse / math.log(2), "The log-sum-exp is a natural logarithm here, not base 2."),
            (
                (lses * math.log(2)).logsumexp(0) / math.log(2),
                "The log-sum-exp is a natural logarithm here: exp undoes it, exp2 does not.",
            ),
        ]
    else:
        two = torch.exp2(lses - torch.logsumexp(lses * math.log(2), 0) / math.log(2))[..., None]
        bare = lses[..., None] / lses.sum(0)[..., None]
        known = [
            (
                outs.mean(0),
                f"The {one}s do not weigh the same: each has its own share of the sum.",
            ),
            (outs.sum(0), f"Each {one} is an average already: adding them weighs each fully."),
            (
                (outs * torch.exp(lses - lses.amax(0))[..., None]).sum(0),
                f"The weights must add up to 1: divide by the sum over {everything}.",
            ),
            (
                (outs * torch.exp(lses)[..., None]).sum(0),
                f"The weights must add up to 1: divide by the sum over {everything}.",
            ),
            ((outs * two).sum(0), "The log-sum-exp is a natural logarithm here: exp undoes it, "
             "exp2 does not."),
            ((outs * bare).sum(0), "An lse is a logarithm: the weight is its exp."),
            *(
                (
                    (outs * lses.softmax(axis)[..., None]).sum(0),
                    "The weights add up to 1 over another axis than that of the "
                    f"{one}s: the softmax goes over the {one}s, the first axis.",
                )
                for axis in range(1, lses.dim())
            ),
            (
                (outs * part.flip(0)).sum(0) if len(outs) == 2 else saw * math.nan,
                "The weights are exchanged: the part with the larger lse weighs more, so the lse "
                "stands before the minus.",
            ),
        ]  # fmt: skip
    for wrong, words in known:
        if close(saw, wrong):
            return words
    return f"Weigh each {one} by exp(its lse), over the sum of these over {everything}."


def why_shifted(outs: torch.Tensor, lses: torch.Tensor, saw: torch.Tensor) -> str:
    """What goes wrong with scores far from 0 only."""
    words = "exp(300) is too large for a float32, and exp(-300) is 0: take "
    if len(outs) == 2:
        return words + "the larger of the two lse away from both before exp."
    return words + "the largest lse of the pieces, over the first axis, away from all before exp."


def close(saw: torch.Tensor, known: torch.Tensor) -> bool:
    """Whether a wrong result is the known one."""
    return saw.shape == known.shape and bool(
        torch.allclose(saw.double(), known.double(), rtol=1e-3, atol=1e-4)
    )


# --------------------------------------------------------------------------- 05.2, a first kernel


@check_for(
    "05.2",
    holds="Each program copies its own TILE elements, and no lane touches what lies behind the end.",
    hints=(
        (
            "A program learns from tl.program_id(0) which tile is its own. tl.arange(0, TILE) gives "
            "it a number for each of its lanes."
        ),
        (
            "Lanes at or behind num_elements must neither read nor write: the same mask stands in "
            "the load and in the store."
        ),
        (
            "idx: the program's id times TILE, plus tl.arange(0, TILE). The mask: idx < "
            "num_elements. tl.load(x_ptr + idx, mask=..., other=0.0), and tl.store(out_ptr + idx, "
            "what was loaded, mask=...)."
        ),
    ),
)
def check_masked_copy(subject: Subject, draw: Draw) -> None:
    """Whole tiles, one more, one less, less than a tile; then the compiler."""
    kernel = kernel_of(subject, "masked_copy")
    tile = draw.choice([4, 8])
    for n in (2 * tile, 2 * tile + 1, 3 * tile - 1, 2):
        about = f"masked_copy of {n} elements with TILE {tile}"
        x, out = guarded(draw.tensor(n)), guarded(poisoned(n))
        arguments = {"out_ptr": out, "x_ptr": x, "num_elements": n, "TILE": tile}
        after = launch(
            subject,
            kernel,
            (-(-n // tile),),
            arguments,
            about,
            "The last program has more lanes than elements are left: mask the load and the store.",
        )
        expect_tensor(about, after["out_ptr"], x.clone(), partial(why_copied, x=x, tile=tile))
        expect_guard(about, after["out_ptr"], "A store without a mask writes behind the end.")
        expect_unchanged(about, {"x_ptr": x}, after)
    expect_compiles(
        subject,
        kernel,
        "masked_copy",
        {"out_ptr": "*fp32:16", "x_ptr": "*fp32:16", "num_elements": "i32"},
        {"TILE": 128},
    )


def why_copied(saw: torch.Tensor, x: torch.Tensor, tile: int) -> str:
    """What a wrong copy comes from."""
    missing = saw.isnan()
    if bool(missing.all()):
        return "Nothing was written."
    if bool(missing[tile:].all()) and not bool(missing[:tile].any()):
        return "Only the first tile was written: program n begins at n * TILE."
    if not bool(missing[: len(x) // tile * tile].any()) and bool(missing.any()):
        return "The last tile, which is not full, must be copied as well."
    if bool(missing.any()):
        return "Some elements were written by no program: program n begins at n * TILE."
    return "Element i of x belongs into element i of out."


# ------------------------------------------------------------------------------- 05.3, the store


@check_for(
    "05.3",
    holds="Each program finds block and offset from its slot and walks by the strides; -1 writes "
    "nothing.",
    hints=(
        (
            "A slot is two numbers, as in lesson 4: which block, and how far into it. A stride says "
            "how many elements further the next one along an axis lies."
        ),
        (
            "Every index times its own stride, added up, whatever the tensor looks like in memory. "
            "Everything that is read or written stands under the test that the slot is not -1."
        ),
        (
            "slot: loaded from slot_mapping_ptr + token. if slot >= 0: source = token * "
            "kv_stride_token + head * kv_stride_head + dims; target = slot // BLOCK_SIZE times the "
            "block's stride, slot % BLOCK_SIZE times the token's, head times the head's, dims times "
            "the dim's. Two masked loads, two masked stores, mask dims < HEAD_DIM."
        ),
    ),
)
def check_store(subject: Subject, draw: Draw) -> None:
    """Contiguous and other caches, a head_dim that is no power of 2, -1 anywhere."""
    kernel = kernel_of(subject, "store_kv_kernel")
    for layout, block_size, head_dim in (
        ("contiguous", 4, HEAD_DIM),
        ("heads before tokens", 3, 6),
        ("dims before heads", draw.choice([3, 5]), 6),
    ):
        stores(subject, draw, kernel, layout, block_size, head_dim)
    far_store(subject, draw, kernel)
    pointers = ("k_cache_ptr", "v_cache_ptr", "k_ptr", "v_ptr")
    strides = ("cache_stride_block", "cache_stride_token", "cache_stride_head")
    expect_compiles(
        subject,
        kernel,
        "store_kv_kernel",
        {
            **dict.fromkeys(pointers, "*bf16:16"),
            "slot_mapping_ptr": "*i64:16",
            **dict.fromkeys((*strides, "kv_stride_token", "kv_stride_head"), "i32:16"),
        },
        {"cache_stride_dim": 1, "BLOCK_SIZE": 16, "HEAD_DIM": 128, "DIM_TILE": 128},
    )


ORDERS = {
    "contiguous": (0, 1, 2, 3),
    "heads before tokens": (0, 2, 1, 3),
    "dims before heads": (0, 3, 2, 1),
}


def stores(
    subject: Subject, draw: Draw, kernel: Ref, layout: str, block_size: int, head_dim: int
) -> None:
    """Store some tokens into a cache that lies in memory in this order."""
    order = ORDERS[layout]
    num_blocks, num_kv_heads = draw.choice([5, 6]), NUM_KV_HEADS
    sizes = (num_blocks, block_size, num_kv_heads, head_dim)
    k_cache, v_cache = (
        guarded(poisoned(*(sizes[axis] for axis in order))).permute(
            [order.index(axis) for axis in range(4)]
        )
        for _ in range(2)
    )
    slots = [0, *draw.sample(range(1, num_blocks * block_size), 4)]
    draw.shuffle(slots)
    slots.insert(draw.randrange(1, 4), -1)
    slots.append(-1)
    packed = draw.tensor(2, len(slots), num_kv_heads + 1, head_dim)
    k, v = packed[:, :, :num_kv_heads]
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
    about = (
        f"store_kv_kernel, slots {slots}, blocks of {block_size}, head_dim {head_dim}, a cache "
        f"with {layout if order[1] != 1 or order[2] != 2 else 'the usual strides'}"
    )
    after = launch(
        subject,
        kernel,
        (len(slots), num_kv_heads),
        arguments,
        about,
        "A place outside of the tensor was touched: slot -1 writes nothing, lanes at or behind "
        "HEAD_DIM are masked, and each index goes by its own stride.",
    )
    for name, before, new in (("k_cache_ptr", k_cache, k), ("v_cache_ptr", v_cache, v)):
        due = before.clone()
        for slot, row in zip(slots, new, strict=True):
            if slot >= 0:
                due[slot // block_size, slot % block_size] = row
        reason = partial(
            why_stored, due=due, k=k, v=v, slots=slots, name=name, contiguous=order == (0, 1, 2, 3)
        )
        expect_tensor(f"{about}; {name}", after[name], due, reason)
        expect_guard(about, after[name], "Something was written outside of the cache.")
    expect_unchanged(about, {"k_ptr": k, "v_ptr": v}, after)


def far_store(subject: Subject, draw: Draw, kernel: Ref) -> None:
    """A block, and then a token of k, behind element 2**31; see `far_block`.

    Keys and values are the same here, and so are the two caches: one memory serves for both.
    """
    stride = 2**27
    words = (
        "16 * 2**27 does not fit into 32 bits and wraps around to a negative number: make the "
        "{} 64 bits wide before it is multiplied."
    )
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
    about = "store_kv_kernel, an int32 slot in block 16, blocks of 2**27 elements each"
    launch(subject, kernel, (1, 1), arguments, about, words.format("slot"))
    found = result(subject.call((memory, "index_select"), 0, far), about)
    expect_tensor(about, found, new.flatten(), words.format("slot"))

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
    about = "store_kv_kernel, token 16 of new keys that lie 2**27 elements apart"
    after = launch(subject, kernel, (17, 1), arguments, about, words.format("token's number"))
    due = cache.clone()
    due[0, 3] = new[0]
    expect_tensor(about, after["k_cache_ptr"], due, words.format("token's number"))


CACHE_STRIDES = (
    "cache_stride_block",
    "cache_stride_token",
    "cache_stride_head",
    "cache_stride_dim",
)


def why_stored(
    saw: torch.Tensor,
    due: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: list[int],
    name: str,
    contiguous: bool,
) -> str:
    """What a wrong cache comes from."""
    written, wanted = ~saw.isnan().flatten(2).all(2), ~due.isnan().flatten(2).all(2)
    if not bool(written.any()):
        return "Nothing was written here."
    first = slots.index(0)
    if name == "k_cache_ptr" and close(saw[0, 0], v[first]):
        return "The values were stored into k_cache: k belongs there, and v into v_cache."
    if any(close(saw[0, 0], k[idx]) for idx, slot in enumerate(slots) if slot < 0):
        return "Slot -1 is a padding and no slot, not even slot 0: it writes nothing."
    if not contiguous and (not torch.equal(saw.isnan(), due.isnan()) or name == "k_cache_ptr"):
        return (
            "In a view an axis need not lie where the shape suggests: every index goes by its "
            "own stride, the block, the token, the head and the dim."
        )
    if name == "v_cache_ptr" and close(saw[0, 0], k[first]):
        return "The values come from v_ptr, the keys from k_ptr."
    if bool(saw[:, :, 1].isnan().all()):
        return "Each program writes one head, the one of tl.program_id(1), and it moves the target."
    if bool(wanted[0, 0]) and not bool(written[0, 0]):
        return "Slot 0 is a slot like any other; only -1 writes nothing."
    if torch.equal(written, wanted):
        return "The right slots were written, with other numbers: look at the strides of k and v."
    in_order = torch.zeros_like(written).flatten()
    in_order[: len(slots)] = True
    if torch.equal(written.flatten() & in_order, written.flatten()):
        return "The slot mapping says where a token goes, not the token's own number."
    return "A slot is a block and an offset: the quotient by BLOCK_SIZE, and the remainder."


# ------------------------------------------------------------------------------ 05.4, 05.5, decode


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, repeated: bool = False
) -> torch.Tensor:
    """Attention of one query in float64; repeated: query heads shared out like cards, wrongly."""
    num_kv_heads = k.shape[1]
    heads = torch.arange(len(q))
    heads = heads % num_kv_heads if repeated else heads // (len(q) // num_kv_heads)
    if not len(k):
        return torch.zeros(q.shape, dtype=torch.float64)
    scores = torch.einsum("hd,thd->ht", q.double(), k.double()[:, heads]) * scale
    return torch.einsum("ht,thd->hd", scores.softmax(1), v.double()[:, heads])


def tiled_wrongly(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, tile: int, fault: str
) -> torch.Tensor:
    """Attention tile by tile in float64, with a known fault."""
    heads = torch.arange(len(q)) // (len(q) // k.shape[1])
    k, v = k.double()[:, heads], v.double()[:, heads]
    if fault == "the last tile is left out":
        k, v = (x[: len(x) // tile * tile] for x in (k, v))
        if not len(k):
            return torch.zeros(q.shape, dtype=torch.float64)
    if fault == "absent lanes count":
        k, v = (torch.cat([x, x.new_zeros(-len(x) % tile, *x.shape[1:])]) for x in (k, v))
    top = q.new_full((len(q),), -math.inf, dtype=torch.float64)
    total, mixed = torch.zeros_like(top), torch.zeros(q.shape, dtype=torch.float64)
    starts = range(0, len(k) // tile) if fault == "steps of one" else range(0, len(k), tile)
    for first in starts:
        scores = torch.einsum("hd,thd->ht", q.double(), k[first : first + tile]) * scale
        new_top = torch.maximum(top, scores.amax(1))
        shrink, weights = torch.exp(top - new_top), torch.exp(scores - new_top[:, None])
        total = total * (1 if fault == "the sum is not shrunk" else shrink) + weights.sum(1)
        mixed *= 1 if fault == "the mix is not shrunk" else shrink[:, None]
        mixed += torch.einsum("ht,thd->hd", weights, v[first : first + tile])
        if fault == "the maximum is forgotten":
            mixed, total = torch.einsum("ht,thd->hd", weights, v[first : first + tile]), total
        top = new_top
        if fault == "only the first tile":
            break
    return mixed if fault == "not divided" else mixed / total.clamp(min=1e-30)[:, None]


FAULTS = {
    "the sum is not shrunk": "When the maximum grows, the old sum was told from the old maximum: "
    "it must shrink by exp(old - new) before new weights are added.",
    "the mix is not shrunk": "When the maximum grows, what was mixed so far was weighted by the "
    "old maximum: it must shrink by exp(old - new), as the sum does.",
    "absent lanes count": "A lane without a token loads 0, and its score 0 counts like any other: "
    "give it the score -inf.",
    "the last tile is left out": "The last, shorter tile was left out: the loop goes to seq_len, in "
    "steps of TILE.",
    "steps of one": "The loop counts turns, but a tile begins at a token: go to seq_len in steps of "
    "TILE.",
    "only the first tile": "Only the first tile was attended to: the loop goes to seq_len, in "
    "steps of TILE.",
    "not divided": "At the end the mix is divided by the sum of the weights.",
    "the maximum is forgotten": "Each tile adds to what was mixed before.",
}


def why_attended(
    saw: torch.Tensor,
    q: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    scale: float,
    tile: int,
    known: Sequence[tuple[str, list[torch.Tensor], list[torch.Tensor]]] = (),
) -> str:
    """What a wrong result of a decode kernel comes from.

    Args:
        known: (misconception, keys, values) of sequences as a known mistake would read them.
    """
    lens = [len(k) for k in keys]
    bad = ~saw.isfinite().flatten(1).all(1)
    if 0 in lens and bool(bad[lens.index(0)]) and not bool(bad[[n > 0 for n in lens]].any()):
        return (
            "A sequence of length 0 has nothing to mix and the sum 0: 0 / 0 is NaN, so keep the "
            "sum away from 0 before you divide."
        )
    if bool(saw[[n > 0 for n in lens]].isnan().all()) and any(n and n % tile == 0 for n in lens):
        return ALL_NAN
    if bool(bad.any()):
        return (
            "Slots behind the length hold NaN, and 0 * NaN is NaN: mask the load of V as well as "
            "that of K, with other=0.0, for lanes without a token."
        )
    for words, other_keys, other_values in known:
        if all_close(saw, q, other_keys, other_values, partial(dense_attention, scale=scale)):
            return words
    alternatives: list[tuple[str, Callable[..., torch.Tensor]]] = [
        (
            "Query heads that share a KV head stand side by side: head h uses KV head "
            "h // GROUP_SIZE.",
            partial(dense_attention, scale=scale, repeated=True),
        ),
        ("The scores are multiplied by softmax_scale.", partial(dense_attention, scale=1.0)),
        *(
            (words, partial(tiled_wrongly, scale=scale, tile=tile, fault=fault))
            for fault, words in FAULTS.items()
        ),
    ]
    for words, attend in alternatives:
        if all_close(saw, q, keys, values, attend):
            return words
    return (
        "Numbers of another place were read or written: every index goes by its own stride, and "
        "the result's row is seq_idx * (number of heads) + head."
    )


ALL_NAN = (
    "Every number is NaN, even of a sequence that fills its tiles. The old part shrinks by "
    "exp(old - new): the other way round it is exp(inf) in the first tile, where the old maximum is "
    "-inf, and 0 * inf is NaN."
)


def all_close(
    saw: torch.Tensor,
    q: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    attend: Callable[..., torch.Tensor],
) -> bool:
    """Whether a known mistake gives what was seen, in every sequence that has tokens."""
    rows = [idx for idx, k in enumerate(keys) if len(k)]
    return all(close(saw[idx], attend(q[idx], keys[idx], values[idx])) for idx in rows)


def large_scores(
    saw: torch.Tensor,
) -> str:
    """What goes wrong with scores of some hundreds only."""
    return (
        "Scores of some hundreds: exp of them is too large for a float32. Take the largest score "
        "so far, of this tile and all before it, away before exp."
    )


def low_scores(saw: torch.Tensor) -> str:
    """What goes wrong with scores far below 0 only."""
    return (
        "The largest score so far starts at -inf: all scores are about -300 here, and measured "
        "from 0 the exp of each is 0."
    )


def lower(q: torch.Tensor, keys: list[torch.Tensor], scale: float) -> None:
    """Move all scores to about -300, by one dim of queries and keys."""
    q[..., 0] = 4.0
    for each in keys:
        each[..., 0] = -300 / (4.0 * scale)


def make_tokens(
    draw: Draw, lens: Sequence[int], head_dim: int, factor: float = 1.0
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Keys and values of sequences, each [seq_len, NUM_KV_HEADS, head_dim]."""
    keys = [draw.tensor(n, NUM_KV_HEADS, head_dim) * factor for n in lens]
    return keys, [draw.tensor(n, NUM_KV_HEADS, head_dim) for n in lens]


def queries(draw: Draw, num_seqs: int, group_size: int, head_dim: int) -> torch.Tensor:
    """q as a slice of q, k and v that lie side by side."""
    num_heads = NUM_KV_HEADS * group_size
    return draw.tensor(num_seqs, num_heads + 2 * NUM_KV_HEADS, head_dim)[:, :num_heads]


def judge_decode(
    subject: Subject,
    kernel: Ref,
    arguments: dict[str, Any],
    about: str,
    tokens: tuple[list[torch.Tensor], list[torch.Tensor]],
    out_of_range: str,
    why: Callable[[torch.Tensor], str],
    tolerance: float = 2e-5,
) -> None:
    """Launch a decode kernel with a head a program, and hold it against attention in float64."""
    q, scale = arguments["q_ptr"], arguments["softmax_scale"]
    out = guarded(poisoned(*q.shape))
    grid = tuple(q.shape[:2])
    given = {"out_ptr": out, **arguments}
    after = launch(subject, kernel, grid, given, about, out_of_range, OWN_STRIDES)
    rows = zip(q, *tokens, strict=True)
    due = torch.stack([dense_attention(row, k, v, scale) for row, k, v in rows]).float()
    expect_tensor(about, after["out_ptr"], due, why, tolerance)
    expect_guard(about, after["out_ptr"], "A program writes the HEAD_DIM numbers of its own row.")
    expect_unchanged(about, arguments, after)


OWN_STRIDES = (
    "out has its own strides, not q's: it is [num_seqs, num_query_heads, head_dim] and contiguous, so "
    "count the rows before a program's own."
)


@check_for(
    "05.4",
    holds="Tile by tile, sum and mix are told from the largest score so far, and shrink when it "
    "grows.",
    hints=(
        (
            "It is 05.1 in a loop, with a tile as the second part: its maximum, its weights, its "
            "sum. What you hold shrinks by exp(old maximum - new maximum) first."
        ),
        (
            "Lanes without a token: their keys and values are loaded as 0, their scores are set to "
            "-inf. Addresses: each index times its stride, as a column of rows [:, None] plus a "
            "row of dims [None, :]. out is contiguous and has no strides of its own among the "
            "arguments: count its rows."
        ),
        (
            "Before the loop: q by load_row(ptr, HEAD_DIM, DIM_TILE); top -inf, total 0.0, mixed tl.zeros. In it: tokens = "
            "first + tl.arange(0, TILE); cells, masks, k and v as float32; scores = tl.sum(q[None, "
            ":] * k, axis=1) times the scale, tl.where for absent lanes; new_top; shrink = "
            "tl.exp(top - new_top), weights = tl.exp(scores - new_top); shrink and add to total "
            "and mixed. Behind it: store_row(ptr, row, HEAD_DIM, DIM_TILE), the row being mixed over "
            "total (at least 1e-30), its address out_ptr + (seq_idx * tl.num_programs(1) + head) * "
            "HEAD_DIM."
        ),
    ),
)
def check_decode_contiguous(subject: Subject, draw: Draw) -> None:
    """Lengths around whole tiles; large and low scores; other groups and dims, length 0."""
    kernel = kernel_of(subject, "decode_contiguous")
    lens = [8, *draw.sample([9, 7, 3], 2)]
    draw.shuffle(lens)
    contiguous(subject, draw, kernel, lens, tile=4, group_size=3)
    contiguous(subject, draw, kernel, draw.sample([9, 12, 7], 2), tile=4, group_size=1, factor=200)
    contiguous(subject, draw, kernel, draw.sample([9, 12, 7], 2), tile=4, group_size=1, low=True)
    lens = draw.sample([0, 8, 17], 3)
    contiguous(subject, draw, kernel, lens, tile=8, group_size=draw.choice([2, 4]), head_dim=6)
    pointers = ("out_ptr", "q_ptr", "k_ptr", "v_ptr")
    strides = ("kv_stride_seq", "kv_stride_token", "kv_stride_head")
    expect_compiles(
        subject,
        kernel,
        "decode_contiguous",
        {
            **dict.fromkeys(pointers, "*bf16:16"),
            "seq_lens_ptr": "*i32:16",
            "softmax_scale": "fp32",
            **dict.fromkeys(("q_stride_seq", "q_stride_head", *strides), "i32:16"),
        },
        {"GROUP_SIZE": 4, "HEAD_DIM": 128, "DIM_TILE": 128, "TILE": 64},
    )


def contiguous(
    subject: Subject,
    draw: Draw,
    kernel: Ref,
    lens: list[int],
    tile: int,
    group_size: int,
    head_dim: int = HEAD_DIM,
    factor: float = 1.0,
    low: bool = False,
) -> None:
    """Judge decode over keys and values in one piece, which is a view of a larger memory of NaN."""
    tokens = make_tokens(draw, lens, head_dim, factor)
    scale = draw.choice([0.25, 0.3])
    q = queries(draw, len(lens), group_size, head_dim)
    if low:
        lower(q, tokens[0], scale)
    room = max(lens) + tile
    memory = poisoned(2, len(lens) + 1, room, NUM_KV_HEADS + 1, head_dim + 3)
    k, v = memory[:, : len(lens), :, :NUM_KV_HEADS, :head_dim]
    for idx, (keys, values) in enumerate(zip(*tokens, strict=True)):
        k[idx, : len(keys)], v[idx, : len(keys)] = keys, values
    arguments = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "seq_lens_ptr": torch.tensor(lens, dtype=torch.int32),
        "softmax_scale": scale,
        "q_stride_seq": q.stride(0),
        "q_stride_head": q.stride(1),
        **dict(zip(("kv_stride_seq", "kv_stride_token", "kv_stride_head"), k.stride()[:3])),
        "GROUP_SIZE": group_size,
        "HEAD_DIM": head_dim,
        "DIM_TILE": 8,
        "TILE": tile,
    }
    about = (
        f"decode_contiguous, lengths {lens}, TILE {tile}, groups of {group_size}, head_dim "
        f"{head_dim}{', scores of some hundreds' if factor > 1 else ''}"
        f"{', all scores about -300' if low else ''}"
    )
    why: Callable[[torch.Tensor], str] = partial(
        why_attended, q=q, keys=tokens[0], values=tokens[1], scale=scale, tile=tile
    )
    judge_decode(
        subject,
        kernel,
        arguments,
        about,
        tokens,
        "A place outside of the tensor was touched: each index goes by its own stride, lanes at or "
        "behind HEAD_DIM are masked, and head h reads KV head h // GROUP_SIZE.",
        large_scores if factor > 1 else low_scores if low else why,
        tolerance=2e-4 if low else 2e-5,
    )


@check_for(
    "05.5",
    holds="Token t lies in the block that the sequence's own row of the table names at t // "
    "BLOCK_SIZE; nothing else is read.",
    hints=(
        (
            "Only the rows change: where a token's row lies is no longer a product, it is looked "
            "up. Lesson 4's slot, for a tile of tokens at once."
        ),
        (
            "Each lane asks for its own token: a tile may span several blocks, or end inside one. "
            "Lanes without a token must not ask. A table holds int32, and a large memory needs 64 "
            "bits to count its elements."
        ),
        (
            "entries = block_tables_ptr + seq_idx * table_stride_seq + tokens // BLOCK_SIZE; "
            "block_ids = tl.load(entries, mask=is_token, other=0).to(tl.int64); rows = block_ids * "
            "the block's stride + tokens % BLOCK_SIZE times the token's. All else as in 05.4."
        ),
    ),
)
def check_decode_paged(subject: Subject, draw: Draw) -> None:
    """Blocks and tiles of different sizes, caches as views, and a memory of 2**31 elements."""
    kernel = kernel_of(subject, "decode_paged")
    lens = [8, draw.choice([9, 13]), draw.choice([7, 11])]
    draw.shuffle(lens)
    paged(subject, draw, kernel, lens, block_size=4, tile=8, group_size=3, spare_first=True)
    lens = draw.sample([0, 7, 15], 3)
    group_size = draw.choice([1, 4])
    layout = "heads before tokens"
    paged(subject, draw, kernel, lens, 3, 4, group_size, head_dim=6, layout=layout)
    paged(subject, draw, kernel, [9], block_size=5, tile=4, group_size=1, factor=200)
    paged(subject, draw, kernel, [9], block_size=5, tile=4, group_size=1, low=True)
    far_block(subject, draw, kernel)
    pointers = ("out_ptr", "q_ptr", "k_cache_ptr", "v_cache_ptr")
    strides = ("q_stride_seq", "q_stride_head", "table_stride_seq", *CACHE_STRIDES[:3])
    expect_compiles(
        subject,
        kernel,
        "decode_paged",
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
    kernel: Ref,
    lens: list[int],
    block_size: int,
    tile: int,
    group_size: int,
    head_dim: int = HEAD_DIM,
    layout: str = "contiguous",
    factor: float = 1.0,
    spare_first: bool = False,
    low: bool = False,
) -> None:
    """Judge decode through block tables; free blocks, tails and padding hold NaN and nonsense.

    Args:
        spare_first: nobody owns block 0, which lanes without a token may read by mistake.
    """
    tokens = make_tokens(draw, lens, head_dim, factor)
    scale = draw.choice([0.25, 0.3])
    q = queries(draw, len(lens), group_size, head_dim)
    if low:
        lower(q, tokens[0], scale)
    num_blocks = sum(-(-n // block_size) for n in lens) + 3
    sizes, order = (num_blocks, block_size, NUM_KV_HEADS, head_dim), ORDERS[layout]
    k_cache, v_cache = (
        poisoned(*(sizes[axis] for axis in order)).permute([order.index(axis) for axis in range(4)])
        for _ in range(2)
    )
    ids = iter([idx for idx in draw.permutation(num_blocks) if idx or not spare_first])
    width = -(-max(lens) // block_size)
    tables = torch.full((len(lens), width + 2), -1, dtype=torch.int32)[:, :width]
    tables[:, 1::2] = 2**30
    for table, seq_len, keys, values in zip(tables, lens, *tokens, strict=True):
        for token in range(seq_len):
            block_idx, offset = divmod(token, block_size)
            if offset == 0:
                table[block_idx] = next(ids)
            k_cache[table[block_idx], offset] = keys[token]
            v_cache[table[block_idx], offset] = values[token]
    arguments = {
        "q_ptr": q,
        "k_cache_ptr": k_cache,
        "v_cache_ptr": v_cache,
        "block_tables_ptr": tables,
        "seq_lens_ptr": torch.tensor(lens, dtype=torch.int32),
        "softmax_scale": scale,
        "q_stride_seq": q.stride(0),
        "q_stride_head": q.stride(1),
        "table_stride_seq": tables.stride(0),
        **dict(zip(CACHE_STRIDES, k_cache.stride()[:3])),
        "BLOCK_SIZE": block_size,
        "GROUP_SIZE": group_size,
        "HEAD_DIM": head_dim,
        "DIM_TILE": 8,
        "TILE": tile,
    }
    about = (
        f"decode_paged, lengths {lens}, blocks of {block_size}, TILE {tile}, groups of "
        f"{group_size}, {'a view' if layout != 'contiguous' else 'the usual strides'}"
        f"{', scores of some hundreds' if factor > 1 else ''}"
        f"{', all scores about -300' if low else ''}"
    )
    why = partial(
        why_paged, q=q, tokens=tokens, scale=scale, tile=tile, block_size=block_size, cache=k_cache
    )
    judge_decode(
        subject,
        kernel,
        arguments,
        about,
        tokens,
        "A place outside of the table or of the cache was touched: a lane with token t asks this "
        "sequence's row of the table at t // BLOCK_SIZE, a lane without one must not ask the "
        "table, and every index goes by its own stride.",
        large_scores if factor > 1 else low_scores if low else why,
        tolerance=2e-4 if low else 2e-5,
    )


def why_paged(
    saw: torch.Tensor,
    q: torch.Tensor,
    tokens: tuple[list[torch.Tensor], list[torch.Tensor]],
    scale: float,
    tile: int,
    block_size: int,
    cache: torch.Tensor,
) -> str:
    """What a wrong result of `decode_paged` comes from."""
    lens = [len(k) for k in tokens[0]]
    places = "every index goes by its own stride"
    for part, query, k, v in zip(saw, q, *tokens, strict=True):
        if not len(k) or close(part, dense_attention(query, k, v, scale)):
            continue
        if bool(part.isnan().any()):
            break
        if bool(saw.isnan().any()):  # somewhere else, and what is shown is finite
            return (
                "Blocks lie anywhere: each lane asks this sequence's row of the table for its own "
                f"token, and {places}. In other sequences slots of nobody were read."
            )
    if bool(saw[[n > 0 for n in lens]].isnan().all()) and any(n and n % tile == 0 for n in lens):
        return (
            f"Blocks of nobody were read: ask this sequence's row of the table, and {places}. Or, if "
            f"your loop is not that of 05.4 any more: {ALL_NAN[0].lower()}{ALL_NAN[1:]}"
        )
    if bool(saw[[n > 0 for n in lens]].isnan().any()):
        return (
            "NaN was read. From slots behind the length: their lanes must be masked in the load of "
            "V as in that of K, since 0 * NaN is NaN. Or from a block of nobody: ask this sequence's "
            "row of the table, at this token's entry, and go every index by its own stride."
        )
    words = (
        "Blocks lie anywhere: each lane asks this sequence's row of the table for its own token."
    )
    in_first = [[t // tile * tile // block_size * block_size + t % block_size for t in range(n)]
                for n in lens]  # fmt: skip
    known = [
        (
            "A tile is not a block: each lane asks the table for its own token, not for the tile's "
            "first one.",
            *pick(tokens, in_first),
        ),
    ]
    told = why_attended(saw, q, *tokens, scale, tile, known)
    return told if not told.startswith("Numbers of another place") else f"{words} {told}"


def pick(
    tokens: tuple[list[torch.Tensor], list[torch.Tensor]], order: list[list[int]]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Sequences as a mistake reads them: token order[t] where t should be."""
    keys, values = (
        [x[torch.tensor(idx, dtype=torch.int64).clamp(max=max(len(x) - 1, 0))] for x, idx in
         zip(part, order, strict=True)]
        for part in tokens
    )  # fmt: skip
    return keys, values


def far_memory(subject: Subject, num_elements: int) -> Ref | None:
    """Memory where the kernel runs, hardly any of it touched; None where it cannot be had.

    Its elements are int8: 2**31 of them are 2 GiB of address space, which the grader allows.
    """
    try:
        memory = subject.new("torch.nn.parameter:UninitializedParameter", False)
    except SubjectError:
        return None
    made = subject.call((memory, "materialize"), (num_elements,), None, torch.int8)
    return None if made.error else memory


def far_block(subject: Subject, draw: Draw, kernel: Ref) -> None:
    """A block behind element 2**31: its offset does not fit into 32 bits.

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
    about = "decode_paged, blocks 16 and 1 of 2**27 elements each"
    words = (
        "16 * 2**27 does not fit into 32 bits and wraps around to a negative number: make the "
        "block ids 64 bits wide before they are multiplied."
    )
    after = launch(subject, kernel, (1, 1), arguments, about, words)
    due = dense_attention(q[0], keys, keys, 0.3)[None].float()
    expect_tensor(about, after["out_ptr"], due, words, tolerance=1e-3)


# ------------------------------------------------------------------------------ 05.6, merge splits


@check_for(
    "05.6",
    holds="Each piece weighs what it has of the whole sum of exp(score); a piece without keys "
    "weighs nothing.",
    hints=(
        "It is 05.1 with any number of pieces: the first axis takes the place of a and b.",
        (
            "The maximum over the pieces is taken away before exp and added behind log. Where all "
            "pieces are empty it is -inf, and there is nothing to take away. Weights have one axis "
            "less than outs."
        ),
        (
            "top = lses.amax(0), and 0 in its place where that is -inf. weights = exp(lses - that). "
            "total = weights.sum(0). out: (weights[..., None] * outs).sum(0) over total, kept from "
            "0 with clamp. lse: what was taken away + log(total), which is -inf by itself."
        ),
    ),
)
def check_merge_splits(subject: Subject, draw: Draw) -> None:
    """Some pieces; large scores; empty ones; nothing at all; one piece."""
    merge = partial(merging, subject, "merge_splits")
    num_splits, num_seqs = draw.choice([3, 4]), 5
    counts = draw.sample([2, 4, 5, 7, 9], num_splits)
    parts = [draw.tensor(count, num_seqs, 3) for count in counts]
    mixed = [draw.tensor(count, num_seqs, 3, HEAD_DIM) for count in counts]
    about = f"{num_splits} pieces of {counts} keys, 5 sequences, 3 heads"
    outs, lses = attended(parts, mixed)
    merge(about, *outs_lses(outs, lses), outs, lses, why_merged)
    for shift, where in ((300.0, "all scores near 300"), (-300.0, "all scores near -300")):
        far = attended([part + shift for part in parts], mixed)
        merge(f"{about}, {where}", *outs_lses(*far), *far, why_shifted)
    spread = [part + 400 * idx - 500 for idx, part in enumerate(parts)]
    far = attended(spread, mixed)
    merge(f"{about}, each scored 400 higher", *outs_lses(*far), *far, why_shifted)
    outs[1:, 2], lses[1:, 2] = 0.0, -math.inf
    outs[0, 3], lses[0, 3] = 0.0, -math.inf
    merge(
        f"{about}, some of them empty",
        *outs_lses(outs, lses),
        outs,
        lses,
        lambda *_: "A piece without keys has lse -inf and weighs exp(-inf) = 0.",
    )
    outs[:, 1], lses[:, 1] = 0.0, -math.inf
    merge(
        f"{about}, sequence 1 has no keys at all",
        *outs_lses(outs, lses),
        outs,
        lses,
        lambda *_: (
            "Where all pieces are empty, -inf is taken from -inf and the total is 0: the "
            "result there is 0, with lse -inf."
        ),
    )
    outs, lses = attended(parts[:1], mixed[:1])
    merge("one piece", *outs_lses(outs, lses), outs, lses, lambda *_: "One piece is the whole.")
