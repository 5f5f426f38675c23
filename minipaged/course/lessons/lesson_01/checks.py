"""The checks of lesson 1: the mask, attention, the naive cache, what to feed."""

from typing import Any

import torch

from ...kit.checks import Draw, check_for
from ...kit.expecting import Words, expect, expect_error, expect_tensor, fail, value
from ...kit.subject import Ref, Reply, Subject

CONFIG = "minipaged.given.model:ModelConfig"


# --- 01.1 the mask -----------------------------------------------------------------------------


@check_for("01.1")
def check_causal_mask(subject: Subject, draw: Draw) -> None:
    """Chunks, decode, prefill, a single token; bool, the right way round, on the device."""
    longer = draw.randint(6, 11)
    cases = [(3, draw.randint(5, 8)), (2, 5), (1, longer), (longer, longer), (1, 1)]
    for query_len, seq_len in cases:
        saw = value(subject.call("causal_mask", query_len, seq_len))
        due = torch.ones(query_len, seq_len, dtype=torch.bool).tril(seq_len - query_len)
        if isinstance(saw, torch.Tensor) and saw.shape == due.shape and saw.dtype == due.dtype:
            expect(saw.int().tolist(), due.int().tolist(), "seen")
        else:
            expect_tensor(saw, due, "rows and columns")
    torch.le(torch.ones(2, device="meta"), 1)  # its first use loads much: not in the call's time
    reply = subject.call("causal_mask", 2, 5, "meta")
    if isinstance(reply.value, torch.Tensor):  # a meta tensor comes back as a handle
        fail(Words("a mask on the CPU"), Words('a mask on the device "meta"'), "device")
    elif reply.error is not None and reply.error.kind == "TypeError":
        value(reply, "device")


# --- 01.2 attention ----------------------------------------------------------------------------


@check_for("01.2")
def check_attention(subject: Subject, draw: Draw) -> None:
    """Groups of 3, 4 and 1; prefill, chunk and decode; views, half precision, no keys, errors."""
    for group_size, query_len, seq_len, scale, causal in (
        (3, 5, 5, None, True),
        (3, 2, draw.randint(5, 9), None, True),
        (4, 1, draw.randint(4, 9), None, True),
        (1, 3, draw.randint(5, 9), round(draw.uniform(0.6, 0.9), 2), True),
        (3, 2, draw.randint(5, 9), None, False),
    ):
        q = draw.tensor(query_len, 2 * group_size, 8)
        k, v = draw.tensor(seq_len, 2, 8), draw.tensor(seq_len, 2, 8)
        compare(subject.call("attention", q, k, v, scale, causal), q, k, v, scale, causal)
    # the model cuts q, k and v out of one tensor, so none of them is contiguous
    packed = draw.tensor(4, 10, 8)
    q, k, v = packed[:, :6], packed[:, 6:8], packed[:, 8:]
    compare(subject.call("attention", q, k, v), q, k, v)
    check_half_precision(subject, draw)
    q, nothing = draw.tensor(2, 6, 8), torch.empty(0, 2, 8)
    saw = value(subject.call("attention", q, nothing, nothing, None, False), "no keys")
    expect_tensor(saw, torch.zeros(2, 6, 8), "no keys")
    q, k, v = draw.tensor(2, 6, 8), draw.tensor(5, 2, 8), draw.tensor(4, 2, 8)
    expect_error(subject.call("attention", q, k, v), "ValueError", [4, 2, 8], "refusals")
    q = draw.tensor(6, 6, 8)
    expect_error(subject.call("attention", q, k, k), "ValueError", 6, "refusals")


def compare(
    reply: Reply,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    causal: bool = True,
) -> None:
    """Fail unless a reply is attention of q, k and v, and left them as they were."""
    expect_tensor(value(reply), slow_attention(q, k, v, scale, causal), "mix")
    for before, after in zip((q, k, v), reply.args_after, strict=False):
        expect_tensor(after, before, "only reads")


def slow_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, causal: bool
) -> torch.Tensor:
    """Attention head by head, computed in float64, in q's dtype."""
    query_len, num_query_heads, head_dim = q.shape
    seq_len, num_kv_heads, _ = k.shape
    seen = torch.ones(query_len, seq_len, dtype=torch.bool)
    seen = seen.tril(seq_len - query_len) if causal else seen
    out = torch.empty(q.shape, dtype=torch.float64)
    for head in range(num_query_heads):
        kv_head = head // (num_query_heads // num_kv_heads)
        scores = q[:, head].double() @ k[:, kv_head].double().T
        scores = scores * (head_dim**-0.5 if scale is None else scale)
        scores = scores.masked_fill(~seen, float("-inf"))
        out[:, head] = torch.softmax(scores, dim=1) @ v[:, kv_head].double()
    return out.to(q.dtype)


def check_half_precision(subject: Subject, draw: Draw) -> None:
    """Scores beyond what float16 can hold, and close to one another."""
    half = torch.float16
    q = (40 + 0.1 * draw.tensor(2, 6, 128)).to(half)
    k, v = (40 + 0.1 * draw.tensor(5, 2, 128)).to(half), draw.tensor(5, 2, 128, dtype=half)
    saw = value(subject.call("attention", q, k, v), "float32")
    expect_tensor(saw, slow_attention(q, k, v, None, True), "float32", tolerance=0.03)


# --- 01.3 keep K and V -------------------------------------------------------------------------


@check_for("01.3", needs=(CONFIG,))
def check_append(subject: Subject, draw: Draw) -> None:
    """A prompt, then single tokens and a chunk, through three layers in a shuffled order."""
    num_layers = 3
    cache = subject.new("NaiveKVCache", new_config(subject, num_layers))
    empty = torch.empty(0, 2, 8)
    k_due, v_due = [empty] * num_layers, [empty] * num_layers
    for n in (draw.randint(3, 6), 1, 2, 1):
        for layer_idx in draw.permutation(num_layers):
            k, v = draw.tensor(n, 2, 8), draw.tensor(n, 2, 8)
            k_due[layer_idx] = torch.cat([k_due[layer_idx], k])
            v_due[layer_idx] = torch.cat([v_due[layer_idx], v])
            saw = value(subject.call((cache, "append"), layer_idx, k, v), "axis")
            if isinstance(saw, tuple | list) and len(saw) == 2:
                expect_tensor(saw[0], k_due[layer_idx], "returns")
                expect_tensor(saw[1], v_due[layer_idx], "returns")
            else:
                fail(saw, Words("two tensors, the keys and the values"), "returns")
        compare_lists(subject.get(cache, "k"), k_due)
        compare_lists(subject.get(cache, "v"), v_due)
    expect(subject.get(cache, "num_tokens"), 0, "count")
    check_attend(subject, draw)


def new_config(subject: Subject, num_layers: int) -> Ref:
    """A config with groups of 3 query heads."""
    return subject.new(CONFIG, num_layers, 6, 2, 8, 48, 100, 64)


def compare_lists(kept: Any, due: list[torch.Tensor]) -> None:
    """Fail unless the cache keeps what it should in every layer."""
    if not isinstance(kept, list) or len(kept) != len(due):
        fail(kept, Words("a list of one tensor a layer"), "kept")
        return
    for saw, layer in zip(kept, due, strict=True):
        expect_tensor(saw, layer, "kept")


def check_attend(subject: Subject, draw: Draw) -> None:
    """Through attend, a prompt and one token more give the whole text's last row."""
    cache = subject.new("NaiveKVCache", new_config(subject, 2))
    q, k, v = draw.tensor(6, 6, 8), draw.tensor(6, 2, 8), draw.tensor(6, 2, 8)
    value(subject.call((cache, "attend"), 1, q[:5], k[:5], v[:5]))
    saw = value(subject.call((cache, "attend"), 1, q[5:], k[5:], v[5:]))
    expect_tensor(saw, slow_attention(q, k, v, None, True)[5:], "attend")


# --- 01.4 what to feed -------------------------------------------------------------------------


@check_for("01.4")
def check_next_inputs(subject: Subject, draw: Draw) -> None:
    """Decode, prefill and what a prompt that is half cached leaves; the list stays as it was."""
    total = draw.randint(7, 12)
    half = draw.randint(2, total - 3)
    for length, num_cached in ((total, half), (5, 3), (total, 0), (total, total - 1), (1, 0)):
        token_ids = draw.sample(range(100, 900), length)
        reply = subject.call("next_inputs", list(token_ids), num_cached)
        due = (token_ids[num_cached:], list(range(num_cached, length)))
        expect(value(reply), due, "fed")
        expect(reply.args_after[0], token_ids, "only reads")
