"""The known wrong solutions of lesson 3."""

from ...kit.mistakes import Mistake

MISSING = """        if page not in self.frames:
            raise PageFault(f"page {page} has no frame")
"""
LOOK_UP = "return self.frames[page] * self.page_size + offset"

TOUCH = """        if page in self.page_table.frames:
            if not self.own_page(page):
                return False
        else:
            frame = self.allocator.allocate()
            if frame is None:
                return False
            self.page_table.frames[page] = frame
"""
STORE = (
    "        self.memory[self.page_table.translate(virtual_address)] = value\n        return True"
)

SHARE = """    for frame in parent.frames.values():
        allocator.share(frame)
"""
CHILD = "return PageTable(parent.page_size, parent.frames)"

MISTAKES = [
    # 03.1
    Mistake("03.1", "loses the offset", edit=((" + offset", ""),)),
    Mistake(
        "03.1",
        "takes the frame's number for an address",
        edit=((LOOK_UP, "return self.frames[page] + offset"),),
    ),
    Mistake(
        "03.1", "swaps page and offset", edit=(("page, offset = divmod", "offset, page = divmod"),)
    ),
    Mistake(
        "03.1",
        "lets a missing page be its own frame",
        edit=((MISSING, ""), ("self.frames[page] *", "self.frames.get(page, page) *")),
    ),
    Mistake("03.1", "lets the KeyError out", edit=((MISSING, ""),)),
    Mistake(
        "03.1",
        "returns -1 for a fault",
        edit=(('raise PageFault(f"page {page} has no frame")', "return -1"),),
    ),
    Mistake(
        "03.1",
        "takes frame 0 for no frame",
        edit=(("if page not in self.frames:", "if not self.frames.get(page):"),),
    ),
    Mistake(
        "03.1",
        "does not name the page in the fault",
        edit=(('f"page {page} has no frame"', 'f"address {virtual_address} has no frame"'),),
    ),
    Mistake(
        "03.1",
        "lets negative addresses be page -1",
        edit=(
            ("        if virtual_address < 0:\n", ""),
            ('            raise ValueError(f"address {virtual_address} is negative")\n', ""),
        ),
    ),
    Mistake(
        "03.1",
        "assumes a page size of 4",
        edit=(("self.page_size)\n        if page", "4)\n        if page"),),
    ),
    Mistake("03.1", "does not ask the table", edit=((LOOK_UP, "return virtual_address"),)),
    Mistake(
        "03.1",
        "hands out a frame at a fault",
        edit=((MISSING, "        self.frames.setdefault(page, len(self.frames))\n"),),
    ),
    # 03.2
    Mistake(
        "03.2",
        "takes a frame at every write",
        edit=(
            (
                TOUCH,
                (
                    "        frame = self.allocator.allocate()\n"
                    "        if frame is None:\n"
                    "            return False\n"
                    "        self.page_table.frames[page] = frame\n"
                ),
            ),
        ),
    ),
    Mistake(
        "03.2",
        "raises when no frame is left",
        edit=(
            (
                "if frame is None:\n                return False",
                "if frame is None:\n                raise MemoryError",
            ),
        ),
    ),
    Mistake(
        "03.2",
        "writes at the program's address",
        edit=(
            ("self.page_table.translate(virtual_address)]", "virtual_address % len(self.memory)]"),
        ),
    ),
    Mistake(
        "03.2",
        "writes into shared frames",
        edit=(
            (
                "if not self.own_page(page):\n                return False\n        else",
                "pass\n        else",
            ),
        ),
    ),
    Mistake(
        "03.2",
        "changes the table before it knows",
        edit=(
            (
                (
                    "            if frame is None:\n                return False\n"
                    "            self.page_table.frames[page] = frame\n"
                ),
                (
                    "            self.page_table.frames[page] = frame\n"
                    "            if frame is None:\n                return False\n"
                ),
            ),
        ),
    ),
    Mistake(
        "03.2",
        "refuses whenever memory is full",
        edit=(
            (
                "        page = virtual_address",
                (
                    "        if not self.allocator.num_free:\n            return False\n"
                    "        page = virtual_address"
                ),
            ),
        ),
    ),
    Mistake(
        "03.2",
        "gives every lower page a frame too",
        edit=(
            (
                "            self.page_table.frames[page] = frame\n",
                (
                    "            self.page_table.frames[page] = frame\n"
                    "            for lower in range(page):\n"
                    "                if lower not in self.page_table.frames:\n"
                    "                    self.page_table.frames[lower] = self.allocator.allocate()\n"
                ),
            ),
        ),
    ),
    Mistake(
        "03.2",
        "ignores that own_page refused",
        edit=(
            (
                "if not self.own_page(page):\n                return False\n        else",
                "self.own_page(page)\n        else",
            ),
        ),
    ),
    Mistake("03.2", "forgets to answer", edit=(("] = value\n        return True", "] = value"),)),
    Mistake(
        "03.2",
        "takes the page's number for the frame",
        edit=(("self.page_table.frames[page] = frame", "self.page_table.frames[page] = page % 6"),),
    ),
    Mistake(
        "03.2",
        "stores only at the first touch",
        edit=(
            ("return False\n        else", "return False\n            return True\n        else"),
        ),
    ),
    Mistake("03.2", "never gives a page a frame", edit=((TOUCH, ""),)),
    # 03.3
    Mistake("03.3", "counts no owner", edit=((SHARE, ""),)),
    Mistake("03.3", "returns the parent's own table", edit=((CHILD, "return parent"),)),
    Mistake(
        "03.3",
        "copies every frame at once",
        edit=(
            (SHARE, ""),
            (
                CHILD,
                (
                    "return PageTable(parent.page_size, "
                    "{page: allocator.allocate() for page in parent.frames})"
                ),
            ),
        ),
    ),
    Mistake(
        "03.3",
        "shares the dict",
        edit=(
            (
                CHILD,
                (
                    "child = PageTable(parent.page_size)\n    child.frames = parent.frames\n"
                    "    return child"
                ),
            ),
        ),
    ),
    Mistake(
        "03.3",
        "counts pages as if they were frames",
        edit=(("parent.frames.values()", "parent.frames"),),
    ),
    Mistake(
        "03.3", "assumes a page size of 4", edit=((CHILD, "return PageTable(4, parent.frames)"),)
    ),
    Mistake(
        "03.3",
        "moves the frames to the child",
        edit=(
            (
                CHILD,
                (
                    "child = PageTable(parent.page_size, parent.frames)\n"
                    "    parent.frames.clear()\n    return child"
                ),
            ),
        ),
    ),
    Mistake(
        "03.3",
        "sets two owners instead of adding one",
        edit=(("allocator.share(frame)", "allocator.ref_counts[frame] = 2"),),
    ),
    Mistake(
        "03.3",
        "numbers the child's pages anew",
        edit=(
            (CHILD, "return PageTable(parent.page_size, dict(enumerate(parent.frames.values())))"),
        ),
    ),
    Mistake(
        "03.3",
        "counts an owner on everybody's frames",
        edit=(
            (
                SHARE,
                (
                    "    for frame, owners in enumerate(allocator.ref_counts):\n"
                    "        if owners:\n            allocator.share(frame)\n"
                ),
            ),
        ),
    ),
    Mistake(
        "03.3",
        "counts the child twice",
        edit=(
            ("allocator.share(frame)", "allocator.share(frame)\n        allocator.share(frame)"),
        ),
    ),
]
