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
    mask("aligns the mask at the top left", MASK, "key_idx <= query_idx"),
    mask("hides the query's own key", MASK, MASK.replace("<=", "<")),
    mask("lets True hide", MASK, MASK.replace("<=", ">")),
    mask("shows one token of the future", MASK, MASK + " + 1"),
    mask("hides nothing", MASK, "(key_idx >= 0).expand(query_len, seq_len)"),
    mask("hides the past", MASK, MASK.replace("<=", ">=")),
    mask("puts keys in the rows", MASK, f"({MASK}).T"),
    mask("gives numbers to add", MASK, f"torch.where({MASK}, 0.0, -torch.inf)"),
    mask("gives 0 and 1", MASK, f"({MASK}).int()"),
    mask(
        "makes a row for every token",
        "torch.arange(query_len",
        "torch.arange(seq_len",
    ),
    mask("ignores the device", ", device=device", ""),
    attention(
        "treats the queries as the first tokens",
        (
            "causal_mask(q.shape[0], k.shape[0], q.device)",
            "torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril()",
        ),
    ),
    attention("does not scale", ("q.float() * scale", "q.float()")),
    attention(
        "scales by the number of heads",
        ("q.shape[2] ** -0.5", "q.shape[1] ** -0.5"),
    ),
    attention("takes the softmax over queries", ("dim=-1", "dim=-2")),
    attention("hides with a score of 0", ('float("-inf")', "0.0")),
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
    attention("scales twice", ("q.float() * scale", "q.float() * scale * scale")),
    attention("divides by head_dim", ("q.shape[2] ** -0.5", "1 / q.shape[2]")),
    attention(
        "gives KV heads out in turn",
        (
            "group_heads(q.float() * scale, k.shape[1])",
            "(q.float() * scale).reshape(q.shape[0], -1, *k.shape[1:]).permute(2, 1, 0, 3)",
        ),
        ("mixed.permute(2, 0, 1, 3)", "mixed.permute(2, 1, 0, 3)"),
    ),
    attention("inverts the mask", ("~allowed", "allowed")),
    attention(
        "lets any shape pass",
        ("validate_attention_inputs(q, k, v, causal)", "pass"),
    ),
    append(
        "puts new tokens in front",
        (CAT_K, CAT_K.replace("[self.k[layer_idx], k]", "[k, self.k[layer_idx]]")),
    ),
    append("joins keys along heads", ("layer_idx], k])", "layer_idx], k], dim=1)")),
    append("joins values along head_dim", ("layer_idx], v])", "layer_idx], v], dim=-1)")),
    append(
        "forgets to keep",
        (CAT_K, "all_k = torch.cat([self.k[layer_idx], k])"),
        (CAT_V, "all_v = torch.cat([self.v[layer_idx], v])"),
        (RETURN, "return all_k, all_v"),
    ),
    append(
        "overwrites what was kept",
        (CAT_K, "self.k[layer_idx] = k"),
        (CAT_V, "self.v[layer_idx] = v"),
    ),
    append("returns what is new", (RETURN, "return k, v")),
    append("keeps one layer for all", ("[layer_idx]", "[0]")),
    append(
        "grows every layer",
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
        "starts positions again at 0",
        (PLACES, "list(range(len(token_ids) - num_cached))"),
    ),
    feed(
        "feeds only the last token",
        (FED, "token_ids[-1:]"),
        (PLACES, "[len(token_ids) - 1]"),
    ),
    feed("feeds everything again", (FED, "token_ids"), (PLACES, "list(range(len(token_ids)))")),
    feed(
        "counts positions from 1",
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
        "feeds the cached tokens",
        (FED, "token_ids[:num_cached]"),
        (PLACES, "list(range(num_cached))"),
    ),
    feed("gives a position for every token", (PLACES, "list(range(len(token_ids)))")),
    feed("gives positions as a range", (PLACES, "range(num_cached, len(token_ids))")),
    feed("swaps the two lists", (f"{FED}, {PLACES}", f"{PLACES}, {FED}")),
    feed(
        "eats the caller's list",
        (
            f"return {FED}, {PLACES}",
            f"places = {PLACES}\n    del token_ids[:num_cached]\n    return token_ids, places",
        ),
    ),
]
