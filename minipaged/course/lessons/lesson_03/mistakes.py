"""Wrong solutions of lesson 3."""

from ...kit.mistakes import Wrong

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

WRONG = [
    # 03.1
    Wrong("03.1", "loses the offset", says="offset", edit=((" + offset", ""),)),
    Wrong(
        "03.1",
        "takes the frame's number for an address",
        says="no address",
        edit=((LOOK_UP, "return self.frames[page] + offset"),),
    ),
    Wrong(
        "03.1",
        "swaps page and offset",
        says="quotient",
        edit=(("page, offset = divmod", "offset, page = divmod"),),
    ),
    Wrong(
        "03.1",
        "lets a missing page be its own frame",
        says="invented",
        edit=((MISSING, ""), ("self.frames[page] *", "self.frames.get(page, page) *")),
    ),
    Wrong("03.1", "lets the KeyError out", says="event of its own", edit=((MISSING, ""),)),
    Wrong(
        "03.1",
        "sends -1 for a fault",
        says="invented",
        edit=(('raise PageFault(f"page {page} has no frame")', "return -1"),),
    ),
    Wrong(
        "03.1",
        "takes frame 0 for no frame",
        says="number 0 is a frame",
        edit=(("if page not in self.frames:", "if not self.frames.get(page):"),),
    ),
    Wrong(
        "03.1",
        "names the address in the fault",
        says="name the page",
        edit=(('f"page {page} has no frame"', 'f"address {virtual_address} has no frame"'),),
    ),
    Wrong(
        "03.1",
        "lets negative addresses be page -1",
        says="page -1",
        edit=(
            ("        if virtual_address < 0:\n", ""),
            ('            raise ValueError(f"address {virtual_address} is negative")\n', ""),
        ),
    ),
    Wrong(
        "03.1",
        "assumes a page size of 4",
        says="page_size",
        edit=(("self.page_size)\n        if page", "4)\n        if page"),),
    ),
    Wrong(
        "03.1",
        "does not ask the table",
        says="table was not asked",
        edit=((LOOK_UP, "return virtual_address"),),
    ),
    Wrong(
        "03.1",
        "gives out a frame at a fault",
        says="invented",
        edit=((MISSING, "        self.frames.setdefault(page, len(self.frames))\n"),),
    ),
    # 03.2
    Wrong(
        "03.2",
        "takes a frame at every write",
        says="has its frame already",
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
    Wrong(
        "03.2",
        "raises when no frame is left",
        says="ordinary answer",
        edit=(
            (
                "if frame is None:\n                return False",
                "if frame is None:\n                raise MemoryError",
            ),
        ),
    ),
    Wrong(
        "03.2",
        "writes at the program's address",
        says="translated address",
        edit=(
            ("self.page_table.translate(virtual_address)]", "virtual_address % len(self.memory)]"),
        ),
    ),
    Wrong(
        "03.2",
        "writes into shared frames",
        says="two owners",
        edit=(
            (
                "if not self.own_page(page):\n                return False\n        else",
                "pass\n        else",
            ),
        ),
    ),
    Wrong(
        "03.2",
        "changes the table before it knows",
        says="changes nothing",
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
    Wrong(
        "03.2",
        "refuses whenever memory is full",
        says="needs no free one",
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
    Wrong(
        "03.2",
        "gives every lower page a frame too",
        says="One frame is taken",
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
    Wrong(
        "03.2",
        "ignores that own_page refused",
        says="two owners",
        edit=(
            (
                "if not self.own_page(page):\n                return False\n        else",
                "self.own_page(page)\n        else",
            ),
        ),
    ),
    Wrong(
        "03.2",
        "forgets to answer",
        says="returns True or False",
        edit=(("] = value\n        return True", "] = value"),),
    ),
    Wrong(
        "03.2",
        "takes the page's number for the frame",
        says="the allocator gave",
        edit=(("self.page_table.frames[page] = frame", "self.page_table.frames[page] = page % 6"),),
    ),
    Wrong(
        "03.2",
        "stores only at the first touch",
        says="translated address",
        edit=(
            ("return False\n        else", "return False\n            return True\n        else"),
        ),
    ),
    Wrong(
        "03.2",
        "waits for a fault that never comes",
        says="exactly one frame",
        edit=((TOUCH, ""),),
    ),
    # 03.3
    Wrong("03.3", "counts no owner", says="not counted", edit=((SHARE, ""),)),
    Wrong(
        "03.3",
        "gives the parent's own table",
        says="table of its own",
        edit=((CHILD, "return parent"),),
    ),
    Wrong(
        "03.3",
        "copies every frame at once",
        says="shares frames",
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
    Wrong(
        "03.3",
        "shares the dict",
        says="table of its own",
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
    Wrong(
        "03.3",
        "counts pages as if they were frames",
        says="no frame's number",
        edit=(("parent.frames.values()", "parent.frames"),),
    ),
    Wrong(
        "03.3",
        "assumes a page size of 4",
        says="as large as the parent's",
        edit=((CHILD, "return PageTable(4, parent.frames)"),),
    ),
    Wrong(
        "03.3",
        "moves the frames to the child",
        says="not moved",
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
    Wrong(
        "03.3",
        "sets two owners instead of adding one",
        says="second fork_table",
        edit=(("allocator.share(frame)", "allocator.ref_counts[frame] = 2"),),
    ),
    Wrong(
        "03.3",
        "numbers the child's pages anew",
        says="page numbers",
        edit=(
            (CHILD, "return PageTable(parent.page_size, dict(enumerate(parent.frames.values())))"),
        ),
    ),
    Wrong(
        "03.3",
        "counts an owner on everybody's frames",
        says="another program",
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
    Wrong(
        "03.3",
        "counts the child twice",
        says="counted twice",
        edit=(
            ("allocator.share(frame)", "allocator.share(frame)\n        allocator.share(frame)"),
        ),
    ),
]
