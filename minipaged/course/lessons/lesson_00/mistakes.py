"""The known wrong solutions of lesson 0."""

from ...kit.mistakes import Mistake

CHOICE = "int(logits[-1].argmax())"
PRODUCT = "2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize"
SLOTS = "num_bytes // kv_bytes_per_token(config, dtype)"
PAIR = "num_slots, num_slots // max_seq_len"

MISTAKES = [
    Mistake("00.1", "the first row", edit=((CHOICE, "int(logits[0].argmax())"),)),
    Mistake("00.1", "all rows together", edit=((CHOICE, "int(logits.argmax())"),)),
    Mistake("00.1", "a tensor", edit=((CHOICE, "logits[-1].argmax()"),)),
    Mistake(
        "00.1",
        "the least likely",
        edit=((CHOICE, "int(logits[-1].argmin())"),),
    ),
    Mistake("00.1", "the score", edit=((CHOICE, "float(logits[-1].max())"),)),
    Mistake("00.1", "the score cut", edit=((CHOICE, "int(logits[-1].max())"),)),
    Mistake("00.1", "the score, a tensor", edit=((CHOICE, "logits[-1].max()"),)),
    Mistake("00.1", "one token a row", edit=((CHOICE, "logits.argmax(dim=-1)"),)),
    Mistake(
        "00.1",
        "counts from the end",
        edit=((CHOICE, f"{CHOICE} - logits.shape[1]"),),
    ),
    Mistake(
        "00.1",
        "sorts the caller's logits",
        source=(
            "def greedy(logits):\n"
            "    best = int(logits[-1].argmax())\n"
            "    logits.copy_(torch.softmax(logits, dim=-1))\n"
            "    return best\n"
        ),
    ),
    Mistake("00.2", "keys alone", edit=((PRODUCT, PRODUCT[4:]),)),
    Mistake("00.2", "query heads", edit=(("num_kv_heads", "num_query_heads"),)),
    Mistake("00.2", "one layer", edit=(("config.num_layers * ", ""),)),
    Mistake("00.2", "one head", edit=(("config.num_kv_heads * ", ""),)),
    Mistake("00.2", "numbers, not bytes", edit=((" * dtype.itemsize", ""),)),
    Mistake("00.2", "always four bytes", edit=(("dtype.itemsize", "4"),)),
    Mistake("00.2", "always two bytes", edit=(("dtype.itemsize", "2"),)),
    Mistake("00.2", "bits", edit=(("dtype.itemsize", "dtype.itemsize * 8"),)),
    Mistake(
        "00.2",
        "the hidden size",
        edit=(("config.num_kv_heads * config.head_dim", "config.hidden_size"),),
    ),
    Mistake(
        "00.2",
        "a whole sequence",
        edit=((PRODUCT, PRODUCT + " * config.max_seq_len"),),
    ),
    Mistake("00.3", "parts of slots", edit=((SLOTS, SLOTS.replace("//", "/")),)),
    Mistake("00.3", "parts of slabs", edit=((PAIR, PAIR.replace("//", "/")),)),
    Mistake(
        "00.3",
        "the other way round",
        edit=((PAIR, "num_slots // max_seq_len, num_slots"),),
    ),
    Mistake(
        "00.3",
        "one slab more",
        edit=((PAIR, "num_slots, -(-num_slots // max_seq_len)"),),
    ),
    Mistake(
        "00.3",
        "one slot more",
        edit=((SLOTS, "-(-num_bytes // kv_bytes_per_token(config, dtype))"),),
    ),
    Mistake("00.3", "a slab a slot", edit=((PAIR, "num_slots, num_slots"),)),
    Mistake(
        "00.3",
        "slots of whole slabs alone",
        edit=((PAIR, "num_slots // max_seq_len * max_seq_len, num_slots // max_seq_len"),),
    ),
    Mistake("00.3", "a list", edit=((PAIR, f"[{PAIR}]"),)),
    Mistake(
        "00.3",
        "half of the keys and values",
        edit=((SLOTS, "2 * num_bytes // kv_bytes_per_token(config, dtype)"),),
    ),
]
