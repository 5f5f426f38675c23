"""The checks of lesson 3."""

import re
from typing import Any

from ...kit.checks import Draw, check_for
from ...kit.expecting import NotDone, Words, expect, expect_error, fail, value
from ...kit.subject import Ref, Reply, Subject

FRAMES = "minipaged.paging:FrameAllocator"
SPACE = "minipaged.paging:AddressSpace"
TABLE = "minipaged.paging:PageTable"


# --- 03.1 --------------------------------------------------------------------------------------


@check_for("03.1")
def check_translate(subject: Subject, draw: Draw) -> None:
    """Addresses at the start, the middle and the end of pages; faults; negative addresses."""
    page_size = draw.choice([3, 5, 6])
    pages = draw.sample(range(1, 9), 4)
    frames = draw.sample(range(10, 20), 3) + [0]
    due_frames = dict(zip(pages, frames, strict=True))
    table = subject.new("PageTable", page_size, due_frames)
    for page in pages:  # frame 0 comes last, and offset 0: there, mistakes hide
        for offset in reversed(range(page_size)):
            rule = "address" if due_frames[page] else "frame 0"
            reply = subject.call((table, "translate"), page * page_size + offset)
            expect(value(reply, rule), due_frames[page] * page_size + offset, rule)
    absent = draw.randrange(20, 30)
    offset = draw.randrange(page_size)
    for page, address in ((0, page_size - 1), (0, 0), (absent, absent * page_size + offset)):
        expect_fault(subject.call((table, "translate"), address), page)
    expect(subject.get(table, "frames"), due_frames, "looking up")
    address = -draw.randint(1, page_size)
    expect_error(subject.call((table, "translate"), address), "ValueError", address, "negative")


def expect_fault(reply: Reply, page: int) -> None:
    """Fail unless a call raised a PageFault with the page's number in its text."""
    due = Words(f"a PageFault whose text names page {page}")
    if reply.error is None:
        fail(reply.value, due, "fault")
        return
    if reply.error.kind == "NotImplementedError":
        raise NotDone
    is_fault = reply.error.kind == "Exception"  # PageFault's nearest built-in relative
    if not is_fault or str(page) not in re.findall(r"-?\d+", reply.error.text):
        fail(Words(reply.error), due, "fault names the page" if is_fault else "fault")


# --- 03.2 --------------------------------------------------------------------------------------


class Model:
    """What a program and its memory must look like, kept beside the subject's."""

    def __init__(self, num_frames: int, page_size: int, order: list[int]) -> None:
        self.page_size = page_size
        self.memory: list[Any] = [f"old {cell}" for cell in range(num_frames * page_size)]
        self.frames: dict[int, int] = {}
        self.free = list(order)
        self.owners = [0] * num_frames

    def take(self) -> int:
        frame = self.free.pop(0)
        self.owners[frame] = 1
        return frame

    def put(self, address: int, item: Any) -> None:
        page, offset = divmod(address, self.page_size)
        self.memory[self.frames[page] * self.page_size + offset] = item


@check_for("03.2", needs=(FRAMES,))
def check_write(subject: Subject, draw: Draw) -> None:
    """First and later touches, a neighbour in between, sharing, and running out of frames."""
    page_size, num_frames = draw.choice([3, 5]), 6
    model = Model(num_frames, page_size, draw.permutation(num_frames))
    allocator = subject.new(FRAMES, num_frames, list(model.free))
    space = subject.new("AddressSpace", list(model.memory), allocator, page_size)
    table = subject.get(space, "page_table")

    def state(rules: dict[str, str]) -> None:
        """The whole state, part by part."""
        expect(subject.get(allocator, "free_frames"), model.free, rules["free"])
        expect(by_page(subject.get(table, "frames")), by_page(model.frames), rules["table"])
        expect(subject.get(allocator, "ref_counts"), model.owners, rules["owners"])
        expect(*differing(subject.get(space, "memory"), model.memory), rules["memory"])

    def write(address: int, due: bool, rule: str) -> None:
        item = f"new {address}"
        page = address // page_size
        if due and page not in model.frames:
            model.frames[page] = model.take()
        if due:
            model.put(address, item)
        reply = subject.call((space, "write"), address, item)
        expect(value(reply, rule), due, rule)
        state(WRITTEN if due else dict.fromkeys(WRITTEN, "refused"))

    far = draw.randint(3, 9)
    first = far * page_size + draw.randrange(page_size)
    write(first, True, "first touch")
    rest = [far * page_size + n for n in range(page_size) if far * page_size + n != first]
    for address in draw.sample(rest, len(rest)):
        write(address, True, "later touches")
    model.take()  # another program takes a frame
    subject.call((allocator, "allocate"))
    write(page_size - 1, True, "first touch")
    write(0, True, "later touches")

    # page `far` gets a second owner
    shared = model.frames[far]
    subject.call((allocator, "share"), shared)
    model.owners[shared] += 1
    own = model.take()
    model.owners[shared] -= 1
    start, size = own * page_size, page_size
    model.memory[start : start + size] = model.memory[shared * size : shared * size + size]
    model.frames[far] = own
    write(first, True, "own page")

    expect_error(subject.call((space, "write"), -1, "x"), "ValueError", -1, "negative")
    state(dict.fromkeys(WRITTEN, "negative"))

    # one frame taken, then none is left
    write(11 * page_size, True, "first touch")
    model.take()
    subject.call((allocator, "allocate"))
    write(12 * page_size + 1, False, "refused")
    write(11 * page_size + 1, True, "later touches")
    shared = model.frames[11]
    subject.call((allocator, "share"), shared)
    model.owners[shared] += 1
    write(11 * page_size + 2, False, "own page refused")


# the rule that each part of the state follows after a write
WRITTEN = {"free": "later touches", "table": "table", "owners": "own page", "memory": "memory"}


def by_page(frames: Any) -> Any:
    """A table's frames in the order of the pages: which page came first does not matter."""
    return dict(sorted(frames.items(), key=str)) if isinstance(frames, dict) else frames


def differing(saw: Any, due: list[Any]) -> tuple[Any, Any]:
    """Two memories as {cell: content}, of the cells that differ; whole where they can't be compared
    cell by cell."""
    if not isinstance(saw, list) or len(saw) != len(due):
        return saw, due
    cells = [cell for cell in range(len(due)) if saw[cell] != due[cell]]
    return {cell: saw[cell] for cell in cells}, {cell: due[cell] for cell in cells}


# --- 03.3 --------------------------------------------------------------------------------------


@check_for("03.3", needs=(FRAMES, SPACE, TABLE))
def check_fork_table(subject: Subject, draw: Draw) -> None:
    """Owners after one fork and two; then parent and child part, and end."""
    page_size, num_frames = draw.choice([2, 3, 5]), 9
    order = draw.permutation(num_frames)
    allocator = subject.new(FRAMES, num_frames, order)
    memory = [f"old {cell}" for cell in range(num_frames * page_size)]
    space = subject.new(SPACE, memory, allocator, page_size)
    subject.call((allocator, "allocate"))  # another program's
    pages = draw.sample(range(1, 12), 3)
    for page in pages:
        subject.call((space, "write"), page * page_size, f"page {page}")
    parent = subject.get(space, "page_table")
    due_frames = dict(zip(pages, order[1:4], strict=True))
    owners = [0] * num_frames
    for frame in order[:4]:
        owners[frame] = 1

    children: list[Ref] = []
    for _ in range(2):
        child = value(subject.call("fork_table", parent, allocator), {"ValueError": "owners"})
        if not (isinstance(child, Ref) and child.kind == "PageTable"):
            fail(child, Words("a PageTable"), "child")
            return
        for frame in due_frames.values():
            owners[frame] += 1
        expect(by_page(subject.get(parent, "frames")), by_page(due_frames), "parent")
        expect(by_page(subject.get(child, "frames")), by_page(due_frames), "child")
        expect(subject.get(child, "page_size"), page_size, "child")
        expect(counted(subject.get(allocator, "ref_counts")), counted(owners), "owners")
        expect(subject.get(allocator, "free_frames"), order[4:], "no frame")
        children.append(child)

    # the parent writes a page that the children do not have, and one that they share
    for page in (20, pages[0]):
        subject.call((space, "write"), page * page_size, "later")
        for child in children:
            expect(by_page(subject.get(child, "frames")), by_page(due_frames), "own table")
    subject.call((space, "exit"))
    for child in children:
        for frame in subject.get(child, "frames").values():
            value(subject.call((allocator, "free"), frame), "owners")
    expect(sorted(subject.get(allocator, "free_frames")), sorted(order[1:]), "owners")


def counted(owners: list[int]) -> dict[int, int]:
    """Owners of the frames in use."""
    return {frame: count for frame, count in enumerate(owners) if count}
