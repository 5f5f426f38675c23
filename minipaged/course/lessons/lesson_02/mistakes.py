"""The known wrong solutions of lesson 2."""

from ...kit.mistakes import Mistake

RETURN = "return self.k[layer_idx, : self.num_tokens], self.v[layer_idx, : self.num_tokens]"
WRITE = """        self.k[layer_idx, self.start : self.num_tokens] = k
        self.v[layer_idx, self.start : self.num_tokens] = v
"""

SLAB = [
    Mistake("02.1", "writes from slot 0", edit=(("layer_idx, self.start : self.num_tokens] =", "layer_idx, : len(k)] ="),)),
    Mistake("02.1", "writes after num_tokens", edit=(("layer_idx, self.start : self.num_tokens] =",
                 "layer_idx, self.num_tokens : self.num_tokens + len(k)] ="),)),
    Mistake("02.1", "returns the whole slab", edit=((RETURN, "return self.k[layer_idx], self.v[layer_idx]"),)),
    Mistake("02.1", "returns the new tokens only", edit=((RETURN, "return k, v"),)),
    Mistake("02.1", "leaves the new tokens out", edit=((RETURN, RETURN.replace("num_tokens", "start")),)),
    Mistake("02.1", "joins with torch.cat and leaves the slab empty", edit=((WRITE, ""),
                (RETURN, ("return (torch.cat([self.k[layer_idx, : self.start], k]),\n"
                         "                torch.cat([self.v[layer_idx, : self.start], v]))")))),
    Mistake("02.1", "replaces the slab", edit=((WRITE, "        self.k, self.v = k[None], v[None]\n"),)),
    Mistake("02.1", "writes the keys twice", edit=(("self.num_tokens] = v", "self.num_tokens] = k"),)),
    Mistake("02.1", "counts the tokens again in each layer", edit=((RETURN, "self.start, self.num_tokens = self.num_tokens, "
                         "self.num_tokens + len(k)\n        " + RETURN),)),
    Mistake("02.1", "writes every layer into layer 0", edit=(("self.k[layer_idx, self.start", "self.k[0, self.start"),
                ("self.v[layer_idx, self.start", "self.v[0, self.start"))),
    Mistake("02.1", "returns copies", edit=((RETURN, ("n = self.num_tokens\n        return "
                         "self.k[layer_idx, :n].clone(), self.v[layer_idx, :n].clone()")),)),
    Mistake("02.1", "writes one slot too few", edit=(("layer_idx, self.start : self.num_tokens] =",
                 "layer_idx, self.start : self.num_tokens - 1] ="),)),
]  # fmt: skip

FIT = '''
def first_fit(holes: list[tuple[int, int]], n: int) -> int | None:
    """Take n slots."""
'''
TAKE = "holes[idx : idx + 1] = [(start + n, size - n)] if size > n else []"

FIRST_FIT = [
    Mistake("02.2", "takes the tightest hole", source=FIT + """
    fitting = [(size, idx) for idx, (_, size) in enumerate(holes) if size >= n]
    if not fitting:
        return None
    size, idx = min(fitting)
    start = holes[idx][0]
    holes[idx : idx + 1] = [(start + n, size - n)] if size > n else []
    return start
"""),
    Mistake("02.2", "takes the largest hole", source=FIT + """
    idx = max(range(len(holes)), key=lambda i: holes[i][1], default=None)
    if idx is None or holes[idx][1] < n:
        return None
    start, size = holes[idx]
    holes[idx : idx + 1] = [(start + n, size - n)] if size > n else []
    return start
"""),
    Mistake("02.2", "adds the holes up", source=FIT + """
    if sum(size for _, size in holes) < n:
        return None
    for idx, (start, size) in enumerate(holes):
        if size >= n:
            holes[idx : idx + 1] = [(start + n, size - n)] if size > n else []
            return start
    return holes[0][0]
"""),
    Mistake("02.2", "refuses a hole of exactly n", edit=(("if size >= n:", "if size > n:"),)),
    Mistake("02.2", "leaves a hole of 0 slots", edit=((TAKE, "holes[idx] = (start + n, size - n)"),)),
    Mistake("02.2", "takes the high end", edit=((TAKE, "holes[idx : idx + 1] = [(start, size - n)] if size > n else []"),
                ("return start", "return start + size - n"))),
    Mistake("02.2", "starts the rest where the request starts", edit=(("(start + n, size - n)", "(start, size - n)"),)),
    Mistake("02.2", "returns the index", edit=(("return start", "return idx"),)),
    Mistake("02.2", "returns -1 for no room", edit=(("return None", "return -1"),)),
    Mistake("02.2", "throws small holes away while searching", source=FIT + """
    kept = []
    while holes:
        start, size = holes.pop(0)
        if size >= n:
            holes[:0] = [*kept, (start + n, size - n)] if size > n else kept
            return start
        kept.append((start, size))
    return None
"""),
    Mistake("02.2", "makes a new list", edit=((TAKE, "holes = holes[:idx] + [(start + n, size - n)] + holes[idx + 1 :]"),)),
    Mistake("02.2", "gives the whole hole away", edit=((TAKE, "del holes[idx]"),)),
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
    Mistake("02.3", "joins nothing", edit=((ABOVE, ""), (BELOW, ""))),
    Mistake("02.3", "joins the hole below only", edit=((ABOVE, ""),)),
    Mistake("02.3", "joins the hole above only", edit=((BELOW, ""),)),
    Mistake("02.3", "joins one neighbour at most", edit=(("    if idx > 0", "    elif idx > 0"),)),
    Mistake("02.3", "appends at the end", source=MERGE + """
    for hole in list(holes):
        if sum(hole) == start:
            holes.remove(hole)
            start, size = hole[0], hole[1] + size
        elif hole[0] == start + size:
            holes.remove(hole)
            size += hole[1]
    holes.append((start, size))
"""),
    Mistake("02.3", "joins holes that are one slot away", source=MERGE + """
    joined = []
    for a, n in sorted([*holes, (start, size)]):
        if joined and a <= sum(joined[-1]) + 1:
            low = joined.pop()[0]
            joined.append((low, a + n - low))
        else:
            joined.append((a, n))
    holes[:] = joined
"""),
    Mistake("02.3", "joins everything", source=MERGE + """
    pieces = sorted([*holes, (start, size)])
    low = pieces[0][0]
    holes[:] = [(low, sum(pieces[-1]) - low)]
"""),
    Mistake("02.3", "leaves the joined holes in the list", edit=(("size += holes.pop(idx)[1]", "size += holes[idx][1]"),)),
    Mistake("02.3", "forgets the lower start", edit=(("        start, before = holes.pop(idx)", "        _, before = holes.pop(idx)"),)),
    Mistake("02.3", "returns a new list", source=MERGE + """
    joined = []
    for a, n in sorted([*holes, (start, size)]):
        if joined and a == sum(joined[-1]):
            low, before = joined.pop()
            a, n = low, before + n
        joined.append((a, n))
    return joined
"""),
    Mistake("02.3", "assumes that there is a hole below", source=MERGE + """
    idx = [i for i, hole in enumerate(holes) if hole[0] < start][-1] + 1
    if idx < len(holes) and holes[idx][0] == start + size:
        size += holes.pop(idx)[1]
    if sum(holes[idx - 1]) == start:
        idx -= 1
        start, before = holes.pop(idx)
        size += before
    holes.insert(idx, (start, size))
"""),
]  # fmt: skip

RESERVED = "sum(min(r.final_len, r.size) - r.num_tokens for r in reservations)"
INTERNAL = "sum(r.size - min(r.final_len, r.size) for r in reservations)"
SCATTERED = "any(largest < need <= total_free for need in waiting)"

WASTE = [
    Mistake("02.4", "counts all empty slots as internal", edit=((RESERVED, "0"), (INTERNAL, "sum(r.size - r.num_tokens for r in reservations)"))),
    Mistake("02.4", "counts all empty slots as reserved", edit=((INTERNAL, "0"), (RESERVED, "sum(r.size - r.num_tokens for r in reservations)"))),
    Mistake("02.4", "does not cap the final length", edit=((RESERVED, "sum(r.final_len - r.num_tokens for r in reservations)"),
                (INTERNAL, "sum(r.size - r.final_len for r in reservations)"))),
    Mistake("02.4", "counts tokens that are not there yet as used", edit=(("report.used = sum(r.num_tokens for", "report.used = sum(r.final_len for"),)),
    Mistake("02.4", "always counts free slots as external", edit=((SCATTERED, "True"),)),
    Mistake("02.4", "counts external as soon as anybody waits", edit=((SCATTERED, "bool(waiting)"),)),
    Mistake("02.4", "forgets that the total may be too small", edit=((SCATTERED, "any(need > largest for need in waiting)"),)),
    Mistake("02.4", "counts only the small holes as external", edit=(("total_free if scattered else 0", "total_free - largest if scattered else 0"),
                ("0 if scattered else total_free", "largest if scattered else total_free"))),
    Mistake("02.4", "leaves out a request for exactly the total", edit=(("need <= total_free", "need < total_free"),)),
    Mistake("02.4", "requires every waiting request to fail", edit=((SCATTERED, SCATTERED.replace("any(", "bool(waiting) and all(")),)),
    Mistake("02.4", "leaves the holes out of the memory", edit=(("num_slots=total_free + sum(", "num_slots=sum("),)),
    Mistake("02.4", "takes the maximum of no holes", edit=(("max(holes, default=0)", "max(holes)"),)),
]  # fmt: skip

MISTAKES = SLAB + FIRST_FIT + MERGE_HOLE + WASTE
