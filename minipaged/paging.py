"""Lesson 3: how an operating system pages memory.

Follows nothing of this package: pages, frames, a page table, translation, allocation on demand and
fork, as the KV cache will borrow them in lesson 4. Leaves out what the cache does not borrow:
swapping to disk, protection between programs, several levels of tables, the hardware that
translates.
"""


class PageFault(Exception):
    """An address in a page that has no frame."""


class FrameAllocator:
    """Hands out frames of physical memory and counts how many page tables use each.

    Args:
        num_frames: frames of memory.
        order: the order in which frames are handed out; default 0, 1, 2 ...

    >>> frames = FrameAllocator(4)
    >>> frames.allocate(), frames.num_free
    (0, 3)
    """

    def __init__(self, num_frames: int, order: list[int] | None = None) -> None:
        self.free_frames = list(range(num_frames)) if order is None else list(order)
        if sorted(self.free_frames) != list(range(num_frames)):
            raise ValueError(f"order {order} does not name each of {num_frames} frames once")
        self.ref_counts = [0] * num_frames

    @property
    def num_free(self) -> int:
        """Frames that nobody uses."""
        return len(self.free_frames)

    def allocate(self) -> int | None:
        """Take the next free frame, with one owner; None when there is none."""
        if not self.free_frames:
            return None
        frame = self.free_frames.pop(0)
        self.ref_counts[frame] = 1
        return frame

    def share(self, frame: int) -> None:
        """Add an owner to a frame in use."""
        self._check_used(frame)
        self.ref_counts[frame] += 1

    def free(self, frame: int) -> None:
        """Take an owner away; the frame is free again when the last one is gone."""
        self._check_used(frame)
        self.ref_counts[frame] -= 1
        if self.ref_counts[frame] == 0:
            self.free_frames.append(frame)

    def _check_used(self, frame: int) -> None:
        if not 0 <= frame < len(self.ref_counts) or self.ref_counts[frame] == 0:
            raise ValueError(f"frame {frame} is not in use")


class PageTable:
    """Ties the pages of one program to frames of memory.

    Attributes:
        page_size: addresses in a page, and in a frame.
        frames: page number -> frame, for the pages that have one.
    """

    def __init__(self, page_size: int, frames: dict[int, int] | None = None) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        self.page_size = page_size
        self.frames = dict(frames or {})

    def translate(self, virtual_address: int) -> int:
        """Turn an address of the program into an address of memory.

        Args:
            virtual_address: counted from 0; the program sees one unbroken range.

        Returns:
            The physical address: also counted from 0, over all frames in a row.

        Raises:
            PageFault: naming the page, when it has no frame.
            ValueError: naming the address, when it is negative.
        """
        if virtual_address < 0:
            raise ValueError(f"address {virtual_address} is negative")
        page, offset = divmod(virtual_address, self.page_size)
        if page not in self.frames:
            raise PageFault(f"page {page} has no frame")
        return self.frames[page] * self.page_size + offset


def fork_table(parent: PageTable, allocator: FrameAllocator) -> PageTable:
    """Give a child the parent's memory without copying it.

    Args:
        parent: unchanged.
        allocator: knows how many owners each frame has; afterwards it counts the child too.

    Returns:
        A page table of the child's own: equal to the parent's now, and free to change later.
    """
    for frame in parent.frames.values():
        allocator.share(frame)
    return PageTable(parent.page_size, parent.frames)


class AddressSpace:
    """The memory of one program: a page table over a memory that all programs share.

    Args:
        memory: one cell an address, shared by every program.
        allocator: hands out the memory's frames.
        page_size: addresses in a page.

    >>> memory = [None] * 32
    >>> program = AddressSpace(memory, FrameAllocator(8, order=[3, 1, 7, 0, 2, 4, 5, 6]), page_size=4)
    >>> program.write(0, "K"), program.write(4, "V"), program.page_table.frames
    (True, True, {0: 3, 1: 1})
    """

    def __init__(self, memory: list[object], allocator: FrameAllocator, page_size: int) -> None:
        if len(memory) < len(allocator.ref_counts) * page_size:
            raise ValueError(
                f"{len(allocator.ref_counts)} frames of {page_size} need "
                f"{len(allocator.ref_counts) * page_size} cells of memory, got {len(memory)}"
            )
        self.memory = memory
        self.allocator = allocator
        self.page_table = PageTable(page_size)

    def read(self, virtual_address: int) -> object:
        """The value at an address; PageFault where nothing was ever written."""
        return self.memory[self.page_table.translate(virtual_address)]

    def write(self, virtual_address: int, value: object) -> bool:
        """Write a value; the first touch of a page gives it a frame.

        A page whose frame has other owners is made this program's own first (`own_page`).

        Args:
            virtual_address: counted from 0.
            value: anything.

        Returns:
            True; False when no frame is left, and then nothing has changed.

        Raises:
            ValueError: naming the address, when it is negative. Then nothing has changed.
        """
        if virtual_address < 0:
            raise ValueError(f"address {virtual_address} is negative")
        page = virtual_address // self.page_table.page_size
        if page in self.page_table.frames:
            if not self.own_page(page):
                return False
        else:
            frame = self.allocator.allocate()
            if frame is None:
                return False
            self.page_table.frames[page] = frame
        self.memory[self.page_table.translate(virtual_address)] = value
        return True

    def own_page(self, page: int) -> bool:
        """Copy on write: give a shared page a frame of its own, with the same content.

        Returns:
            True when the page is this program's own now; False when no frame is left for the copy.
        """
        shared = self.page_table.frames[page]
        if self.allocator.ref_counts[shared] == 1:
            return True
        own = self.allocator.allocate()
        if own is None:
            return False
        size = self.page_table.page_size
        content = self.memory[shared * size : (shared + 1) * size]
        self.memory[own * size : (own + 1) * size] = content
        self.page_table.frames[page] = own
        self.allocator.free(shared)
        return True

    def fork(self) -> "AddressSpace":
        """A child program that shares every frame until one of the two writes."""
        child = AddressSpace(self.memory, self.allocator, self.page_table.page_size)
        child.page_table = fork_table(self.page_table, self.allocator)
        return child

    def exit(self) -> None:
        """End the program: give every frame back."""
        for frame in self.page_table.frames.values():
            self.allocator.free(frame)
        self.page_table.frames.clear()
