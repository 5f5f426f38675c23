"""Lesson 1's attention against PyTorch's own, and its errors."""

import pytest
import torch
import torch.nn.functional as F

from minipaged.attention import attention, causal_mask, group_heads


def qkv(query_len, seq_len, group_size=3, dtype=torch.float32, num_kv_heads=2, head_dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(tokens, heads):
        return torch.randn(tokens, heads, head_dim, generator=generator).to(dtype)

    return (
        draw(query_len, num_kv_heads * group_size),
        draw(seq_len, num_kv_heads),
        draw(seq_len, num_kv_heads),
    )


@pytest.mark.parametrize("group_size", [1, 3, 4])
@pytest.mark.parametrize("query_len, seq_len", [(1, 1), (1, 9), (2, 5), (7, 7)])
def test_attention_equals_sdpa_with_a_bottom_right_mask(query_len, seq_len, group_size):
    q, k, v = qkv(query_len, seq_len, group_size)
    mask = torch.ones(query_len, seq_len, dtype=torch.bool).tril(seq_len - query_len)
    due = F.scaled_dot_product_attention(
        *(x.double().transpose(0, 1) for x in (q, k, v)), attn_mask=mask, enable_gqa=True
    ).transpose(0, 1)
    torch.testing.assert_close(attention(q, k, v), due.float(), atol=1e-6, rtol=1e-5)


def test_chunked_queries_equal_all_at_once():
    q, k, v = qkv(9, 9)
    whole = attention(q, k, v)
    parts = [attention(q[a:b], k[:b], v[:b]) for a, b in ((0, 4), (4, 5), (5, 9))]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_causal_mask_is_bottom_right():
    assert causal_mask(2, 5).tolist() == [[True] * 4 + [False], [True] * 5]


def test_query_head_reads_the_kv_head_of_its_group():
    v = torch.arange(2.0)[None, :, None].expand(4, 2, 8)
    q, k, _ = qkv(1, 4)
    assert attention(q, k, v)[0, :, 0].round().tolist() == [0, 0, 0, 1, 1, 1]
    assert group_heads(q, 2).shape == (2, 3, 1, 8)


def test_half_precision_does_not_overflow_before_the_scale():
    q = torch.full((1, 1, 128), 40.0, dtype=torch.float16)
    assert torch.isfinite(attention(q, q, q)).all()


def test_no_keys_give_zeros():
    q, k, v = qkv(2, 0)
    assert attention(q, k, v, causal=False).abs().max() == 0


def test_scale_is_used():
    q, k, v = qkv(1, 5)
    assert not torch.allclose(attention(q, k, v, softmax_scale=2.0), attention(q, k, v))


@pytest.mark.parametrize(
    "shapes, words",
    [
        (
            ((1, 3, 8), (5, 2, 8), (5, 2, 8)),
            "num_query_heads 3 is not a multiple of num_kv_heads 2",
        ),
        (((1, 6, 8), (5, 2, 16), (5, 2, 16)), "head_dim of q is 8, of k 16"),
        (((1, 6, 8), (5, 2, 8), (4, 2, 8)), "must have one shape"),
        (((6, 6, 8), (5, 2, 8), (5, 2, 8)), "6 queries but only 5 keys"),
        (((6, 8), (5, 2, 8), (5, 2, 8)), r"\[tokens, heads, head_dim\]"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, words):
    with pytest.raises(ValueError, match=words):
        attention(*(torch.zeros(shape) for shape in shapes))
