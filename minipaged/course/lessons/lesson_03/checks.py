"""The checks of lesson 3."""

import re
from collections.abc import Callable
from typing import Any

from ...kit.checking import (CheckFailed, Draw, NotDone, check_for, expect, expect_error, result, show)
from ...kit.subject import Ref, Reply, Subject

FRAMES = "minipaged.paging:FrameAllocator"
SPACE = "minipaged.paging:AddressSpace"
TABLE = "minipaged.paging:PageTable"


# --- 03.1 --------------------------------------------------------------------------------------


@check_for(
    "03.1",
    holds="An address keeps its place within the page; only the page is exchanged for a frame.",
    hints=(
        (
            "An address is two numbers in one: which page it lies in, and how far into the page. The "
            "table knows about the first only."
        ),
        (
            "Physical address = the first address of the page's frame + the offset in the page. A "
            "frame begins at frame * page_size. A page that the table does not have is a fault, and "
            "the table stays as it is."
        ),
        (
            "Refuse a negative address. Then page and offset are the quotient and the remainder of "
            "the address by page_size (divmod gives both). If the page is not in self.frames, raise "
            "PageFault with the page in the text. Else look the frame up, multiply, add."
        ),
    ),
)
def check_translate(subject: Subject, draw: Draw) -> None:
    """Addresses at the start, the middle and the end of pages; faults; negative addresses."""
    page_size = draw.choice([3, 5, 6])
    pages = draw.sample(range(1, 9), 4)
    frames = draw.sample(range(10, 20), 3) + [0]
    due_frames = dict(zip(pages, frames, strict=True))
    table = subject.new("PageTable", page_size, due_frames)
    for page in pages:  # frame 0 comes last, and offset 0: there, mistakes hide
        for offset in reversed(range(page_size)):
            address = page * page_size + offset
            about = (
                f"translate({address}) with page_size {page_size} and the table {due_frames}, "
                f"page {page}, offset {offset}"
            )
            reason = (
                "Page and offset are quotient and remainder by page_size; this page has a frame."
            )
            reason += " A frame with the number 0 is a frame." if due_frames[page] == 0 else ""
            saw = result(
                subject.call((table, "translate"), address),
                about,
                dict.fromkeys(("Exception", "KeyError", "IndexError", "ValueError"), reason),
            )
            frame = due_frames[page]
            due = frame * page_size + offset
            expect(about, saw, due, wrong_address(saw, address, frame, page_size))
    absent = draw.choice([page for page in range(20, 30)])
    offset = draw.randrange(page_size)
    for page, address in ((0, page_size - 1), (0, 0), (absent, absent * page_size + offset)):
        about = f"translate({address}): page {page}, which has no frame"
        expect_fault(about, subject.call((table, "translate"), address), page)
    expect(
        "the table's frames after translating, faults included",
        subject.get(table, "frames"),
        due_frames,
        "Translation only looks up. Who gives a page its frame is another matter.",
    )
    address = -draw.randint(1, page_size)
    expect_error(
        f"translate({address})",
        subject.call((table, "translate"), address),
        "ValueError",
        address,
        "A negative address is the caller's mistake, not a page without a frame: Python divides "
        "it to page -1 without complaint.",
    )


def wrong_address(saw: Any, address: int, frame: int, page_size: int) -> str:
    """The misconception that a wrong physical address comes from."""
    offset = address % page_size
    reasons = (
        (address, "That is the address the program sees: the table was not asked."),
        (frame * page_size, "That is the frame's first address: the offset in the page is lost."),
        (frame + offset, "A frame's number is no address: the frame begins at frame * page_size."),
        (frame, "That is the frame's number, not an address in it."),
    )
    for value, reason in reasons:
        if type(saw) is int and saw == value:
            return reason
    if type(saw) is float:
        return "An address is a whole number: divide with // and %, not with /."
    return "The page is the quotient of the address by the table's page_size, the offset the rest."


def expect_fault(about: str, reply: Reply, page: int) -> None:
    """Fail unless a call raised a PageFault with the page's number in its text."""
    if reply.error and reply.error.kind == "NotImplementedError":
        raise NotDone(about)
    due = f"a PageFault whose text names page {page}"
    if reply.error is None:
        because = "A page without a frame has no physical address: an invented one is read as real."
        raise CheckFailed(about, show(reply.value), due, because)
    saw = str(reply.error)
    if reply.error.kind != "Exception":  # PageFault's nearest built-in relative
        because = "A missing page is an event of its own, PageFault, that the system can catch."
        raise CheckFailed(about, saw, due, because)
    if str(page) not in re.findall(r"-?\d+", reply.error.text):
        because = "The fault must name the page: the system gives frames to pages, not addresses."
        raise CheckFailed(about, saw, due, because)


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

    def put(self, address: int, value: Any) -> None:
        page, offset = divmod(address, self.page_size)
        self.memory[self.frames[page] * self.page_size + offset] = value


@check_for(
    "03.2",
    holds="The first touch of a page takes one frame, later ones none, and a refusal changes "
    "nothing.",
    hints=(
        (
            "Memory is given when it is touched. A page that was touched before has its frame; one "
            "that was not asks for one now."
        ),
        (
            "Three cases: the page has a frame that may be shared (own_page sees to that and may "
            "refuse), it has none and one is free, it has none and none is free. Only when the page "
            "has a frame of its own does anything get written. Return True or False."
        ),
        (
            "Find the page. If self.page_table.frames has it: when self.own_page(page) is False, "
            "return False. Else ask self.allocator.allocate(); for None return False, before you "
            "touch the table; otherwise enter the frame. Then store the value in self.memory at "
            "self.page_table.translate(virtual_address) and return True."
        ),
    ),
)
def check_write(subject: Subject, draw: Draw) -> None:
    """First and later touches, a neighbour in between, sharing, and running out of frames."""
    page_size, num_frames = draw.choice([3, 5]), 6
    model = Model(num_frames, page_size, draw.permutation(num_frames))
    allocator = subject.new(FRAMES, num_frames, list(model.free))
    space = subject.new("AddressSpace", list(model.memory), allocator, page_size)
    table = subject.get(space, "page_table")
    setting = f"page_size {page_size}, {num_frames} frames"

    def state(about: str, because: Callable[[str], str]) -> None:
        """The whole state, part by part."""
        for what, saw, due in (
            ("the free frames", subject.get(allocator, "free_frames"), model.free),
            ("the page table", by_page(subject.get(table, "frames")), by_page(model.frames)),
            ("the frames' owners", subject.get(allocator, "ref_counts"), model.owners),
            ("the memory", *differing(subject.get(space, "memory"), model.memory)),
        ):
            expect(f"{what} after {about}", saw, due, because(what))

    def write(address: int, due: bool, about: str, because: str) -> None:
        value = f"new {address}"
        page = address // page_size
        if due and page not in model.frames:
            model.frames[page] = model.take()
        if due:
            model.put(address, value)
        reply = subject.call((space, "write"), address, value)
        about = f"write({address}, ...), {about}; {setting}"
        raises = {"Exception": because, **RAISES}
        if reply.error is not None and "NoneType" in reply.error.text and due is False:
            raises["TypeError"] = "allocate() gives None when no frame is left: no frame number."
        saw = result(reply, about, raises)
        expect(about, saw, due, because if saw is not None else "write returns True or False.")
        state(about, lambda what: because if because is COPY else WRITES[due, what])

    far = draw.randint(3, 9)
    first = far * page_size + draw.randrange(page_size)
    write(first, True, f"the first touch of page {far}", ONE_FRAME)
    rest = [far * page_size + n for n in range(page_size) if far * page_size + n != first]
    for address in draw.sample(rest, len(rest)):
        write(address, True, f"page {far}, which has its frame", "The page has a frame already.")
    model.take()  # another program takes a frame
    result(subject.call((allocator, "allocate")), "another program's allocate()")
    write(page_size - 1, True, "the first touch of page 0", ONE_FRAME)
    write(
        0, True, "page 0, which has its frame", "The page has a frame already, and 0 is an address."
    )

    # page `far` gets a second owner
    shared = model.frames[far]
    result(subject.call((allocator, "share"), shared), f"another program shares frame {shared}")
    model.owners[shared] += 1
    own = model.take()
    model.owners[shared] -= 1
    start, size = own * page_size, page_size
    model.memory[start : start + size] = model.memory[shared * size : shared * size + size]
    model.frames[far] = own
    write(first, True, f"page {far}, whose frame {shared} has two owners", COPY)

    about = "write(-1, ...), a negative address"
    expect_error(about, subject.call((space, "write"), -1, "x"), "ValueError", -1, NEGATIVE)
    state(about, lambda what: NEGATIVE)

    # one frame taken, then none is left
    write(11 * page_size, True, "the first touch of page 11", ONE_FRAME)
    model.take()
    result(subject.call((allocator, "allocate")), "another program takes the last frame")
    write(12 * page_size + 1, False, "the first touch of page 12, no frame left", NONE_LEFT)
    write(11 * page_size + 1, True, "page 11, which has its frame; no frame left", NO_NEED)
    shared = model.frames[11]
    result(subject.call((allocator, "share"), shared), f"another program shares frame {shared}")
    model.owners[shared] += 1
    write(
        11 * page_size + 2,
        False,
        f"page 11, whose frame {shared} has two owners; no frame left for a copy",
        "own_page may refuse, and then nobody may write: the frame still has two owners.",
    )


def by_page(frames: Any) -> Any:
    """A table's frames in the order of the pages: which page came first does not matter."""
    return dict(sorted(frames.items(), key=str)) if isinstance(frames, dict) else frames


def differing(saw: Any, due: list[Any]) -> tuple[Any, Any]:
    """Two memories as {cell: content}, of the cells that differ; whole where they can't be set
    side by side."""
    if not isinstance(saw, list) or len(saw) != len(due):
        return saw, due
    cells = [cell for cell in range(len(due)) if saw[cell] != due[cell]]
    return {cell: saw[cell] for cell in cells}, {cell: due[cell] for cell in cells}


ONE_FRAME = "The first touch of a page takes exactly one frame: the one that the allocator gives."
COPY = "A frame with two owners must not be written: the other one would see the change."
NONE_LEFT = "No frame is left: the answer is False, and nothing has changed."
NEGATIVE = "A negative address is the caller's mistake: refuse it before anything changes."
NO_NEED = "A page that has its frame needs no free one: the write succeeds."
RAISES = {
    "MemoryError": "Running out of frames is an ordinary answer, False, and no exception.",
    "IndexError": "This address is no place in memory: the page table says where its page lies.",
}
WRITES = {
    (True, "the memory"): "The value must lie at the translated address of this write, and every "
    "other cell must keep its content. A frame with other owners is theirs too.",
    (True, "the page table"): "The table ties each page that was touched, and no other, to the "
    "frame that the allocator gave for it.",
    (True, "the free frames"): "One frame is taken at the first touch of a page, and none when "
    "the page has its frame already.",
    (True, "the frames' owners"): "The allocator keeps the count of owners; own_page sees to it.",
    (False, "the page table"): "A refused write changes nothing: the table was changed before it "
    "was known whether there is a frame.",
    (False, "the memory"): "A refused write changes nothing: the value was stored all the same.",
    (False, "the free frames"): "A refused write changes nothing: a frame was given away or back.",
    (False, "the frames' owners"): "A refused write changes nothing: an owner was counted.",
}


# --- 03.3 --------------------------------------------------------------------------------------


@check_for(
    "03.3",
    holds="The child has a table of its own that names the same frames, and each of them counts "
    "one owner more.",
    hints=(
        (
            "Nothing is copied but the table. What has to change is the knowledge of who uses a "
            "frame, or the first of the two to end would give the other's memory away."
        ),
        (
            "Every frame that the parent's table names gets exactly one owner more; no other frame "
            "changes. The child's table equals the parent's and is another table: changing one "
            "leaves the other."
        ),
        (
            "Go over the frames (the values, not the pages) of parent.frames and call "
            "allocator.share(frame) for each. Return a new PageTable(page_size, frames) with the "
            "parent's page_size and frames: its constructor copies the dict."
        ),
    ),
)
def check_fork_table(subject: Subject, draw: Draw) -> None:
    """Owners after one fork and two; then parent and child part, and end."""
    page_size, num_frames = draw.choice([2, 3, 5]), 9
    order = draw.permutation(num_frames)
    allocator = subject.new(FRAMES, num_frames, order)
    memory = [f"old {cell}" for cell in range(num_frames * page_size)]
    space = subject.new(SPACE, memory, allocator, page_size)
    result(subject.call((allocator, "allocate")), "another program's allocate()")
    pages = draw.sample(range(1, 12), 3)
    for page in pages:
        result(subject.call((space, "write"), page * page_size, f"page {page}"), "a parent's write")
    parent = subject.get(space, "page_table")
    due_frames = dict(zip(pages, order[1:4], strict=True))
    owners = [0] * num_frames
    for frame in order[:4]:
        owners[frame] = 1

    children = []
    for number in ("first", "second"):
        about = (
            f"the {number} fork_table(parent, allocator), with the parent's table {due_frames} "
            f"and the owners {counted(owners)} (frame: owners)"
        )
        child = result(subject.call("fork_table", parent, allocator), about, SHARE_RAISES)
        if not (isinstance(child, Ref) and child.kind == "PageTable"):
            raise CheckFailed(about, show(child), "a PageTable", "The child needs a PageTable.")
        for frame in due_frames.values():
            owners[frame] += 1
        frames = by_page(subject.get(parent, "frames"))
        expect(f"{about}: the parent's frames", frames, by_page(due_frames), PARENT)
        frames = by_page(subject.get(child, "frames"))
        reason = wrong_frames(by_page(due_frames))
        expect(f"{about}: the child's frames", frames, by_page(due_frames), reason)
        expect(
            f"{about}: the child's page_size",
            subject.get(child, "page_size"),
            page_size,
            "The child's pages are as large as the parent's.",
        )
        expect(
            f"{about}: the owners",
            counted(subject.get(allocator, "ref_counts")),
            counted(owners),
            lambda saw: wrong_owners(saw, counted(owners), list(due_frames.values())),
        )
        expect(
            f"{about}: the free frames",
            subject.get(allocator, "free_frames"),
            order[4:],
            "A fork takes no frame: the child shares the parent's.",
        )
        children.append(child)

    # the parent writes a page that the child does not have, and one that they share
    new_page = 20
    for page, what in ((new_page, "new"), (pages[0], "shared")):
        about = f"the parent writes to a {what} page, {page}, after the forks"
        result(subject.call((space, "write"), page * page_size, "later"), about)
        for child in children:
            expect(
                f"{about}: the child's frames",
                by_page(subject.get(child, "frames")),
                by_page(due_frames),
                "The child's table must be a table of its own, not the parent's under another "
                "name: what one does later is no matter of the other.",
            )
    result(subject.call((space, "exit")), "the parent ends", "")
    for child in children:
        for frame in subject.get(child, "frames").values():
            result(subject.call((allocator, "free"), frame), f"a child gives frame {frame} back")
    expect(
        "free frames when the parent and both children have ended",
        sorted(subject.get(allocator, "free_frames")),
        sorted(order[1:]),
        "Each table counts as one owner of each of its frames.",
    )


PARENT = "A fork leaves the parent as it is: the frames are shared, not moved."
SHARE_RAISES = {
    "ValueError": "Only a frame in use can be shared: a page's number is no frame's number.",
}


def counted(owners: list[int]) -> dict[int, int]:
    """Owners of the frames in use."""
    return {frame: count for frame, count in enumerate(owners) if count}


def wrong_frames(due: dict[int, int]) -> Callable[[Any], str]:
    """The misconception that a child's wrong table comes from."""

    def reason(saw: Any) -> str:
        if not isinstance(saw, dict):
            return "A table's frames are a dict from page to frame."
        if sorted(saw.values(), key=str) == sorted(due.values(), key=str):
            return "The child keeps the parent's page numbers: its addresses mean the same."
        if saw.keys() == due.keys():
            return "A fork shares frames; other frames mean that memory was copied or renumbered."
        return "The child has every page of the parent, and no other."

    return reason


def wrong_owners(saw: Any, due: dict[int, int], frames: list[int]) -> str:
    """The misconception that wrong counts come from."""
    shared = [saw.get(frame, 0) - due[frame] for frame in frames]
    if saw.keys() - due.keys():
        return "A frame was taken or counted that the parent's table does not name."
    if any(saw[frame] != due[frame] for frame in saw if frame not in frames):
        return "A frame of another program got an owner: only the parent's frames are shared."
    if all(difference < 0 for difference in shared):
        return "The child was not counted as an owner: when the parent ends, its frames are free."
    if all(difference > 0 for difference in shared):
        return "The child was counted twice: its frames will never be free again."
    return "Each frame of the parent's table gets exactly one owner more."
