"""Wrong solutions of lesson 1."""

from ...kit.mistakes import Wrong

MASK = "key_idx <= query_idx + (seq_len - query_len)"
CAT_K = "self.k[layer_idx] = torch.cat([self.k[layer_idx], k])"
CAT_V = "self.v[layer_idx] = torch.cat([self.v[layer_idx], v])"
RETURN = "return self.k[layer_idx], self.v[layer_idx]"
FED = "token_ids[num_cached:]"
PLACES = "list(range(num_cached, len(token_ids)))"


def mask(name: str, says: str, right: str, wrong: str) -> Wrong:
    return Wrong("01.1", name, says=says, edit=((right, wrong),))


def attention(name: str, says: str, *edit: tuple[str, str]) -> Wrong:
    return Wrong("01.2", name, says=says, edit=edit)


def append(name: str, says: str, *edit: tuple[str, str]) -> Wrong:
    return Wrong("01.3", name, says=says, edit=edit)


def feed(name: str, says: str, *edit: tuple[str, str]) -> Wrong:
    return Wrong("01.4", name, says=says, edit=edit)


WRONG = [
    mask("top-left, as SDPA's is_causal", "first tokens", MASK, "key_idx <= query_idx"),
    mask("hides the query's own key", "its own token", MASK, MASK.replace("<=", "<")),
    mask("True hides", "opposite", MASK, MASK.replace("<=", ">")),
    mask("one token of the future", "one token of the future", MASK, MASK + " + 1"),
    mask("hides nothing", "Nothing is hidden", MASK, "(key_idx >= 0).expand(query_len, seq_len)"),
    mask("hides the past", "hides the past", MASK, MASK.replace("<=", ">=")),
    mask("keys by queries", "A row is a query", MASK, f"({MASK}).T"),
    mask("numbers to add", "another convention", MASK, f"torch.where({MASK}, 0.0, -torch.inf)"),
    mask("0 and 1", "another convention", MASK, f"({MASK}).int()"),
    mask(
        "a row for every token",
        "A row is a query",
        "torch.arange(query_len",
        "torch.arange(seq_len",
    ),
    mask("ignores the device", "device", ", device=device", ""),
    attention(
        "top-left mask",
        "first tokens",
        (
            "causal_mask(q.shape[0], k.shape[0], q.device)",
            "torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril()",
        ),
    ),
    attention("no scale", "not scaled", ("q.float() * scale", "q.float()")),
    attention(
        "scales by the number of heads",
        "root of num_query_heads",
        ("q.shape[2] ** -0.5", "q.shape[1] ** -0.5"),
    ),
    attention("softmax over queries", "over the queries", ("dim=-1", "dim=-2")),
    attention("hidden scores are 0", "a score like any other", ('float("-inf")', "0.0")),
    attention(
        "masks after the softmax",
        "no longer add up to 1",
        ('scores = scores.masked_fill(~allowed, float("-inf"))', "pass"),
        (
            "torch.softmax(scores, dim=-1)",
            "torch.softmax(scores, dim=-1) * (allowed if causal else 1)",
        ),
    ),
    attention("masks always", "causal=False", ("if causal:", "if True:")),
    attention(
        "ignores softmax_scale",
        "softmax_scale was given",
        ("q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale", "q.shape[2] ** -0.5"),
    ),
    attention(
        "reshapes without moving axes",
        "a reshape does not move axes",
        ("mixed.permute(2, 0, 1, 3).reshape(q.shape)", "mixed.reshape(q.shape)"),
    ),
    attention("computes in the inputs' dtype", "float32", (".float()", "")),
    attention(
        "scales the caller's q", "overwritten", ("q.float() * scale", "q.float().mul_(scale)")
    ),
    attention(
        "lets any shape pass",
        "let pass",
        ("validate_attention_inputs(q, k, v, causal)", "pass"),
    ),
    append(
        "new tokens in front",
        "in front",
        (CAT_K, CAT_K.replace("[self.k[layer_idx], k]", "[k, self.k[layer_idx]]")),
    ),
    append("cats along heads", "which axis", ("layer_idx], k])", "layer_idx], k], dim=1)")),
    append("cats along head_dim", "which axis", ("layer_idx], v])", "layer_idx], v], dim=-1)")),
    append(
        "forgets to keep",
        "nothing is forgotten",
        (CAT_K, "all_k = torch.cat([self.k[layer_idx], k])"),
        (CAT_V, "all_v = torch.cat([self.v[layer_idx], v])"),
        (RETURN, "return all_k, all_v"),
    ),
    append(
        "overwrites",
        "Only the new tokens",
        (CAT_K, "self.k[layer_idx] = k"),
        (CAT_V, "self.v[layer_idx] = v"),
    ),
    append("returns what is new", "Only the new tokens", (RETURN, "return k, v")),
    append("one layer for all", "another layer", ("[layer_idx]", "[0]")),
    append(
        "every layer grows",
        "another layer",
        (CAT_K, "self.k = [torch.cat([kept, k]) for kept in self.k]"),
        (CAT_V, "self.v = [torch.cat([kept, v]) for kept in self.v]"),
    ),
    append("keeps k as v", "mixed up", (CAT_V, CAT_V.replace(", v]", ", k]"))),
    append(
        "returns values first", "mixed up", (RETURN, "return self.v[layer_idx], self.k[layer_idx]")
    ),
    append(
        "counts tokens in every layer",
        "extend counts",
        (RETURN, f"self.num_tokens += len(k)\n        {RETURN}"),
    ),
    append("returns the lists", "as two", (RETURN, "return self.k + self.v")),
    feed(
        "positions start again",
        "start again at 0",
        (PLACES, "list(range(len(token_ids) - num_cached))"),
    ),
    feed(
        "only the last token",
        "Only the last token",
        (FED, "token_ids[-1:]"),
        (PLACES, "[len(token_ids) - 1]"),
    ),
    feed(
        "everything again", "fed again", (FED, "token_ids"), (PLACES, "list(range(len(token_ids)))")
    ),
    feed(
        "positions from 1",
        "one too high",
        (PLACES, "list(range(num_cached + 1, len(token_ids) + 1))"),
    ),
    feed(
        "skips a token",
        "skipped",
        (FED, "token_ids[num_cached + 1 :]"),
        (PLACES, "list(range(num_cached + 1, len(token_ids)))"),
    ),
    feed(
        "feeds the last cached again",
        "a second time",
        (FED, "token_ids[max(num_cached - 1, 0) :]"),
        (PLACES, "list(range(max(num_cached - 1, 0), len(token_ids)))"),
    ),
    feed(
        "the cached ones",
        "These are the cached tokens",
        (FED, "token_ids[:num_cached]"),
        (PLACES, "list(range(num_cached))"),
    ),
    feed("a position for every token", "differ in length", (PLACES, "list(range(len(token_ids)))")),
    feed("positions as a range", "plain lists", (PLACES, "range(num_cached, len(token_ids))")),
    feed("swapped", "swapped", (f"{FED}, {PLACES}", f"{PLACES}, {FED}")),
    feed(
        "eats the caller's list",
        "was changed",
        (
            f"return {FED}, {PLACES}",
            f"places = {PLACES}\n    del token_ids[:num_cached]\n    return token_ids, places",
        ),
    ),
]
