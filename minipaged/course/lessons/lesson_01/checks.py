"""The checks of lesson 1: the mask, attention, the naive cache, what to feed."""

import math
from typing import Any

import torch

from ...kit.checking import Draw, check_for, expect, expect_error, expect_tensor, result
from ...kit.subject import Ref, Reply, Subject

# --- 01.1 the mask -----------------------------------------------------------------------------


@check_for(
    "01.1",
    holds="A query sees its own token and every earlier one, counted in the whole sequence.",
    hints=(
        (
            "Queries and keys are numbered from 0 in two different ways. Bring both to one numbering, "
            "the place in the whole sequence, and ask which key is later than the query."
        ),
        (
            "The queries are the last tokens, so the last query is the last token and its row is all "
            "True. Each row further up hides one key more."
        ),
        (
            "Make a column of the queries' places and a row of the keys' places with torch.arange; "
            "comparing a column [query_len, 1] with a row [1, seq_len] gives [query_len, seq_len]."
        ),
    ),
)
def check_causal_mask(subject: Subject, draw: Draw) -> None:
    """Chunks, decode, prefill, a single token; bool, the right way round, on the device."""
    longer = draw.randint(6, 11)
    cases = [(3, draw.randint(5, 8)), (2, 5), (1, longer), (longer, longer), (1, 1)]
    for query_len, seq_len in cases:
        about = f"causal_mask({query_len}, {seq_len})"
        saw = result(subject.call("causal_mask", query_len, seq_len), about)
        due = torch.ones(query_len, seq_len, dtype=torch.bool).tril(seq_len - query_len)
        if isinstance(saw, torch.Tensor) and saw.dtype != torch.bool:
            expect(
                about,
                f"dtype {str(saw.dtype).removeprefix('torch.')}",
                "dtype bool",
                "The mask answers yes or no, so it is a bool tensor: numbers to be added to "
                "scores, or 0 and 1, are another convention.",
            )
        if not isinstance(saw, torch.Tensor) or saw.shape != due.shape:
            expect_tensor(about, saw, due, "A row is a query and a column is a key.")
        expect(about, saw.int().tolist(), due.int().tolist(), name_mask(saw, due))
    about = 'causal_mask(2, 5, "meta")'
    reply = subject.call("causal_mask", 2, 5, "meta")
    elsewhere = isinstance(reply.value, torch.Tensor)  # a meta tensor comes back as a handle
    expect(
        about,
        "a mask on the CPU" if elsewhere else "a mask on that device",
        "a mask on that device",
        "The device that the caller names is ignored: scores on a GPU cannot be masked from here.",
    )


def name_mask(saw: torch.Tensor, due: torch.Tensor) -> str:
    """The misconception that a wrong mask comes from."""
    all_seen, shift = torch.ones_like(due), due.shape[1] - due.shape[0]
    known = (
        (~due, "It says the opposite: True is where the query may see the key."),
        (
            all_seen.tril(),
            (
                "The queries are taken for the first tokens of the sequence. They are its last ones: "
                "the keys in front of them are cached."
            ),
        ),
        (all_seen.tril(shift - 1), "A query is kept from its own token, which it may see."),
        (all_seen.tril(shift + 1), "A query sees one token of the future."),
        (all_seen, "Nothing is hidden, not even the tokens that come after the query."),
        (all_seen.triu(shift), "It hides the past and shows the future."),
    )
    for mask, reason in known:
        if torch.equal(saw, mask):
            return reason
    return "Count queries and keys alike by their place in the whole sequence, then compare."


# --- 01.2 attention ----------------------------------------------------------------------------


@check_for(
    "01.2",
    holds="Each query mixes the values of the keys it may see, by the softmax of scaled scores.",
    hints=(
        (
            "Four steps: how well does each query fit each key (scores), which keys are hidden, how "
            "are shares of 1 made of the scores (softmax), and the values mixed by these shares."
        ),
        (
            "Once grouped, q is [num_kv_heads, group_size, query_len, head_dim]. Scores are "
            "[num_kv_heads, group_size, query_len, seq_len] and each row of shares, over the keys, "
            "adds up to 1. A hidden key's share is exactly 0. All of it in float32."
        ),
        (
            "First validate_attention_inputs(q, k, v, causal). Then group_heads(q, num_kv_heads) of q "
            "in float32 and scaled. Permute k to [num_kv_heads, 1, head_dim, seq_len] and v to "
            "[num_kv_heads, 1, seq_len, head_dim]: the 1 stands for the whole group. Multiply, fill "
            "what causal_mask(query_len, seq_len, device) does not allow with minus infinity, take "
            "the softmax over the last axis, multiply by the values, bring the tokens to the front "
            "again, and give the result q's shape and dtype."
        ),
    ),
)
def check_attention(subject: Subject, draw: Draw) -> None:
    """Groups of 3, 4 and 1; prefill, chunk and decode; views, half precision, no keys, errors."""
    for group_size, query_len, seq_len, scale, causal in (
        (3, 5, 5, None, True),
        (3, 2, draw.randint(5, 9), None, True),
        (4, 1, draw.randint(4, 9), None, True),
        (1, 3, draw.randint(5, 9), round(draw.uniform(0.6, 0.9), 2), True),
        (3, 2, draw.randint(5, 9), None, False),
    ):
        shape = (2 * group_size, 8)
        q = draw.tensor(query_len, *shape)
        k, v = draw.tensor(seq_len, 2, 8), draw.tensor(seq_len, 2, 8)
        about = f"attention of {sizes(q, k)}"
        about += "" if scale is None else f", softmax_scale={scale}"
        about += "" if causal else ", causal=False"
        reply = subject.call("attention", q, k, v, scale, causal)
        compare(about, reply, q, k, v, scale, causal)
    check_views(subject, draw)
    check_half_precision(subject, draw)
    q, nothing = draw.tensor(2, 6, 8), torch.empty(0, 2, 8)
    about = f"attention of {sizes(q, nothing)}, causal=False"
    reply = subject.call("attention", q, nothing, nothing, None, False)
    reason = "With no keys there is nothing to mix: zeros are due."
    kinds = dict.fromkeys(("RuntimeError", "IndexError", "ValueError"), reason)
    expect_tensor(about, result(reply, about, kinds), torch.zeros(2, 6, 8), reason)
    check_attention_errors(subject, draw)


def sizes(q: torch.Tensor, k: torch.Tensor) -> str:
    """What a learner should know of the inputs."""
    return f"q {list(q.shape)}, k and v {list(k.shape)}"


def compare(
    about: str,
    reply: Reply,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None,
    causal: bool,
) -> None:
    """Fail unless a reply is attention of q, k and v, and left them as they were."""
    given = q.shape[2] ** -0.5 if scale is None else scale
    saw = result(reply, about, refused(reply))
    due = slow_attention(q, k, v, given, causal).to(q.dtype)
    expect_tensor(about, saw, due, lambda saw: name_attention(saw, q, k, v, scale, causal))
    for name, before, after in zip("qkv", (q, k, v), reply.args_after, strict=False):
        expect(
            f"{about}, then looking at {name}",
            "unchanged" if torch.equal(before, after) else "changed",
            "unchanged",
            f"The caller's {name} was overwritten: of a float32 tensor, .float() is no copy.",
        )


def refused(reply: Reply) -> dict[str, str]:
    """The misconception that an exception inside attention points to."""
    text = "" if reply.error is None else reply.error.text
    if "view size" in text:
        shapes = "A permuted tensor's numbers lie in another order: view refuses, reshape copies."
    elif "dtype" in text or "scalar type" in text:
        shapes = "Two dtypes met: bring q, k and v to float32 before the first product."
    else:
        shapes = "The shapes did not fit. Write the shape behind each step."
    reasons = {"RuntimeError": shapes}
    if "unsupported operand" in text and "NoneType" in text:
        reasons["TypeError"] = "softmax_scale may be None, and None is no number to multiply by."
    return reasons


def slow_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool = True,
    *,
    shift: int | None = None,
    inverted: bool = False,
    hidden: float = -math.inf,
    axis: int = 1,
    late: bool = False,
    interleaved: bool = False,
) -> torch.Tensor:
    """Attention head by head in float64; the last arguments are the ways to get it wrong."""
    query_len, num_query_heads, _ = q.shape
    seq_len, num_kv_heads, _ = k.shape
    seen = torch.ones(query_len, seq_len, dtype=torch.bool)
    seen = seen.tril(seq_len - query_len if shift is None else shift) if causal else seen
    seen = ~seen if inverted else seen
    out = torch.empty(q.shape, dtype=torch.float64)
    for head in range(num_query_heads):
        kv_head = head // (num_query_heads // num_kv_heads)
        kv_head = head % num_kv_heads if interleaved else kv_head
        scores = scale * (q[:, head].double() @ k[:, kv_head].double().T)
        scores = scores if late else scores.masked_fill(~seen, hidden)
        shares = torch.softmax(scores, dim=axis)
        shares = shares * seen if late else shares
        out[:, head] = shares @ v[:, kv_head].double()
    return out


def name_attention(
    saw: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None,
    causal: bool,
) -> str:
    """The misconception that a wrong result comes from, found by making the same mistake."""
    root = q.shape[2] ** -0.5
    right = root if scale is None else scale
    due = slow_attention(q, k, v, right, causal)
    num_kv_heads = k.shape[1]
    regrouped = due.unflatten(1, (num_kv_heads, -1)).transpose(1, 2).reshape(due.shape)

    def made(scale: float = right, causal: bool = causal, **mistake: object) -> torch.Tensor:
        return slow_attention(q, k, v, scale, causal, **mistake)  # type: ignore[arg-type]

    known = [
        (made(1.0), "The scores are not scaled."),
        (made(root), "A softmax_scale was given, and head_dim ** -0.5 was used all the same."),
        (made(1 / right), "The scores are scaled the wrong way: they must become smaller."),
        (
            made(root * root),
            "Scores are divided by head_dim (or by its root twice); once by its root is due.",
        ),
        (made(right * right), "The scores are scaled twice."),
        *((made(other), reason) for other, reason in other_scales(q, k, scale)),
        (
            made(shift=0),
            "The queries are taken for the first tokens of the sequence; they are its last ones.",
        ),
        (
            made(causal=not causal),
            "A query sees tokens that come after it: the mask is missing."
            if causal
            else "With causal=False a query sees every key, and here some are hidden.",
        ),
        (made(inverted=True), "The mask is the wrong way round: it hides what may be seen."),
        (
            made(hidden=0.0),
            "A hidden score was made 0, but 0 is a score like any other and gets a share.",
        ),
        (
            made(late=True),
            (
                "Hidden keys got a share before they were taken out: the shares that are left no "
                "longer add up to 1."
            ),
        ),
        (made(axis=0), "The softmax runs over the queries; each query shares 1 out to keys."),
        (made(interleaved=True), "A query head read another group's keys and values."),
        (slow_attention(q, k, k, right, causal), "The keys were mixed; the values are due."),
        (
            due.permute(1, 0, 2).reshape(due.shape),
            (
                "The numbers are right and lie in the wrong places: a reshape does not move axes, "
                "tokens must come first again before it."
            ),
        ),
        (regrouped, "The heads come back in another order than they came in."),
    ]
    for mistaken, reason in known:
        if mistaken.shape == saw.shape and torch.allclose(
            saw.double(), mistaken, rtol=1e-3, atol=1e-4, equal_nan=True
        ):
            return reason
    return "Follow one query by hand: its scores, which are hidden, their softmax, the mix."


def other_scales(q: torch.Tensor, k: torch.Tensor, given: float | None) -> list[tuple[float, str]]:
    """Scales made of another size than head_dim, and of the one that was given."""
    query_len, num_query_heads, head_dim = q.shape
    seq_len, num_kv_heads, _ = k.shape
    due = "head_dim, the length of one query" if given is None else "the softmax_scale given"
    found = []
    for name, size in (
        ("num_query_heads", num_query_heads),
        ("num_kv_heads", num_kv_heads),
        ("seq_len, the number of keys", seq_len),
        ("query_len, the number of queries", query_len),
        ("group_size", num_query_heads // num_kv_heads),
        ("num_query_heads * head_dim", num_query_heads * head_dim),
    ):
        for scale, how in ((size**-0.5, "the root of "), (1 / size, "")):
            reason = f"Scores are divided by {how}{name}; what counts is {due}."
            found.append((scale, reason))
    if given is not None:
        reason = "Scores are scaled by softmax_scale and by head_dim ** -0.5; one of them is due."
        found.append((given * head_dim**-0.5, reason))
    return found


def check_views(subject: Subject, draw: Draw) -> None:
    """The model cuts q, k and v out of one tensor, so none of them is contiguous."""
    packed = draw.tensor(4, 10, 8)
    q, k, v = packed[:, :6], packed[:, 6:8], packed[:, 8:]
    about = "attention of q, k and v that are slices of one tensor [4, 10, 8]"
    reply = subject.call("attention", q, k, v)
    compare(about, reply, q, k, v, None, True)


def check_half_precision(subject: Subject, draw: Draw) -> None:
    """Scores beyond what float16 can hold, and close to one another."""
    half = torch.float16
    q = (40 + 0.1 * draw.tensor(2, 6, 128)).to(half)
    k, v = (40 + 0.1 * draw.tensor(5, 2, 128)).to(half), draw.tensor(5, 2, 128, dtype=half)
    about = f"attention of {sizes(q, k)} in float16, all of q and k near 40"
    reply = subject.call("attention", q, k, v)
    saw = result(reply, about, refused(reply))
    due = slow_attention(q, k, v, 128**-0.5).to(half)
    reason = "Scores are computed in float16, where large ones are coarse or overflow: use float32."
    expect_tensor(about, saw, due, reason, tolerance=0.03)


def check_attention_errors(subject: Subject, draw: Draw) -> None:
    """What does not fit together is refused, by name."""
    q, k, v = draw.tensor(2, 6, 8), draw.tensor(5, 2, 8), draw.tensor(4, 2, 8)
    reason = "Inputs that do not fit are let pass: validate_attention_inputs, given, says which."
    about = "attention with 5 keys and 4 values"
    expect_error(about, subject.call("attention", q, k, v), "ValueError", [4, 2, 8], reason)
    about = "attention with 6 queries and 5 keys"
    q = draw.tensor(6, 6, 8)
    expect_error(about, subject.call("attention", q, k, k), "ValueError", 6, reason)


# --- 01.3 keep K and V -------------------------------------------------------------------------


@check_for(
    "01.3",
    holds="Each layer keeps its keys and values in the order of the tokens, and gives all back.",
    hints=(
        "The tokens are one of the axes of k and v. Make that axis longer; the others stay.",
        (
            "After appending 3 tokens and then 1, layer 0 holds [4, num_kv_heads, head_dim], oldest "
            "first. What layer 1 holds has not changed."
        ),
        (
            "Put what the layer has and what is new into one torch.cat along the axis of tokens, "
            "assign it to the layer's place in the list, for k and for v, and return both."
        ),
    ),
)
def check_append(subject: Subject, draw: Draw) -> None:
    """A prompt, then single tokens and a chunk, through three layers in a shuffled order."""
    num_layers = 3
    config = subject.new("minipaged.model:ModelConfig", num_layers, 6, 2, 8, 48, 100, 64)
    cache = subject.new("NaiveKVCache", config)
    empty = torch.empty(0, 2, 8)
    k_due, v_due = [empty] * num_layers, [empty] * num_layers
    for n in (draw.randint(3, 6), 1, 2, 1):
        for layer_idx in draw.permutation(num_layers):
            old_k = k_due[layer_idx]
            k, v = draw.tensor(n, 2, 8), draw.tensor(n, 2, 8)
            about = f"append({layer_idx}, k, v) with {list(k.shape)}, {len(old_k)} tokens kept"
            k_due[layer_idx] = torch.cat([old_k, k])
            v_due[layer_idx] = torch.cat([v_due[layer_idx], v])
            reply = subject.call((cache, "append"), layer_idx, k, v)
            reason = "Along which axis do tokens follow each other? The other two have fixed sizes."
            saw = result(reply, about, {"RuntimeError": reason})
            compare_kept(about, saw, k_due[layer_idx], v_due[layer_idx], k, v)
            compare_lists(subject, cache, about, k_due, v_due)
    about = "num_tokens after four appends in each of 3 layers and no extend"
    expect(about, subject.get(cache, "num_tokens"), 0, "extend counts tokens, once for all layers.")
    check_attend(subject, draw)


def compare_kept(
    about: str,
    saw: Any,
    k_due: torch.Tensor,
    v_due: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> None:
    """Fail unless what append returned is all keys and all values of the layer."""
    is_pair = isinstance(saw, tuple | list) and len(saw) == 2
    if not is_pair:
        seen = "something else" if saw is not None else None
        expect(about, seen, "two tensors", "All keys and all values are due, as two.")
    for name, kept, due, new in zip(("keys", "values"), saw, (k_due, v_due), (k, v), strict=True):
        other = v_due if name == "keys" else k_due

        def reason(
            kept: torch.Tensor,
            due: torch.Tensor = due,
            new: torch.Tensor = new,
            other: torch.Tensor = other,
        ) -> str:
            old = len(due) - len(new)
            if kept.shape == new.shape and torch.equal(kept, new):
                return "Only the new tokens came back; earlier ones are lost or not returned."
            if kept.shape[1:] == due.shape[1:] and len(kept) > len(due):
                return "More tokens came back than this layer was given: another layer's are there."
            if kept.shape != due.shape:
                return "Tokens lie along the first axis; it alone grows."
            if torch.equal(kept, other):
                return "Keys and values are mixed up."
            if torch.equal(kept, torch.cat([new, due[:old]])):
                return "The new tokens stand in front of the earlier ones; they belong behind."
            return "The layer's earlier tokens come first, unchanged, then the new ones."

        expect_tensor(f"{about}, the {name}", kept, due, reason)


def compare_lists(
    subject: Subject,
    cache: Ref,
    about: str,
    k_due: list[torch.Tensor],
    v_due: list[torch.Tensor],
) -> None:
    """Fail unless the cache keeps what it should in every layer."""
    for name, dues in (("k", k_due), ("v", v_due)):
        lists = subject.get(cache, name)
        if not isinstance(lists, list) or len(lists) != len(dues):
            expect(about, f"cache.{name} is something else", "a list", "One tensor a layer is due.")
        for idx, (kept, due) in enumerate(zip(lists, dues, strict=True)):
            expect_tensor(
                f"{about}, then cache.{name}[{idx}]",
                kept,
                due,
                "What a layer keeps is its own: nothing is forgotten, and nothing comes from the "
                "append of another layer.",
            )


def check_attend(subject: Subject, draw: Draw) -> None:
    """Through attend, a prompt and one token more give the whole text's last row."""
    config = subject.new("minipaged.model:ModelConfig", 2, 6, 2, 8, 48, 100, 64)
    cache = subject.new("NaiveKVCache", config)
    q, k, v = draw.tensor(6, 6, 8), draw.tensor(6, 2, 8), draw.tensor(6, 2, 8)
    about = "attend with 5 tokens, then with 1"
    result(subject.call((cache, "attend"), 1, q[:5], k[:5], v[:5]), about)
    saw = result(subject.call((cache, "attend"), 1, q[5:], k[5:], v[5:]), about)
    due = slow_attention(q, k, v, 8**-0.5)[5:].float()
    expect_tensor(about, saw, due, "The last token must attend to all six, as with no cache.")


# --- 01.4 what to feed -------------------------------------------------------------------------


@check_for(
    "01.4",
    holds="Every token that is not cached is fed, once, at its place in the whole sequence.",
    hints=(
        (
            "The cache holds the first tokens. What is left of the list, and what are the places of "
            "these tokens, counted from the list's beginning?"
        ),
        (
            "Two lists of one length. The cache and the fed tokens together make the whole sequence, "
            "with no gap and nothing twice; the last position is one less than the number of tokens."
        ),
        (
            "Slice the list from the first token that is not cached to the end; the positions are a "
            "range with the same first number and the list's length as its end, made a list."
        ),
    ),
)
def check_next_inputs(subject: Subject, draw: Draw) -> None:
    """Decode, prefill and what a prompt that is half cached leaves; the list stays as it was."""
    total = draw.randint(7, 12)
    half = draw.randint(2, total - 3)
    for length, num_cached in ((total, half), (5, 3), (total, 0), (total, total - 1), (1, 0)):
        token_ids = draw.sample(range(100, 900), length)
        about = f"next_inputs({token_ids}, num_cached={num_cached})"
        reply = subject.call("next_inputs", list(token_ids), num_cached)
        saw = result(reply, about)
        due = (token_ids[num_cached:], list(range(num_cached, length)))
        expect(about, saw, due, name_inputs(saw, token_ids, num_cached))
        expect(
            f"{about}, then looking at token_ids",
            reply.args_after[0],
            token_ids,
            "The caller's list was changed; the caller still needs the whole text.",
        )


def name_inputs(saw: object, token_ids: list[int], num_cached: int) -> str:
    """The misconception that a wrong choice comes from."""
    fed, places = token_ids[num_cached:], list(range(num_cached, len(token_ids)))
    if not (isinstance(saw, tuple) and len(saw) == 2):
        return "A pair is due: the token ids, and their positions."
    ids, positions = saw
    if not (isinstance(ids, list) and isinstance(positions, list)):
        return "Both are due as plain lists."
    if (ids, positions) == (places, fed):
        return "The two lists are swapped: token ids come first."
    if len(ids) != len(positions):
        return "Each fed token needs one position: the lists differ in length."
    if ids == token_ids:
        return "Tokens that are cached already are fed again; the cache would hold them twice."
    if ids == token_ids[-1:]:
        return "Only the last token is fed: right in decode, but here others are not cached yet."
    if ids == token_ids[:num_cached]:
        return "These are the cached tokens; the others are due."
    if ids == token_ids[max(num_cached - 1, 0) :]:
        return "The last cached token is fed a second time."
    if ids == token_ids[num_cached + 1 :]:
        return "The first token that is not cached was skipped."
    if ids == fed and positions == list(range(len(fed))):
        return "The positions start again at 0; a token's position counts the cached ones too."
    if ids == fed and positions == [place + 1 for place in places]:
        return "The positions are one too high: the sequence's first token is at 0."
    return "Cached and fed tokens together are the whole sequence, each at its own place."
