"""Wrong solutions of lesson 0."""

from ...kit.mistakes import Wrong

CHOICE = "int(logits[-1].argmax())"
PRODUCT = "2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize"
SLOTS = "num_bytes // kv_bytes_per_token(config, dtype)"
PAIR = "num_slots, num_slots // max_seq_len"

WRONG = [
    Wrong("00.1", "the first row", says="first token", edit=((CHOICE, "int(logits[0].argmax())"),)),
    Wrong("00.1", "all rows together", says="all rows", edit=((CHOICE, "int(logits.argmax())"),)),
    Wrong("00.1", "a tensor", says="plain whole number", edit=((CHOICE, "logits[-1].argmax()"),)),
    Wrong(
        "00.1",
        "the least likely",
        says="least likely",
        edit=((CHOICE, "int(logits[-1].argmin())"),),
    ),
    Wrong("00.1", "the score", says="argmax", edit=((CHOICE, "float(logits[-1].max())"),)),
    Wrong("00.1", "the score cut", says="(argmax)", edit=((CHOICE, "int(logits[-1].max())"),)),
    Wrong("00.1", "the score, a tensor", says="(argmax)", edit=((CHOICE, "logits[-1].max()"),)),
    Wrong("00.1", "one token a row", says="One token", edit=((CHOICE, "logits.argmax(dim=-1)"),)),
    Wrong(
        "00.1",
        "counts from the end",
        says="highest score",
        edit=((CHOICE, f"{CHOICE} - logits.shape[1]"),),
    ),
    Wrong(
        "00.1",
        "sorts the caller's logits",
        says="changed",
        source=(
            "def greedy(logits):\n"
            "    best = int(logits[-1].argmax())\n"
            "    logits.copy_(torch.softmax(logits, dim=-1))\n"
            "    return best\n"
        ),
    ),
    Wrong("00.2", "keys alone", says="a key and a value", edit=((PRODUCT, PRODUCT[4:]),)),
    Wrong("00.2", "query heads", says="only KV heads", edit=(("num_kv_heads", "num_query_heads"),)),
    Wrong("00.2", "one layer", says="Every layer", edit=(("config.num_layers * ", ""),)),
    Wrong("00.2", "one head", says="Every KV head", edit=(("config.num_kv_heads * ", ""),)),
    Wrong(
        "00.2", "numbers, not bytes", says="numbers, not bytes", edit=((" * dtype.itemsize", ""),)
    ),
    Wrong("00.2", "always four bytes", says="not always 4", edit=(("dtype.itemsize", "4"),)),
    Wrong("00.2", "always two bytes", says="not always 2", edit=(("dtype.itemsize", "2"),)),
    Wrong("00.2", "bits", says="bits", edit=(("dtype.itemsize", "dtype.itemsize * 8"),)),
    Wrong(
        "00.2",
        "the hidden size",
        says="only KV heads",
        edit=(("config.num_kv_heads * config.head_dim", "config.hidden_size"),),
    ),
    Wrong(
        "00.2",
        "a whole sequence",
        says="Which sizes",
        edit=((PRODUCT, PRODUCT + " * config.max_seq_len"),),
    ),
    Wrong(
        "00.3", "parts of slots", says="divide with //", edit=((SLOTS, SLOTS.replace("//", "/")),)
    ),
    Wrong("00.3", "parts of slabs", says="divide with //", edit=((PAIR, PAIR.replace("//", "/")),)),
    Wrong(
        "00.3",
        "the other way round",
        says="slots come first",
        edit=((PAIR, "num_slots // max_seq_len, num_slots"),),
    ),
    Wrong(
        "00.3",
        "one slab more",
        says="round down",
        edit=((PAIR, "num_slots, -(-num_slots // max_seq_len)"),),
    ),
    Wrong(
        "00.3",
        "one slot more",
        says="round down",
        edit=((SLOTS, "-(-num_bytes // kv_bytes_per_token(config, dtype))"),),
    ),
    Wrong("00.3", "a slab a slot", says="reserved whole", edit=((PAIR, "num_slots, num_slots"),)),
    Wrong(
        "00.3",
        "slots of whole slabs alone",
        says="all the same",
        edit=((PAIR, "num_slots // max_seq_len * max_seq_len, num_slots // max_seq_len"),),
    ),
    Wrong("00.3", "a list", says="tuple", edit=((PAIR, f"[{PAIR}]"),)),
    Wrong(
        "00.3",
        "half of the keys and values",
        says="bytes of one token",
        edit=((SLOTS, "2 * num_bytes // kv_bytes_per_token(config, dtype)"),),
    ),
]
