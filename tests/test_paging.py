"""Lesson 3's pages and frames."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.paging import AddressSpace, FrameAllocator, PageFault, PageTable, fork_table


def program(num_frames=8, order=None, page_size=4):
    return AddressSpace(
        [None] * (num_frames * page_size), FrameAllocator(num_frames, order), page_size
    )


def test_the_articles_picture():
    table = PageTable(4, {1: 3, 2: 1, 3: 7})
    assert [table.translate(page * 4 + 2) for page in (1, 2, 3)] == [14, 6, 30]
    with pytest.raises(PageFault, match="page 0"):
        table.translate(3)
    with pytest.raises(ValueError, match="-1"):
        table.translate(-1)


def test_first_touch_takes_one_frame_and_later_ones_none():
    space = program(order=[3, 1, 7, 0, 2, 4, 5, 6])
    assert space.write(9, "x") and space.write(10, "y")
    assert space.page_table.frames == {2: 3} and space.allocator.num_free == 7
    assert (space.read(9), space.memory[13]) == ("x", "x")


def test_refused_write_changes_nothing():
    space = program(num_frames=1)
    assert space.write(0, "a")
    before = list(space.memory)
    assert not space.write(4, "b")
    assert space.memory == before and space.page_table.frames == {0: 0}
    child = space.fork()
    assert not child.write(0, "c") and space.read(0) == "a"
    assert space.allocator.ref_counts == [2]


def test_negative_address_is_refused_before_anything_changes():
    space = AddressSpace([None] * 8, FrameAllocator(2), page_size=4)
    with pytest.raises(ValueError, match="-1"):
        space.write(-1, "x")
    assert space.page_table.frames == {} and space.allocator.num_free == 2


def test_child_and_parent_part_at_the_first_write():
    parent = program()
    parent.write(0, "old")
    child = parent.fork()
    assert child.page_table.frames == parent.page_table.frames
    assert child.write(0, "new")
    assert (parent.read(0), child.read(0)) == ("old", "new")
    child.exit()
    parent.exit()
    assert parent.allocator.num_free == 8


def test_fork_table_counts_owners_and_copies_the_table():
    frames = FrameAllocator(4)
    parent = PageTable(2, {0: frames.allocate(), 5: frames.allocate()})
    child = fork_table(parent, frames)
    assert child.frames == parent.frames and frames.ref_counts == [2, 2, 0, 0]
    child.frames[7] = 3
    assert 7 not in parent.frames


def test_frame_freed_too_often_raises():
    frames = FrameAllocator(2)
    frame = frames.allocate()
    frames.free(frame)
    for call in (frames.free, frames.share):
        with pytest.raises(ValueError, match="frame 0"):
            call(frame)
    with pytest.raises(ValueError, match="order"):
        FrameAllocator(2, [0, 0])


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["write", "fork", "exit"]),
            st.integers(0, 15),
            st.integers(0, 99),
        ),
        max_size=40,
    )
)
def test_programs_never_see_each_others_writes(actions):
    memory, frames = [None] * 24, FrameAllocator(6)
    programs = {0: (AddressSpace(memory, frames, 4), {})}
    for who, action, address, value in actions:
        if who in programs:
            space, model = programs[who]
            if action == "write":
                if space.write(address, value):
                    model[address] = value
            elif action == "exit":
                space.exit()
                del programs[who]
            elif (who + 1) % 3 not in programs:
                programs[(who + 1) % 3] = (space.fork(), dict(model))
        for space, model in programs.values():
            assert {a: space.read(a) for a in model} == model
        owners = [f for space, _ in programs.values() for f in space.page_table.frames.values()]
        assert frames.ref_counts == [owners.count(frame) for frame in range(6)]
        assert frames.num_free == frames.ref_counts.count(0)
