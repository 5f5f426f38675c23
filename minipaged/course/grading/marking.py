"""Marks: the notebook's own checks, run here, against definitions that run in a sandbox."""

import random
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ..kit.catalogue import Exercise, catalogue, say
from ..kit.source import NotFound
from ..kit.subject import Error, Message, time_limit
from ..kit.verdicts import SEEDS, Verdict, try_check
from . import submissions
from .channel import Channel, Job, Lost, RemoteSubject, SandboxError
from .sandbox import Sandbox
from .submissions import Contents, Submission
from .view import view
from .words import clean, masked

READING_SECONDS = 20.0


@dataclass(slots=True)
class Outcome:
    """What checking one exercise of a submission came to.

    Attributes:
        status: "passed", "failed", "not done", "missing" (no cell defines it) or "not graded", which
            is a fault of the machine and never of a submission.
        points: of `max_points`; all or none.
        saw: what came back, without the numbers in it.
        mistake: the name of the known mistake that acts as this code does, or None.
        because: what is said of it, or the rule that was broken.
        holds: what a right solution does.
        hint: the first of the exercise's hints, where it failed.
        seed: what the inputs were drawn from; None where nothing ran.
        seconds: that it took.
        full: the verdict with the drawn and the expected values; it is never written to a file.
    """

    id: str
    title: str
    name: str
    status: str
    points: int
    max_points: int
    saw: str = ""
    mistake: str | None = None
    because: str = ""
    holds: str = ""
    hint: str = ""
    seed: int | None = None
    seconds: float = 0.0
    full: Verdict | None = None

    def take(self, verdict: Verdict) -> None:
        """Fill in a verdict."""
        self.status, self.full = verdict.status, verdict
        self.saw, self.mistake = masked(verdict.saw), verdict.mistake
        self.because = clean(verdict.because, 2000)
        self.points = self.max_points if verdict.status == "passed" else 0


@dataclass(slots=True)
class Marks:
    """What one submission came to."""

    student: str
    path: str
    digest: str
    isolation: str
    outcomes: list[Outcome]
    warnings: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    @property
    def score(self) -> int:
        """Points of all exercises."""
        return sum(outcome.points for outcome in self.outcomes)

    @property
    def max_score(self) -> int:
        """What a right submission gets; it depends on the course alone."""
        return sum(outcome.max_points for outcome in self.outcomes)


def exercises_of(lessons: Iterable[str] | None) -> list[Exercise]:
    """The exercises of some lessons, or of all.

    Raises:
        ValueError: naming a lesson that has none; or the whole course has none.
    """
    exercises = list(catalogue().values())
    known = sorted({exercise.lesson for exercise in exercises})
    if not known:
        raise ValueError("the course's catalogue has no exercises")
    if lessons is None:
        return exercises
    wanted = [f"{int(lesson):02d}" if lesson.isdigit() else lesson for lesson in lessons]
    for lesson in wanted:
        if lesson not in known:
            raise ValueError(f"lesson {lesson!r} has no exercises; there are {', '.join(known)}")
    return [exercise for exercise in exercises if exercise.lesson in wanted]


def mark(
    submission: Submission, exercises: list[Exercise], sandbox: Sandbox, seed: int | None = None
) -> Marks:
    """Check a submission's exercises, each in a process of its own."""
    try:
        with at_most(3 * READING_SECONDS):
            contents = submissions.read(submission)
    except (TooSlow, MemoryError, RecursionError) as error:
        contents = Contents(warnings=[f"it could not be read: {error or 'it is too large'}"])
    outcomes = [mark_exercise(exercise, contents, sandbox, seed) for exercise in exercises]
    return Marks(
        student=clean(submission.student, 200),
        path=clean(str(submission.path), 400),
        digest=contents.digest,
        isolation=sandbox.kind,
        outcomes=outcomes,
        warnings=[clean(warning, 300) for warning in contents.warnings[:100]],
        files=[clean(name, 200) for name in contents.files],
    )


class TooSlow(Exception):
    """Reading took longer than any honest submission needs."""


def at_most(seconds: float) -> AbstractContextManager[None]:
    """Raise `TooSlow` in what runs longer; see `time_limit`."""
    return time_limit(seconds, TooSlow(f"it takes longer than {seconds:g} s to read"))


def unmarked(exercise: Exercise, status: str, because: str = "") -> Outcome:
    """An outcome without points."""
    outcome = Outcome(exercise.id, exercise.title, exercise.name, status, 0, exercise.points)
    outcome.holds, outcome.because = exercise.holds, clean(because, 400)
    return outcome


def mark_exercise(
    exercise: Exercise, contents: Contents, sandbox: Sandbox, seed: int | None = None
) -> Outcome:
    """Check one exercise of a submission; warnings are added to the contents'."""
    start = time.monotonic()
    try:
        with at_most(READING_SECONDS):
            found = submissions.find(exercise, contents.cells)
    except NotFound as error:
        return unmarked(exercise, "missing", str(error))
    except Exception as error:  # text made to break those who read it
        return unmarked(exercise, "failed", say("unreadable", error=type(error).__name__))
    contents.warnings += found.warnings
    outcome = unmarked(exercise, "not done")
    if found.stub:
        return outcome
    outcome.seed = random.SystemRandom().getrandbits(48) if seed is None else seed
    name = f"exercise_{exercise.id.replace('.', '_')}"
    job = Job(name, found.extracted.source, view(exercise.id))
    for attempt in (1, 2):
        try:
            outcome.take(run_check(exercise, job, sandbox, outcome.seed))
            break
        except Lost as lost:
            outcome.take(Verdict("failed", saw=str(lost), because=why_lost(str(lost))))
            outcome.saw = str(lost)  # our own words, with the limit in them
            break
        except SandboxError as error:
            outcome.status, outcome.because = "not graded", clean(str(error), 400)
            if attempt == 2 and sandbox.kind == "none":  # there it can end its own parent
                outcome.status = "failed"
    outcome.seconds = round(time.monotonic() - start, 3)
    if outcome.status == "failed":
        outcome.hint = exercise.hints[0]
    return outcome


def run_check(exercise: Exercise, job: Job, sandbox: Sandbox, seed: int) -> Verdict:
    """Load a source in a sandbox and run the check against it.

    It passes for one thing only: the check ran to its end with every seed, on proper replies.

    Raises:
        Lost: there was no proper reply.
        SandboxError: the sandbox does not work.
    """
    with sandbox.open(job) as channel:
        if channel.loaded:
            saw = f"{channel.loaded.name}: {clean(channel.loaded.text)}"
            due, because = say("no exception"), why_not_loaded(channel.loaded)
            return Verdict("failed", say("running alone"), saw, due, because=because)
        counts: list[int] = []  # proper replies to each subject

        def new_subject() -> CountingSubject:
            counts.append(0)
            return CountingSubject(channel, len(counts) - 1, counts)

        verdict = try_check(exercise, new_subject, seed)
        if channel.fault:
            raise SandboxError(channel.fault)
        if channel.broken:
            raise Lost(channel.broken)
        if verdict.status == "passed" and (len(counts) < SEEDS or min(counts) < 1):
            raise SandboxError("the check asked nothing")
        return verdict


def why_not_loaded(error: Error) -> str:
    """What a learner is told whose definition did not even load."""
    if error.kind in ("ImportError", "ModuleNotFoundError") and "minipaged" in error.text:
        return say("not there")
    return say("it does not load")


def why_lost(why: str) -> str:
    """What a learner is told when there was no proper reply."""
    if "longer than" in why:
        return say("lost time")
    return say("lost memory" if "memory" in why else "lost")


class CountingSubject(RemoteSubject):
    """A remote subject that counts its replies."""

    def __init__(self, channel: Channel, number: int, counts: list[int]) -> None:
        super().__init__(channel, number)
        self.counts = counts

    def exchange(self, request: Message) -> Message:
        """Ask, and count."""
        answer = super().exchange(request)
        self.counts[self.number] += 1
        return answer
