"""Lesson 2: what a memory for keys and values is used for, slot by slot, and what is wasted.

Follows `contiguous_cache.py`, whose arena is one of the memories that are compared. Five classes of
waste, traces of requests, policies of reserving, and a simulation of them; the blocks among them
are lesson 4's. Leaves out time: a step of the simulation is a token for each running request.
"""

import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from .contiguous_cache import Arena


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one running request has reserved.

    Attributes:
        size: slots reserved.
        num_tokens: slots that hold a token now.
        final_len: tokens that it will hold when it ends; known only then.
    """

    size: int
    num_tokens: int
    final_len: int


@dataclass(slots=True)
class WasteReport:
    """What every slot of a memory is used for. The five classes sum to `num_slots`.

    Attributes:
        used: holds a token.
        reserved: empty, but its request will fill it.
        internal: reserved by a request that will never fill it.
        external: free, and too scattered for a request that is waiting.
        free: free otherwise.
    """

    num_slots: int
    used: float = 0
    reserved: float = 0
    internal: float = 0
    external: float = 0
    free: float = 0

    @classmethod
    def of(
        cls, reservations: list[Reservation], holes: list[int], waiting: list[int]
    ) -> "WasteReport":
        """Sort every slot of a moment into one of the five classes.

        The free slots are external waste, all of them, when some waiting request needs no more
        than they are together, and more than the largest hole; otherwise they are free.

        Args:
            reservations: of the running requests.
            holes: sizes of the free stretches.
            waiting: slots that each waiting request needs in one piece.

        Returns:
            A report whose num_slots is everything reserved and everything free.
        """
        total_free, largest = sum(holes), max(holes, default=0)
        scattered = any(largest < need <= total_free for need in waiting)
        report = cls(num_slots=total_free + sum(r.size for r in reservations))
        report.used = sum(r.num_tokens for r in reservations)
        report.reserved = sum(min(r.final_len, r.size) - r.num_tokens for r in reservations)
        report.internal = sum(r.size - min(r.final_len, r.size) for r in reservations)
        report.external = total_free if scattered else 0
        report.free = 0 if scattered else total_free
        return report

    @classmethod
    def mean(cls, reports: Sequence["WasteReport"]) -> "WasteReport":
        """The mean over moments of one memory."""
        if not reports:
            raise ValueError("no reports to take the mean of")
        names = [field.name for field in fields(cls) if field.name != "num_slots"]
        means = {n: sum(getattr(r, n) for r in reports) / len(reports) for n in names}
        return cls(reports[0].num_slots, **means)

    @classmethod
    def compare(
        cls,
        requests: Sequence["Request"],
        policies: Iterable[str],
        num_slots: int,
        max_seq_len: int = 2048,
        block_size: int = 16,
    ) -> "Comparison":
        """Serve the same requests under several policies (see `simulate`)."""
        results = {p: simulate(requests, p, num_slots, max_seq_len, block_size) for p in policies}
        return Comparison(results)


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a trace: tokens that come in, and tokens that will go out."""

    prompt_len: int
    output_len: int

    @property
    def final_len(self) -> int:
        """Tokens in all, when it ends."""
        return self.prompt_len + self.output_len


def request_trace(
    num_requests: int = 300,
    seed: int = 0,
    mean_prompt: float = 256.0,
    mean_output: float = 384.0,
    max_seq_len: int = 2048,
) -> list[Request]:
    """Requests with log-normal lengths: many short ones, a few long ones, as services see them.

    Args:
        num_requests: how many.
        seed: the same seed gives the same trace.
        mean_prompt, mean_output: mean lengths in tokens, before they are cut to max_seq_len.
        max_seq_len: no request is longer in all.
    """
    rng = random.Random(seed)

    def length(mean: float, limit: int) -> int:
        sigma = 1.0  # log-normal: the mean is exp(mu + sigma ** 2 / 2)
        return max(1, min(limit, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))

    requests = []
    for _ in range(num_requests):
        prompt_len = length(mean_prompt, max_seq_len // 2)
        requests.append(Request(prompt_len, length(mean_output, max_seq_len - prompt_len)))
    return requests


def reservation_size(request: Request, policy: str, max_seq_len: int) -> int:
    """Slots that a policy reserves, in one piece, when a request arrives.

    - "maximum": what the model could need at most.
    - "pow2": the prompt and the next power of two of the output; looks into the future.
    - "oracle": the prompt and the true output; looks into the future.
    """
    if policy == "maximum":
        return max_seq_len
    if policy == "pow2":
        output_len = 1 << (request.output_len - 1).bit_length()
        return min(max_seq_len, request.prompt_len + output_len)
    if policy == "oracle":
        return request.final_len
    raise ValueError(f"no policy {policy!r}; there are maximum, pow2, oracle and paged")


@dataclass(frozen=True, slots=True)
class Simulation:
    """How a policy served a trace, averaged over the steps in which requests were waiting.

    Attributes:
        waste: mean report.
        num_running: mean number of requests that ran at once.
        num_steps: steps until the last request ended; in a step each running request gets a token.
    """

    waste: WasteReport
    num_running: float
    num_steps: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Simulations of one trace, by policy; prints as a table."""

    results: dict[str, Simulation]

    def __repr__(self) -> str:
        names = [field.name for field in fields(WasteReport) if field.name != "num_slots"]
        lines = [f"{'policy':10}" + "".join(f"{n:>10}" for n in names) + f"{'requests':>10}"]
        for policy, result in self.results.items():
            shares = [getattr(result.waste, n) / result.waste.num_slots for n in names]
            cells = "".join(f"{share:10.1%}" for share in shares)
            lines.append(f"{policy:10}{cells}{result.num_running:10.1f}")
        return "\n".join(lines)


@dataclass(slots=True, eq=False)
class Running:
    """A request that is being served, the tokens it holds, and the piece that it reserved."""

    request: Request
    num_tokens: int
    size: int
    start: int = 0

    @property
    def final_len(self) -> int:
        """Tokens that it will hold at its end."""
        return self.request.final_len

    @property
    def reservation(self) -> Reservation:
        """What it holds now, for the report."""
        return Reservation(self.size, self.num_tokens, self.final_len)


class ContiguousMemory:
    """Reserves a piece of an arena for each request when it arrives."""

    def __init__(self, num_slots: int, policy: str, max_seq_len: int) -> None:
        self.arena, self.policy, self.max_seq_len = Arena(num_slots), policy, max_seq_len

    def most(self, request: Request) -> int:
        """Slots that a request needs at most."""
        return max(request.final_len, reservation_size(request, self.policy, self.max_seq_len))

    def admit(self, request: Request) -> Running | None:
        """Start a request; None when there is no room for it."""
        size = reservation_size(request, self.policy, self.max_seq_len)
        start = self.arena.reserve(size)
        return None if start is None else Running(request, request.prompt_len, size, start)

    def grow(self, running: Running) -> bool:
        """Make room for one more token; False when there is none."""
        running.num_tokens += 1
        return True

    def release(self, running: Running) -> None:
        """Give back what a request holds."""
        self.arena.release(running.start)

    def report(self, running: list[Running], next_request: Request) -> WasteReport:
        """What the slots are used for now."""
        holes = [size for _, size in self.arena.holes]
        need = reservation_size(next_request, self.policy, self.max_seq_len)
        return WasteReport.of([r.reservation for r in running], holes, [need])


class PagedMemory:
    """Takes a block when a request's last one is full. Blocks fit anywhere, so they are counted."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.block_size, self.num_free = block_size, num_slots // block_size

    def most(self, request: Request) -> int:
        """Slots that a request needs at most."""
        return -(-request.final_len // self.block_size) * self.block_size

    def admit(self, request: Request) -> Running | None:
        """Start a request; None when there is no room for it."""
        num_blocks = -(-request.prompt_len // self.block_size)
        if num_blocks > self.num_free:
            return None
        self.num_free -= num_blocks
        return Running(request, request.prompt_len, num_blocks * self.block_size)

    def grow(self, running: Running) -> bool:
        """Make room for one more token; False when there is none."""
        if running.num_tokens == running.size:
            if self.num_free == 0:
                return False
            self.num_free -= 1
            running.size += self.block_size
        running.num_tokens += 1
        return True

    def release(self, running: Running) -> None:
        """Give back what a request holds."""
        self.num_free += running.size // self.block_size

    def report(self, running: list[Running], next_request: Request) -> WasteReport:
        """What the slots are used for now."""
        free = self.num_free * self.block_size
        return WasteReport.of([r.reservation for r in running], [free], [])


def simulate(
    requests: Sequence[Request],
    policy: str,
    num_slots: int,
    max_seq_len: int = 2048,
    block_size: int = 16,
) -> Simulation:
    """Serve a trace first come, first served, as many requests at once as the memory holds.

    "paged" takes a block when a request's last one is full; when none is left, the newest request
    gives its blocks back and starts again later. The other policies are `reservation_size`'s.

    Raises:
        ValueError: naming a policy that does not exist, or a request that can never fit.
    """
    memory: ContiguousMemory | PagedMemory = (
        PagedMemory(num_slots, block_size)
        if policy == "paged"
        else ContiguousMemory(num_slots, policy, max_seq_len)
    )
    for request in requests:
        size = memory.most(request)
        if size > num_slots or request.final_len > max_seq_len:
            raise ValueError(f"{request} needs {size} slots of {num_slots}: it can never run")
    waiting, running = deque(requests), list[Running]()
    reports, counts, num_steps = list[WasteReport](), list[int](), 0
    while waiting or running:
        while waiting and (admitted := memory.admit(waiting[0])):
            running.append(admitted)
            waiting.popleft()
        if waiting:
            reports.append(memory.report(running, waiting[0]))
            counts.append(len(running))
        for grown in list(running):
            while grown in running and not memory.grow(grown):
                newest = running.pop()
                memory.release(newest)
                waiting.appendleft(newest.request)
        for ended in [r for r in running if r.num_tokens >= r.final_len]:
            running.remove(ended)
            memory.release(ended)
        num_steps += 1
    if not reports:
        raise ValueError(f"{num_slots} slots hold all {len(requests)} requests: nobody waits")
    return Simulation(WasteReport.mean(reports), sum(counts) / len(counts), num_steps)
