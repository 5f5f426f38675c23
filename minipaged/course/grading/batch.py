"""Many submissions: several markers at work, results written as they come, nothing that stops it.

Each marker is a process with a sandbox of its own. It gets one submission at a time and may take as
long as its exercises' limits together; then it is killed, and the submission is tried once more.
"""

import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TextIO

from pebble import ProcessExpired, ProcessFuture, ProcessPool
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..kit.catalogue import Exercise, catalogue
from ..notebook.mine import write_atomically
from . import feedback, results, submissions
from .channel import Limits, SandboxError
from .marking import READING_SECONDS, Marks, TooSlow, at_most, mark, unmarked
from .results import Record
from .sandbox import Sandbox, why_not
from .submissions import Submission
from .words import clean

STARTING_SECONDS = 180.0  # that a marker's sandbox may take to start


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch is to do.

    Attributes:
        isolation: one of `sandbox.KINDS`; None is the best official one that works.
        seed: the same for all, to see a verdict again; None draws fresh ones.
    """

    exercises: list[Exercise]
    out: Path
    isolation: str | None = None
    jobs: int = 2
    formats: tuple[str, ...] = ("json", "csv")
    seed: int | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def patience(self) -> float:
        """Seconds after which a marker itself must have gone wrong."""
        return STARTING_SECONDS + 2.2 * self.limits.seconds * len(self.exercises)


def key_of(student: str) -> str:
    """A file name for a student: safe, and no two alike."""
    digest = hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", student).strip("._")[:60]
    plain = stem and stem == student and not re.search(r"-[0-9a-f]{16}$", stem)
    return stem if plain else f"{stem or 'submission'}-{digest}"


def work(
    item: Submission, ids: list[str], isolation: str, limits: Limits, seed: int | None
) -> Record:
    """What a marker does with a submission."""
    os.environ["MINIPAGED_MINE"] = "off"
    exercises = [catalogue()[exercise_id] for exercise_id in ids]
    return results.record(mark(item, exercises, own_sandbox(isolation, limits), seed))


@cache
def own_sandbox(isolation: str, limits: Limits) -> Sandbox:
    """The sandbox of this marker; it ends with the marker."""
    import torch

    torch.set_num_threads(1)
    return Sandbox(isolation, limits)


def run(
    items: list[Submission], plan: Plan, progress: TextIO | None = sys.stderr
) -> tuple[str, list[Record]]:
    """Grade a batch; results are written as they come, and those of an earlier run are kept.

    Returns:
        The kind of isolation, and the records in the order of the items.

    Raises:
        SandboxError: when no marker can start.
    """
    reasons = []
    for kind in [plan.isolation] if plan.isolation else ["bubblewrap", "user"]:
        if kind == "user" and len(items) > 1:
            reasons.append("user: this isolation is for a container that holds one submission")
            continue
        if why := why_not(kind):
            reasons.append(why)
            continue
        try:
            return kind, run_with(items, replace(plan, isolation=kind), progress)
        except SandboxError as error:
            reasons.append(str(error))
    raise SandboxError("; ".join(reasons))


def run_with(items: list[Submission], plan: Plan, progress: TextIO | None) -> list[Record]:
    """The same with the plan's kind of isolation."""
    plan.out.mkdir(parents=True, exist_ok=True)
    records: dict[str, Record] = {}
    waiting: list[Submission] = []
    for item in items:
        known = resumed(item, plan)
        if known is None:
            waiting.append(item)
        else:
            records[item.student] = known
    bar = Bar(len(items), len(records), progress)

    def done(item: Submission, entry: Record) -> None:
        records[item.student] = entry
        write_one(entry, plan, item.student)
        bar.step()

    for item in items:
        if item.student in records:
            write_one(records[item.student], plan, item.student)
    try:
        if waiting:
            attend(waiting, plan, done)
    finally:
        bar.end()
        ordered = [records[item.student] for item in items if item.student in records]
        if ordered:
            doc = results.document(ordered, plan.exercises)
            results.write_all(doc, plan.out, plan.formats)
    return ordered


def write_one(entry: Record, plan: Plan, student: str) -> None:
    """Write all that is one file a submission."""
    key = key_of(student)
    stamped = {"stamp": stamp(plan), **entry}
    write_atomically(plan.out / "submissions" / f"{key}.json", results.as_json(stamped))
    feedback.write(entry, plan.out, key)
    results.write_single(entry, plan.out, key, plan.formats)


def stamp(plan: Plan) -> str:
    """What a result depends on besides its submission."""
    ids = ",".join(exercise.id for exercise in plan.exercises)
    parts = [results.course_digest(), ids, isolation_of(plan), str(plan.seed), str(plan.limits)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def resumed(item: Submission, plan: Plan) -> Record | None:
    """The result of an earlier run, where it holds for the same files, course and options."""
    path = plan.out / "submissions" / f"{key_of(item.student)}.json"
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        if entry.pop("stamp") != stamp(plan) or results.not_graded(entry):
            return None
        with at_most(READING_SECONDS):
            return entry if entry["digest"] == submissions.digest(item) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TooSlow):
        return None


Done = Callable[[Submission, Record], None]
Work = Callable[[Submission, list[str], str, Limits, int | None], Record]


def attend(waiting: list[Submission], plan: Plan, done: Done, work: Work = work) -> None:
    """Mark submissions; what a marker did not come to an end with is tried once more, by others.

    Raises:
        SandboxError: when no sandbox works.
    """
    lost = attempt(waiting, plan, done, work)
    if lost:
        lost = attempt([item for item, _ in lost], plan, done, work)
    for item, why in lost:
        done(item, given_up(item, plan, why))


def attempt(
    items: list[Submission], plan: Plan, done: Done, work: Work
) -> list[tuple[Submission, str]]:
    """Mark submissions with fresh markers; those that no record came of, and why."""
    context = multiprocessing.get_context("spawn")
    ids = [exercise.id for exercise in plan.exercises]
    args = (ids, isolation_of(plan), plan.limits, plan.seed)
    lost: list[tuple[Submission, str]] = []
    refused = 0
    pool = ProcessPool(min(plan.jobs, len(items)), context=context)  # type: ignore[arg-type]
    try:
        futures: dict[ProcessFuture[Record], Submission] = {
            pool.schedule(work, (item, *args), timeout=plan.patience): item for item in items
        }
        for future in concurrent.futures.as_completed(futures):
            item, error = futures[future], future.exception()  # type: ignore[index]
            if error is None:
                done(item, future.result())
                continue
            refused += isinstance(error, SandboxError)
            if refused > 2 or refused == len(items):
                raise error
            lost.append((item, why_lost(error)))
    finally:
        pool.stop()
        pool.join()
    return lost


def why_lost(error: BaseException) -> str:
    """Why a submission has no record, for its instructor."""
    if isinstance(error, TimeoutError):
        return "its marker did not end in time"
    if isinstance(error, ProcessExpired):
        return f"its marker ended, with status {error.exitcode}"
    return f"{type(error).__name__}: {error}"


def given_up(item: Submission, plan: Plan, why: str) -> Record:
    """The record of a submission that no marker came to an end with: no points, and said."""
    outcomes = [unmarked(exercise, "not graded", why) for exercise in plan.exercises]
    found = Marks(clean(item.student, 200), clean(str(item.path)), "", isolation_of(plan), outcomes)
    return results.record(replace(found, warnings=[clean(f"not graded: {why}", 300)]))


def isolation_of(plan: Plan) -> str:
    """The plan's kind of isolation, which is decided by now."""
    assert plan.isolation is not None
    return plan.isolation


class Bar:
    """Says how far it is: a bar with an estimate on a terminal, elsewhere a line for each tenth."""

    def __init__(self, total: int, done: int, out: TextIO | None) -> None:
        self.total, self.count = total, done
        self.out = Console(file=out, quiet=out is None, highlight=False, soft_wrap=True)
        if done:
            self.out.print(f"{done} of {total} are kept from an earlier run")
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("submissions,"))
        self.bar = Progress(
            *columns,
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.out,
            disable=not self.out.is_terminal,
        )
        self.task = self.bar.add_task("", total=total, completed=done)
        self.bar.start()

    def step(self) -> None:
        """One more."""
        self.count += 1
        self.bar.advance(self.task)
        if not self.out.is_terminal:
            if self.count == self.total or self.count % max(1, self.total // 10) == 0:
                self.out.print(f"{self.count}/{self.total} submissions")

    def end(self) -> None:
        """The last of it."""
        self.bar.stop()
