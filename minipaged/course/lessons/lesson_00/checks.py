"""The checks of lesson 0: the next token, bytes per token, who fits."""

import torch

from ...kit.checks import Draw, check_for
from ...kit.expecting import expect, expect_tensor, value
from ...kit.subject import Ref, Subject

CONFIG = "minipaged.given.model:ModelConfig"


@check_for("00.1")
def check_greedy(subject: Subject, draw: Draw) -> None:
    """Texts of several lengths; every row has another winner, by little, and another row the
    highest score."""
    for num_rows in (draw.randint(3, 6), 2, 1):
        vocab_size = draw.randint(7, 12)
        logits = draw.tensor(num_rows, vocab_size) + draw.choice([40, -40])  # no score is an index
        winners = draw.sample(range(1, vocab_size), num_rows)
        for row, winner in enumerate(winners):
            logits[row, winner] = logits[row].max() + 0.1  # a near tie
        if num_rows > 2:
            logits[1, winners[1]] = logits.max() + 1
        reply = subject.call("greedy", logits)
        expect(value(reply), winners[-1], "last row")
        expect_tensor(reply.args_after[0], logits, "only reads")


@check_for("00.2", needs=(CONFIG,))
def check_kv_bytes_per_token(subject: Subject, draw: Draw) -> None:
    """Models in which no two factors are equal, in three dtypes."""
    # one byte first: there, half of the bytes can come from nothing but the keys alone
    for dtype in (torch.int8, *draw.sample((torch.float32, torch.float16, torch.float64), 2)):
        num_layers, num_kv_heads = draw.choice([9, 11]), draw.choice([5, 7])
        head_dim = draw.choice([24, 40])
        config = new_config(subject, num_layers, 3 * num_kv_heads, num_kv_heads, head_dim)
        saw = value(subject.call("kv_bytes_per_token", config, dtype))
        expect(saw, 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize, "sizes")


def new_config(subject: Subject, num_layers: int, num_heads: int, kv_heads: int, dim: int) -> Ref:
    """A bare config; hidden_size, vocab_size and max_seq_len are not among those that count."""
    return subject.new(CONFIG, num_layers, num_heads, kv_heads, dim, num_heads * dim + 8, 101, 977)


@check_for("00.3", needs=(CONFIG,))
def check_kv_slots(subject: Subject, draw: Draw) -> None:
    """Memories that fit exactly, that leave something over, and that are too small."""
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
        config = new_config(subject, 3, 6, 2, 8)
        saw = value(subject.call("kv_slots", config, dtype, num_bytes, max_seq_len))
        expect(saw, (num_slots, num_slots // max_seq_len), "whole")
