"""The known wrong solutions of lesson 0."""

from ...kit.mistakes import Mistake

CHOICE = "int(logits[-1].argmax())"
PRODUCT = "2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize"
SLOTS = "num_bytes // kv_bytes_per_token(config, dtype)"
PAIR = "num_slots, num_slots // max_seq_len"

MISTAKES = [
    Mistake("00.1", "chooses in the first row", edit=((CHOICE, "int(logits[0].argmax())"),)),
    Mistake("00.1", "counts through all rows", edit=((CHOICE, "int(logits.argmax())"),)),
    Mistake("00.1", "gives a tensor", edit=((CHOICE, "logits[-1].argmax()"),)),
    Mistake("00.1", "takes the least likely", edit=((CHOICE, "int(logits[-1].argmin())"),)),
    Mistake("00.1", "gives the score", edit=((CHOICE, "float(logits[-1].max())"),)),
    Mistake("00.1", "gives the score as an int", edit=((CHOICE, "int(logits[-1].max())"),)),
    Mistake("00.1", "gives the score as a tensor", edit=((CHOICE, "logits[-1].max()"),)),
    Mistake("00.1", "chooses in every row", edit=((CHOICE, "logits.argmax(dim=-1)"),)),
    Mistake("00.1", "counts from the end", edit=((CHOICE, f"{CHOICE} - logits.shape[1]"),)),
    Mistake(
        "00.1",
        "writes into the caller's logits",
        source=(
            "def greedy(logits):\n"
            "    best = int(logits[-1].argmax())\n"
            "    logits.copy_(torch.softmax(logits, dim=-1))\n"
            "    return best\n"
        ),
    ),
    Mistake("00.2", "counts the keys alone", edit=((PRODUCT, PRODUCT[4:]),)),
    Mistake("00.2", "counts query heads", edit=(("num_kv_heads", "num_query_heads"),)),
    Mistake("00.2", "counts one layer", edit=(("config.num_layers * ", ""),)),
    Mistake("00.2", "counts one head", edit=(("config.num_kv_heads * ", ""),)),
    Mistake("00.2", "counts numbers, not bytes", edit=((" * dtype.itemsize", ""),)),
    Mistake("00.2", "assumes four bytes", edit=(("dtype.itemsize", "4"),)),
    Mistake("00.2", "assumes two bytes", edit=(("dtype.itemsize", "2"),)),
    Mistake("00.2", "counts bits", edit=(("dtype.itemsize", "dtype.itemsize * 8"),)),
    Mistake(
        "00.2",
        "uses the hidden size",
        edit=(("config.num_kv_heads * config.head_dim", "config.hidden_size"),),
    ),
    Mistake(
        "00.2", "counts a whole sequence", edit=((PRODUCT, PRODUCT + " * config.max_seq_len"),)
    ),
    Mistake("00.3", "counts parts of slots", edit=((SLOTS, SLOTS.replace("//", "/")),)),
    Mistake("00.3", "counts parts of slabs", edit=((PAIR, PAIR.replace("//", "/")),)),
    Mistake("00.3", "swaps the two", edit=((PAIR, "num_slots // max_seq_len, num_slots"),)),
    Mistake("00.3", "rounds slabs up", edit=((PAIR, "num_slots, -(-num_slots // max_seq_len)"),)),
    Mistake(
        "00.3",
        "rounds slots up",
        edit=((SLOTS, "-(-num_bytes // kv_bytes_per_token(config, dtype))"),),
    ),
    Mistake("00.3", "gives the slots twice", edit=((PAIR, "num_slots, num_slots"),)),
    Mistake(
        "00.3",
        "counts slots of whole slabs only",
        edit=((PAIR, "num_slots // max_seq_len * max_seq_len, num_slots // max_seq_len"),),
    ),
    Mistake("00.3", "gives a list", edit=((PAIR, f"[{PAIR}]"),)),
    Mistake(
        "00.3",
        "counts keys and values apart",
        edit=((SLOTS, "2 * num_bytes // kv_bytes_per_token(config, dtype)"),),
    ),
]
