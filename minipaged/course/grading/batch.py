"""Many submissions: several judges at work, results written as they come, nothing that stops it.

Each judge is a process with a sandbox of its own. It gets one submission at a time and may take as
long as its exercises' limits together; then it is replaced, and the submission has no points.
"""

import contextlib
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

from ..kit.catalogue import Exercise, catalogue
from ..notebook.mine import write_atomically
from . import feedback, results, submissions
from .channel import Limits, SandboxError
from .judge import READING_SECONDS, Grade, Outcome, TooSlow, at_most, grade
from .results import Record
from .sandbox import Sandbox, why_not
from .submissions import Submission
from .words import clean


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
        """Seconds after which a judge itself must have gone wrong."""
        return 60 + 2.2 * self.limits.seconds * len(self.exercises)


@dataclass(slots=True)
class Judge:
    """A judge's process, and what it is at work on."""

    process: Any
    pipe: Connection
    item: Submission | None = None
    due: float = 0.0


def key_of(student: str) -> str:
    """A file name for a student: safe, and no two alike."""
    digest = hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", student).strip("._")[:60]
    plain = stem and stem == student and not re.search(r"-[0-9a-f]{16}$", stem)
    return stem if plain else f"{stem or 'submission'}-{digest}"


def work(
    pipe: Connection, ids: list[str], isolation: str, limits: Limits, seed: int | None
) -> None:
    """A judge: grades what comes through the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["MINIPAGED_MINE"] = "off"
    import torch

    torch.set_num_threads(1)
    exercises = [catalogue()[exercise_id] for exercise_id in ids]
    try:
        sandbox = Sandbox(isolation, limits)
    except SandboxError as error:
        pipe.send(("broken", str(error)))
        return
    pipe.send(("ready", None))
    with sandbox, contextlib.suppress(EOFError, ConnectionError):
        while True:
            submission = pipe.recv()
            try:
                pipe.send(("done", results.record(grade(submission, exercises, sandbox, seed))))
            except (EOFError, ConnectionError):
                raise
            except Exception as error:  # a fault of ours must not cost another submission
                pipe.send(("failed", f"{type(error).__name__}: {error}"))


def run(
    items: list[Submission], plan: Plan, progress: TextIO | None = sys.stderr
) -> tuple[str, list[Record]]:
    """Grade a batch; results are written as they come, and those that stand are not made again.

    Returns:
        The kind of isolation, and the records in the order of the items.

    Raises:
        SandboxError: when no judge can start.
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
    waiting: deque[Submission] = deque()
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


def attend(
    waiting: deque[Submission], plan: Plan, done: Callable[[Submission, Record], None]
) -> None:
    """Hand submissions to judges until none is left, and replace judges that go wrong."""
    judges: list[Judge] = []
    retried: set[str] = set()
    broken: list[str] = []
    starts = 0
    try:
        while waiting or any(judge.item for judge in judges):
            while len(judges) < min(plan.jobs, len(waiting) + sum(1 for j in judges if j.item)):
                if len(broken) > 2 or starts > 10 + 3 * len(waiting) + plan.jobs:
                    raise SandboxError(broken[-1] if broken else "judges end again and again")
                judges.append(start_judge(plan))
                starts += 1
            pipes: list[Any] = [judge.pipe for judge in judges]
            ready = multiprocessing.connection.wait(pipes, timeout=1.0)
            for judge in judges[:]:
                why = None
                if judge.pipe in ready:
                    try:
                        kind, value = judge.pipe.recv()
                    except (EOFError, OSError):
                        kind, value = "lost", "its judge ended"
                    if kind == "done":
                        assert judge.item is not None
                        done(judge.item, value)
                        judge.item = None
                    elif kind == "broken":
                        broken.append(value)
                        end_judge(judges, judge)
                        continue
                    elif kind in ("failed", "lost"):
                        why = value
                    if why is None:
                        hand_out(judge, waiting, plan)
                elif judge.due and time.monotonic() > judge.due:
                    why = "its judge did not end in time"
                if why is not None:
                    item, judge.item = judge.item, None
                    end_judge(judges, judge)
                    if item is None:
                        broken.append(str(why))
                    elif item.student in retried:
                        done(item, given_up(item, plan, str(why)))
                    else:
                        retried.add(item.student)
                        waiting.append(item)
            for judge in judges[:]:
                if judge.item is None and not waiting and judge.due == 0.0:
                    end_judge(judges, judge)
    finally:
        for judge in judges[:]:
            end_judge(judges, judge)


def hand_out(judge: Judge, waiting: deque[Submission], plan: Plan) -> None:
    """Give a judge its next submission, if there is one."""
    judge.due = 0.0
    if waiting:
        judge.item = waiting.popleft()
        judge.due = time.monotonic() + plan.patience
        with contextlib.suppress(OSError):  # its end is noticed when nothing comes back
            judge.pipe.send(judge.item)


def start_judge(plan: Plan) -> Judge:
    """A new judge; it says when it is ready."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    ids = [exercise.id for exercise in plan.exercises]
    args = (theirs, ids, isolation_of(plan), plan.limits, plan.seed)
    process = context.Process(target=work, args=args, daemon=True)
    process.start()
    theirs.close()
    return Judge(process, ours, due=time.monotonic() + 180)


def end_judge(judges: list[Judge], judge: Judge) -> None:
    """End a judge's process; its sandbox ends with it."""
    judges.remove(judge)
    judge.pipe.close()
    judge.process.join(0.5 if judge.item is None else 0)
    if judge.process.is_alive():
        judge.process.kill()
        judge.process.join(5)


def given_up(item: Submission, plan: Plan, why: str) -> Record:
    """The record of a submission that no judge came to an end with: no points, and said."""
    outcomes = [
        Outcome(e.id, e.title, e.name, "not graded", 0, e.points, because=clean(why, 300))
        for e in plan.exercises
    ]
    found = Grade(clean(item.student, 200), clean(str(item.path)), "", isolation_of(plan), outcomes)
    return results.record(replace(found, warnings=[clean(f"not graded: {why}", 300)]))


def isolation_of(plan: Plan) -> str:
    """The plan's kind of isolation, which is decided by now."""
    assert plan.isolation is not None
    return plan.isolation


class Bar:
    """A line that says how far it is: on a terminal it grows, elsewhere there are ten of them."""

    def __init__(self, total: int, done: int, out: TextIO | None) -> None:
        self.total, self.count, self.resumed, self.out = total, done, done, out
        self.start = time.monotonic()
        if out and done:
            print(f"{done} of {total} stand from an earlier run", file=out)

    def step(self) -> None:
        """One more."""
        self.count += 1
        if not self.out:
            return
        seconds = time.monotonic() - self.start
        rate = 60 * (self.count - self.resumed) / max(seconds, 1e-3)
        text = f"{self.count}/{self.total} submissions, {rate:.0f} a minute"
        if self.out.isatty():
            filled = 30 * self.count // self.total
            self.out.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {text} ")
        elif self.count == self.total or self.count % max(1, self.total // 10) == 0:
            self.out.write(f"{text}\n")
        self.out.flush()

    def end(self) -> None:
        """The line is done."""
        if self.out and self.out.isatty():
            self.out.write("\n")
