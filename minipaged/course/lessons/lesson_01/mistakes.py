"""The known wrong solutions of lesson 1."""

from ...kit.mistakes import Mistake

MASK = "key_idx <= query_idx + (seq_len - query_len)"
CAT_K = "self.k[layer_idx] = torch.cat([self.k[layer_idx], k])"
CAT_V = "self.v[layer_idx] = torch.cat([self.v[layer_idx], v])"
RETURN = "return self.k[layer_idx], self.v[layer_idx]"
FED = "token_ids[num_cached:]"
PLACES = "list(range(num_cached, len(token_ids)))"


def mask(name: str, right: str, wrong: str) -> Mistake:
    return Mistake("01.1", name, edit=((right, wrong),))


def attention(name: str, *edit: tuple[str, str]) -> Mistake:
    return Mistake("01.2", name, edit=edit)


def append(name: str, *edit: tuple[str, str]) -> Mistake:
    return Mistake("01.3", name, edit=edit)


def feed(name: str, *edit: tuple[str, str]) -> Mistake:
    return Mistake("01.4", name, edit=edit)


MISTAKES = [
    mask("top-left, as SDPA's is_causal", MASK, "key_idx <= query_idx"),
    mask("hides the query's own key", MASK, MASK.replace("<=", "<")),
    mask("True hides", MASK, MASK.replace("<=", ">")),
    mask("one token of the future", MASK, MASK + " + 1"),
    mask("hides nothing", MASK, "(key_idx >= 0).expand(query_len, seq_len)"),
    mask("hides the past", MASK, MASK.replace("<=", ">=")),
    mask("keys by queries", MASK, f"({MASK}).T"),
    mask("numbers to add", MASK, f"torch.where({MASK}, 0.0, -torch.inf)"),
    mask("0 and 1", MASK, f"({MASK}).int()"),
    mask(
        "a row for every token",
        "torch.arange(query_len",
        "torch.arange(seq_len",
    ),
    mask("ignores the device", ", device=device", ""),
    attention(
        "top-left mask",
        (
            "causal_mask(q.shape[0], k.shape[0], q.device)",
            "torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril()",
        ),
    ),
    attention("no scale", ("q.float() * scale", "q.float()")),
    attention(
        "scales by the number of heads",
        ("q.shape[2] ** -0.5", "q.shape[1] ** -0.5"),
    ),
    attention("softmax over queries", ("dim=-1", "dim=-2")),
    attention("hidden scores are 0", ('float("-inf")', "0.0")),
    attention(
        "masks after the softmax",
        ('scores = scores.masked_fill(~allowed, float("-inf"))', "pass"),
        (
            "torch.softmax(scores, dim=-1)",
            "torch.softmax(scores, dim=-1) * (allowed if causal else 1)",
        ),
    ),
    attention("masks always", ("if causal:", "if True:")),
    attention(
        "ignores softmax_scale",
        ("q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale", "q.shape[2] ** -0.5"),
    ),
    attention(
        "reshapes without moving axes",
        ("mixed.permute(2, 0, 1, 3).reshape(q.shape)", "mixed.reshape(q.shape)"),
    ),
    attention("computes in the inputs' dtype", (".float()", "")),
    attention("scales the caller's q", ("q.float() * scale", "q.float().mul_(scale)")),
    attention(
        "lets any shape pass",
        ("validate_attention_inputs(q, k, v, causal)", "pass"),
    ),
    append(
        "new tokens in front",
        (CAT_K, CAT_K.replace("[self.k[layer_idx], k]", "[k, self.k[layer_idx]]")),
    ),
    append("cats along heads", ("layer_idx], k])", "layer_idx], k], dim=1)")),
    append("cats along head_dim", ("layer_idx], v])", "layer_idx], v], dim=-1)")),
    append(
        "forgets to keep",
        (CAT_K, "all_k = torch.cat([self.k[layer_idx], k])"),
        (CAT_V, "all_v = torch.cat([self.v[layer_idx], v])"),
        (RETURN, "return all_k, all_v"),
    ),
    append(
        "overwrites",
        (CAT_K, "self.k[layer_idx] = k"),
        (CAT_V, "self.v[layer_idx] = v"),
    ),
    append("returns what is new", (RETURN, "return k, v")),
    append("one layer for all", ("[layer_idx]", "[0]")),
    append(
        "every layer grows",
        (CAT_K, "self.k = [torch.cat([kept, k]) for kept in self.k]"),
        (CAT_V, "self.v = [torch.cat([kept, v]) for kept in self.v]"),
    ),
    append("keeps k as v", (CAT_V, CAT_V.replace(", v]", ", k]"))),
    append("returns values first", (RETURN, "return self.v[layer_idx], self.k[layer_idx]")),
    append(
        "counts tokens in every layer",
        (RETURN, f"self.num_tokens += len(k)\n        {RETURN}"),
    ),
    append("returns the lists", (RETURN, "return self.k + self.v")),
    feed(
        "positions start again",
        (PLACES, "list(range(len(token_ids) - num_cached))"),
    ),
    feed(
        "only the last token",
        (FED, "token_ids[-1:]"),
        (PLACES, "[len(token_ids) - 1]"),
    ),
    feed("everything again", (FED, "token_ids"), (PLACES, "list(range(len(token_ids)))")),
    feed(
        "positions from 1",
        (PLACES, "list(range(num_cached + 1, len(token_ids) + 1))"),
    ),
    feed(
        "skips a token",
        (FED, "token_ids[num_cached + 1 :]"),
        (PLACES, "list(range(num_cached + 1, len(token_ids)))"),
    ),
    feed(
        "feeds the last cached again",
        (FED, "token_ids[max(num_cached - 1, 0) :]"),
        (PLACES, "list(range(max(num_cached - 1, 0), len(token_ids)))"),
    ),
    feed(
        "the cached ones",
        (FED, "token_ids[:num_cached]"),
        (PLACES, "list(range(num_cached))"),
    ),
    feed("a position for every token", (PLACES, "list(range(len(token_ids)))")),
    feed("positions as a range", (PLACES, "range(num_cached, len(token_ids))")),
    feed("swapped", (f"{FED}, {PLACES}", f"{PLACES}, {FED}")),
    feed(
        "eats the caller's list",
        (
            f"return {FED}, {PLACES}",
            f"places = {PLACES}\n    del token_ids[:num_cached]\n    return token_ids, places",
        ),
    ),
]
