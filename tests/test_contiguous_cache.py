"""The arena's invariants, the waste report's classes, and the policies on a seeded trace."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minipaged.contiguous_cache import Arena, first_fit, merge_hole
from minipaged.waste import (
    Request,
    Reservation,
    WasteReport,
    request_trace,
    reservation_size,
    simulate,
)

CLASSES = ("used", "reserved", "internal", "external", "free")


class ArenaMachine(RuleBasedStateMachine):
    """Reserves and releases at random, beside a row of slots that says who owns each."""

    def __init__(self):
        super().__init__()
        self.arena = Arena(40)
        self.owners = [None] * 40

    @rule(n=st.integers(1, 45))
    def reserve(self, n):
        before = list(self.arena.holes)
        start = self.arena.reserve(n)
        fits = [s for s in range(41 - n) if all(o is None for o in self.owners[s : s + n])]
        assert start == (fits[0] if fits else None)
        if start is None:
            assert self.arena.holes == before
        else:
            self.owners[start : start + n] = [start] * n

    @rule(data=st.data())
    def release(self, data):
        if self.arena.sizes:
            start = data.draw(st.sampled_from(sorted(self.arena.sizes)))
            self.arena.release(start)
            self.owners = [None if owner == start else owner for owner in self.owners]

    @rule(start=st.integers(-3, 43))
    def release_of_what_is_not_reserved_changes_nothing(self, start):
        if start not in self.arena.sizes:
            before = list(self.arena.holes)
            with pytest.raises(ValueError, match=str(start)):
                self.arena.release(start)
            assert self.arena.holes == before

    @invariant()
    def holes_are_just_the_free_stretches(self):
        free = {slot for slot, owner in enumerate(self.owners) if owner is None}
        slots = [slot for start, size in self.arena.holes for slot in range(start, start + size)]
        assert sorted(free) == slots
        ends = [start + size for start, size in self.arena.holes]
        assert all(end < start for end, (start, _) in zip(ends, self.arena.holes[1:]))
        assert self.arena.num_free + sum(self.arena.sizes.values()) == 40


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(stateful_step_count=30)


def test_free_slots_in_three_holes_do_not_hold_a_request_for_more_than_one():
    arena = Arena(1000)
    starts = [arena.reserve(n) for n in (200, 100, 200, 100, 200, 200)]
    for start in starts[0:5:2]:
        arena.release(start)
    assert arena.num_free == 600 and arena.reserve(300) is None and arena.reserve(200) == 0


def test_merging_joins_both_neighbours():
    holes = [(0, 4), (8, 4), (20, 1)]
    merge_hole(holes, 4, 4)
    assert holes == [(0, 12), (20, 1)]


def test_first_fit_uses_a_hole_up():
    holes = [(0, 2), (5, 3)]
    assert first_fit(holes, 3) == 5 and holes == [(0, 2)]


@pytest.mark.parametrize("bad", [0, -3])
def test_arena_refuses_sizes_below_one(bad):
    with pytest.raises(ValueError, match=str(bad)):
        Arena(bad)
    with pytest.raises(ValueError, match=str(bad)):
        Arena(5).reserve(bad)


reservation = st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30)).map(
    lambda t: Reservation(size=sum(t), num_tokens=t[0], final_len=t[0] + t[1])
)


@given(st.lists(reservation), st.lists(st.integers(1, 50)), st.lists(st.integers(1, 200)))
def test_every_slot_is_in_exactly_one_class(reservations, holes, waiting):
    report = WasteReport.of(reservations, holes, waiting)
    classes = [getattr(report, name) for name in CLASSES]
    assert sum(classes) == report.num_slots == sum(holes) + sum(r.size for r in reservations)
    assert all(share >= 0 for share in classes)
    assert report.external == 0 or report.free == 0


def test_free_slots_are_external_waste_only_when_scattered():
    holes = [200, 200, 200]
    assert WasteReport.of([], holes, [300]).external == 600
    assert WasteReport.of([], holes, [601]).free == 600
    assert WasteReport.of([], holes, [200]).free == 600
    assert WasteReport.of([], holes, []).free == 600


@pytest.mark.parametrize("seed", [0, 1])
def test_policies_waste_as_they_should_on_a_seeded_trace(seed):
    trace = request_trace(num_requests=150, seed=seed)
    assert trace == request_trace(num_requests=150, seed=seed)
    share = {}
    for policy in ("maximum", "pow2", "oracle", "paged"):
        waste = simulate(trace, policy, num_slots=20_480).waste
        assert sum(getattr(waste, name) for name in CLASSES) == pytest.approx(waste.num_slots)
        share[policy] = waste.used / waste.num_slots
    assert 0.2 < share["maximum"] < 0.34
    assert share["maximum"] < share["pow2"] < share["oracle"] < share["paged"]
    assert share["paged"] > 0.95


def test_equal_slabs_leave_no_misfit_holes():
    waste = simulate(request_trace(80), "maximum", num_slots=10_240).waste
    assert waste.external == 0


def test_a_request_that_can_never_run_is_named():
    with pytest.raises(ValueError, match="prompt_len=90"):
        simulate([Request(90, 20)], "oracle", num_slots=100)
    with pytest.raises(ValueError, match="buddy"):
        reservation_size(Request(1, 1), "buddy", 10)
    with pytest.raises(ValueError, match="nobody waits"):
        simulate([Request(9, 2)], "oracle", num_slots=100)
