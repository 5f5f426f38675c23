"""The checks of lesson 0: the next token, bytes per token, who fits."""

from typing import Any

import torch

from ...kit.checking import Draw, check_for, expect, result
from ...kit.subject import Ref, Subject

# --- 00.1 the next token -----------------------------------------------------------------------


@check_for(
    "00.1",
    holds="The next token is the likeliest one in the last row, as a plain whole number.",
    hints=(
        (
            "Each row of logits answers the question 'what comes after this token?'. Only one of "
            "those questions is still open."
        ),
        (
            "The last row has a score for every token of the vocabulary. The place of the highest "
            "score is the token's id."
        ),
        (
            "Take the last row with an index from the end, ask it for its argmax(), and turn the "
            "tensor that comes back into an int."
        ),
    ),
)
def check_greedy(subject: Subject, draw: Draw) -> None:
    """Texts of several lengths; every row has another winner, and another row the highest score."""
    for num_rows in (draw.randint(3, 6), 2, 1):
        vocab_size = draw.randint(7, 12)
        logits = draw.tensor(num_rows, vocab_size)
        winners = draw.sample(range(1, vocab_size), num_rows)
        for row, winner in enumerate(winners):
            logits[row, winner] = 40.0 + (row == 1 < num_rows - 1)  # no score is a place
        logits -= 60.0 * draw.randint(0, 1)  # all scores may be negative
        due = winners[-1]
        about = f"greedy(logits) with logits of shape {[num_rows, vocab_size]}"
        reply = subject.call("greedy", logits)
        saw = result(reply, about)
        expect(about, saw, due, lambda saw: name_token(saw, logits))  # noqa: B023
        after = reply.args_after[0]
        expect(
            f"the logits after {about}",
            isinstance(after, torch.Tensor) and torch.equal(after, logits),
            True,
            "The caller's logits were changed: choosing only reads them.",
        )


MAX = "That is the highest score (max). Its place in the row (argmax) is the token's id."


def name_token(saw: Any, logits: torch.Tensor) -> str:
    """The misconception that a wrong token comes from."""
    if isinstance(saw, torch.Tensor) and saw.is_floating_point() and saw.numel() == 1:
        return MAX
    if isinstance(saw, Ref) and saw.kind == "max":
        return "max over an axis gives two things, scores and places; argmax the place alone."
    if isinstance(saw, torch.Tensor) and saw.numel() == 1:
        return "A token id is a plain whole number, and argmax gives a tensor: turn it into an int."
    if isinstance(saw, torch.Tensor):
        return "One token comes next: choose in one row, not in every row or column."
    if type(saw) is int:
        if saw in (int(logits[-1].max()), int(logits.max())):
            return MAX
        if saw == int(logits[0].argmax()) and len(logits) > 1:
            return "That is what follows the first token. The open question is in the last row."
        if saw == int(logits[-1].argmin()):
            return "That is the least likely token."
        if saw == int(logits.argmax()):
            return "That is a place in all rows together: the other rows' questions are answered."
    if isinstance(saw, float):
        return MAX
    return "The likeliest token has the highest score in the last row."


# --- 00.2 bytes per token ----------------------------------------------------------------------


@check_for(
    "00.2",
    holds="A token's cache is its keys and values, in every layer, for every KV head.",
    hints=(
        (
            "Each row of the table doubles one size of the first row. Doubling it either doubles "
            "the bytes or leaves them alone."
        ),
        (
            "Four sizes count: three of the model, and the bytes of one number. The product of the "
            "four is half of what the table says: what is kept twice?"
        ),
        (
            "Multiply: keys and values, num_layers, num_kv_heads, head_dim, and dtype.itemsize, the "
            "bytes of one number."
        ),
    ),
)
def check_kv_bytes_per_token(subject: Subject, draw: Draw) -> None:
    """Models in which no two factors are equal, in three dtypes."""
    # one byte first: there, half of what is due can come from nothing but the keys alone
    for dtype in (torch.int8, *draw.sample((torch.float32, torch.float16, torch.float64), 2)):
        num_layers, num_kv_heads = draw.choice([9, 11]), draw.choice([5, 7])
        group_size, head_dim, width = 3, draw.choice([24, 40]), dtype.itemsize
        sizes = {
            "num_layers": num_layers,
            "num_query_heads": num_kv_heads * group_size,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
        }
        config = new_config(subject, sizes)
        words = ", ".join(f"{name} {size}" for name, size in sizes.items())
        about = f"kv_bytes_per_token of {words}, in {str(dtype).removeprefix('torch.')}"
        due = 2 * num_layers * num_kv_heads * head_dim * width
        reasons = {
            due * group_size: "Query heads share keys and values: only KV heads are cached.",
            due // num_layers: "Every layer keeps its own keys and values.",
            due // num_kv_heads: "Every KV head keeps a key and a value.",
            due // head_dim: "A key is head_dim numbers, not one.",
            due * 8: "Those are bits: a byte has eight.",
            due // width: "Those are numbers, not bytes: a number takes dtype.itemsize.",
            due // width * 4: "The dtype says how many bytes a number takes, not always 4.",
            due // width * 2: "The dtype says how many bytes a number takes, not always 2.",
        }
        if width == 1:
            reasons[due // 2] = "A token has a key and a value: only one of them is counted."
        saw = result(subject.call("kv_bytes_per_token", config, dtype), about)
        reason = reasons.get(saw) if type(saw) is int else None
        expect(about, saw, due, reason or "Which sizes change the bytes, and which do not?")


def new_config(subject: Subject, sizes: dict[str, int]) -> Ref:
    """A bare config with these sizes; max_seq_len is not one that should be used."""
    hidden_size = sizes["num_query_heads"] * sizes["head_dim"]
    return subject.new("minipaged.model:ModelConfig", *sizes.values(), hidden_size, 101, 977)


# --- 00.3 who fits -----------------------------------------------------------------------------


@check_for(
    "00.3",
    holds="Only whole slots fit, and only whole slabs: what is left over serves nobody.",
    hints=(
        (
            "Both answers ask how often something fits into a room. What is left over is too small "
            "for one more."
        ),
        (
            "A slot has the bytes of one token, which you have counted in 00.2. A slab has "
            "max_seq_len slots."
        ),
        (
            "Divide num_bytes by the bytes of a token with //, then those slots by max_seq_len with "
            "//, and return the two as a tuple."
        ),
    ),
)
def check_kv_slots(subject: Subject, draw: Draw) -> None:
    """Memories that fit exactly, that leave something over, and that are too small."""
    sizes = {"num_layers": 3, "num_query_heads": 6, "num_kv_heads": 2, "head_dim": 8}
    dtype = draw.choice([torch.float32, torch.float16])
    per_token = 2 * 3 * 2 * 8 * dtype.itemsize
    max_seq_len = draw.choice([16, 20, 50])
    slabs, slots = draw.randint(2, 6), draw.randint(1, max_seq_len - 1)
    rooms = (
        (slabs * max_seq_len, 0),
        (slabs * max_seq_len + slots, draw.randint(1, per_token - 1)),
        (max_seq_len - 1, per_token - 1),
        (0, per_token - 1),
    )
    for num_slots, left_over in rooms:
        num_bytes = num_slots * per_token + left_over
        config = new_config(subject, sizes)
        about = (
            f"kv_slots of a model with {per_token} B a token, num_bytes={num_bytes}, "
            f"max_seq_len={max_seq_len}"
        )
        saw = result(subject.call("kv_slots", config, dtype, num_bytes, max_seq_len), about)
        due = (num_slots, num_slots // max_seq_len)
        expect(about, saw, due, lambda saw: name_room(saw, due, max_seq_len))  # noqa: B023


def name_room(saw: Any, due: tuple[int, int], max_seq_len: int) -> str:
    """The misconception that a wrong pair comes from."""
    if not isinstance(saw, tuple | list) or len(saw) != 2:
        return "Two numbers are due, as a tuple: slots, then slabs."
    if any(type(number) is float for number in saw):
        return "Part of a slot holds no token, part of a slab no request: divide with //."
    if type(saw) is list:
        return "The two come as a tuple."
    if saw == due[::-1]:
        return "The slots come first, then the slabs."
    if saw[0] == due[0] + 1 or saw[1] == due[1] + 1:
        return "What is left over is not one more: round down."
    if saw[0] == due[0] and saw[1] == due[0]:
        return "A slab is max_seq_len slots, reserved whole: fewer slabs fit than slots."
    if saw[0] == due[1] * max_seq_len != due[0]:
        return "Slots behind the last whole slab are slots all the same."
    return "A slot is the bytes of one token (00.2), a slab is max_seq_len slots."
