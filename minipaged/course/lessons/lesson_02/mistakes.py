"""Wrong solutions of lesson 2."""

from ...kit.mistakes import Wrong

RETURN = "return self.k[layer_idx, : self.num_tokens], self.v[layer_idx, : self.num_tokens]"
WRITE = """        self.k[layer_idx, self.start : self.num_tokens] = k
        self.v[layer_idx, self.start : self.num_tokens] = v
"""

SLAB = [
    Wrong("02.1", "writes from slot 0", says="from slot 0 on, over the oldest",
          edit=(("layer_idx, self.start : self.num_tokens] =", "layer_idx, : len(k)] ="),)),
    Wrong("02.1", "writes behind num_tokens", says="extend has counted them already",
          edit=(("layer_idx, self.start : self.num_tokens] =",
                 "layer_idx, self.num_tokens : self.num_tokens + len(k)] ="),)),
    Wrong("02.1", "returns the whole slab", says="the filled part only",
          edit=((RETURN, "return self.k[layer_idx], self.v[layer_idx]"),)),
    Wrong("02.1", "returns the new tokens only", says="attends to all earlier tokens too",
          edit=((RETURN, "return k, v"),)),
    Wrong("02.1", "leaves the new tokens out", says="a token attends to itself",
          edit=((RETURN, RETURN.replace("num_tokens", "start")),)),
    Wrong("02.1", "torch.cat, slab not written", says="Nothing was written",
          edit=((WRITE, ""),
                (RETURN, ("return (torch.cat([self.k[layer_idx, : self.start], k]),\n"
                         "                torch.cat([self.v[layer_idx, : self.start], v]))")))),
    Wrong("02.1", "replaces the slab", says="was replaced by another tensor",
          edit=((WRITE, "        self.k, self.v = k[None], v[None]\n"),)),
    Wrong("02.1", "writes the keys twice", says="mixed up",
          edit=(("self.num_tokens] = v", "self.num_tokens] = k"),)),
    Wrong("02.1", "counts the tokens again in each layer", says="once for all layers",
          edit=((RETURN, "self.start, self.num_tokens = self.num_tokens, "
                         "self.num_tokens + len(k)\n        " + RETURN),)),
    Wrong("02.1", "writes every layer into layer 0", says="every layer has its own",
          edit=(("self.k[layer_idx, self.start", "self.k[0, self.start"),
                ("self.v[layer_idx, self.start", "self.v[0, self.start"))),
    Wrong("02.1", "returns copies", says="A copy moves every earlier token again",
          edit=((RETURN, ("n = self.num_tokens\n        return "
                         "self.k[layer_idx, :n].clone(), self.v[layer_idx, :n].clone()")),)),
    Wrong("02.1", "writes one slot too few", says="as many as the new tokens",
          edit=(("layer_idx, self.start : self.num_tokens] =",
                 "layer_idx, self.start : self.num_tokens - 1] ="),)),
]  # fmt: skip

FIT = '''
def first_fit(holes: list[tuple[int, int]], n: int) -> int | None:
    """Take n slots."""
'''
TAKE = "holes[idx : idx + 1] = [(start + n, size - n)] if size > n else []"

FIRST_FIT = [
    Wrong("02.2", "best fit", says="the tightest hole",
          source=FIT + """
    fitting = [(size, idx) for idx, (_, size) in enumerate(holes) if size >= n]
    if not fitting:
        return None
    size, idx = min(fitting)
    start = holes[idx][0]
    holes[idx : idx + 1] = [(start + n, size - n)] if size > n else []
    return start
"""),
    Wrong("02.2", "worst fit", says="the largest hole",
          source=FIT + """
    idx = max(range(len(holes)), key=lambda i: holes[i][1], default=None)
    if idx is None or holes[idx][1] < n:
        return None
    start, size = holes[idx]
    holes[idx : idx + 1] = [(start + n, size - n)] if size > n else []
    return start
"""),
    Wrong("02.2", "adds the holes up", says="adding them up does not help",
          source=FIT + """
    if sum(size for _, size in holes) < n:
        return None
    for idx, (start, size) in enumerate(holes):
        if size >= n:
            holes[idx : idx + 1] = [(start + n, size - n)] if size > n else []
            return start
    return holes[0][0]
"""),
    Wrong("02.2", "a hole of exactly n will not do", says="exactly n slots is large enough",
          edit=(("if size >= n:", "if size > n:"),)),
    Wrong("02.2", "leaves a hole of 0 slots", says="A hole of 0 slots",
          edit=((TAKE, "holes[idx] = (start + n, size - n)"),)),
    Wrong("02.2", "takes the high end", says="the hole's high end",
          edit=((TAKE, "holes[idx : idx + 1] = [(start, size - n)] if size > n else []"),
                ("return start", "return start + size - n"))),
    Wrong("02.2", "the rest starts where the request does", says="still free in your list",
          edit=(("(start + n, size - n)", "(start, size - n)"),)),
    Wrong("02.2", "returns the index", says="the hole's place in the list",
          edit=(("return start", "return idx"),)),
    Wrong("02.2", "says -1 for no room", says="would be taken for a slot",
          edit=(("return None", "return -1"),)),
    Wrong("02.2", "throws small holes away while searching", says="must not change the holes",
          source=FIT + """
    kept = []
    while holes:
        start, size = holes.pop(0)
        if size >= n:
            holes[:0] = [*kept, (start + n, size - n)] if size > n else kept
            return start
        kept.append((start, size))
    return None
"""),
    Wrong("02.2", "makes a new list", says="given away twice",
          edit=((TAKE, "holes = holes[:idx] + [(start + n, size - n)] + holes[idx + 1 :]"),)),
    Wrong("02.2", "gives the whole hole away", says="The rest of the hole is lost",
          edit=((TAKE, "del holes[idx]"),)),
]  # fmt: skip

MERGE = '''
def merge_hole(holes: list[tuple[int, int]], start: int, size: int) -> None:
    """Give slots back."""
'''
ABOVE = """    if idx < len(holes) and holes[idx][0] == start + size:
        size += holes.pop(idx)[1]
"""
BELOW = """    if idx > 0 and sum(holes[idx - 1]) == start:
        idx -= 1
        start, before = holes.pop(idx)
        size += before
"""

MERGE_HOLE = [
    Wrong("02.3", "joins nothing", says="was not joined",
          edit=((ABOVE, ""), (BELOW, ""))),
    Wrong("02.3", "joins the hole below only", says="The hole above touches",
          edit=((ABOVE, ""),)),
    Wrong("02.3", "joins the hole above only", says="The hole below touches",
          edit=((BELOW, ""),)),
    Wrong("02.3", "joins one neighbour at most", says="touches a hole on both sides",
          edit=(("    if idx > 0", "    elif idx > 0"),)),
    Wrong("02.3", "appends at the end", says="out of order",
          source=MERGE + """
    for hole in list(holes):
        if sum(hole) == start:
            holes.remove(hole)
            start, size = hole[0], hole[1] + size
        elif hole[0] == start + size:
            holes.remove(hole)
            size += hole[1]
    holes.append((start, size))
"""),
    Wrong("02.3", "joins holes that are one slot away", says="nobody has given back",
          source=MERGE + """
    joined = []
    for a, n in sorted([*holes, (start, size)]):
        if joined and a <= sum(joined[-1]) + 1:
            low = joined.pop()[0]
            joined.append((low, a + n - low))
        else:
            joined.append((a, n))
    holes[:] = joined
"""),
    Wrong("02.3", "joins everything", says="nobody has given back",
          source=MERGE + """
    pieces = sorted([*holes, (start, size)])
    low = pieces[0][0]
    holes[:] = [(low, sum(pieces[-1]) - low)]
"""),
    Wrong("02.3", "leaves the joined holes in the list", says="free twice",
          edit=(("size += holes.pop(idx)[1]", "size += holes[idx][1]"),)),
    Wrong("02.3", "forgets the lower start", says="begins at the lower start",
          edit=(("        start, before = holes.pop(idx)", "        _, before = holes.pop(idx)"),)),
    Wrong("02.3", "returns a new list", says="change that list",
          source=MERGE + """
    joined = []
    for a, n in sorted([*holes, (start, size)]):
        if joined and a == sum(joined[-1]):
            low, before = joined.pop()
            a, n = low, before + n
        joined.append((a, n))
    return joined
"""),
    Wrong("02.3", "thinks that there is always a hole below", says="There may be no hole below",
          source=MERGE + """
    idx = [i for i, hole in enumerate(holes) if hole[0] < start][-1] + 1
    if idx < len(holes) and holes[idx][0] == start + size:
        size += holes.pop(idx)[1]
    if sum(holes[idx - 1]) == start:
        idx -= 1
        start, before = holes.pop(idx)
        size += before
    holes.insert(idx, (start, size))
"""),
    Wrong("02.3", "ends one slot early", says="was not joined",
          edit=(("holes[idx][0] == start + size:", "holes[idx][0] == start + size - 1:"),)),
]  # fmt: skip

RESERVED = "sum(min(r.final_len, r.size) - r.num_tokens for r in reservations)"
INTERNAL = "sum(r.size - min(r.final_len, r.size) for r in reservations)"
SCATTERED = "any(largest < need <= total_free for need in waiting)"

WASTE = [
    Wrong("02.4", "all empty slots are internal", says="counted as internal",
          edit=((RESERVED, "0"), (INTERNAL, "sum(r.size - r.num_tokens for r in reservations)"))),
    Wrong("02.4", "all empty slots are reserved", says="counted as reserved",
          edit=((INTERNAL, "0"), (RESERVED, "sum(r.size - r.num_tokens for r in reservations)"))),
    Wrong("02.4", "the final length is not capped", says="no class is negative",
          edit=((RESERVED, "sum(r.final_len - r.num_tokens for r in reservations)"),
                (INTERNAL, "sum(r.size - r.final_len for r in reservations)"))),
    Wrong("02.4", "counts tokens that are not there yet as used", says="holds a token now",
          edit=(("report.used = sum(r.num_tokens for", "report.used = sum(r.final_len for"),)),
    Wrong("02.4", "free slots are always external", says="nobody misses these slots",
          edit=((SCATTERED, "True"),)),
    Wrong("02.4", "external as soon as somebody waits", says="takes the waiting request",
          edit=((SCATTERED, "bool(waiting)"),)),
    Wrong("02.4", "forgets that the total may be too small", says="the memory is full",
          edit=((SCATTERED, "any(need > largest for need in waiting)"),)),
    Wrong("02.4", "only the small holes are external", says="external waste is one class, whole",
          edit=(("total_free if scattered else 0", "total_free - largest if scattered else 0"),
                ("0 if scattered else total_free", "largest if scattered else total_free"))),
    Wrong("02.4", "a request for exactly the total", says="exactly the total",
          edit=(("need <= total_free", "need < total_free"),)),
    Wrong("02.4", "all waiting requests must fail", says="One waiting request is enough",
          edit=((SCATTERED, SCATTERED.replace("any(", "bool(waiting) and all(")),)),
    Wrong("02.4", "the holes are not part of the memory", says="everything that is free",
          edit=(("num_slots=total_free + sum(", "num_slots=sum("),)),
    Wrong("02.4", "max of no holes", says="There may be no holes at all",
          edit=(("max(holes, default=0)", "max(holes)"),)),
]  # fmt: skip

WRONG = SLAB + FIRST_FIT + MERGE_HOLE + WASTE
