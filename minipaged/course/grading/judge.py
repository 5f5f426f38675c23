"""Verdicts: the notebook's own checks, run here, against definitions that run in a sandbox."""

import random
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ..kit.catalogue import Exercise, catalogue
from ..kit.checking import SEEDS, check_of
from ..kit.checking import judge as run_check
from ..kit.source import NotFound
from ..kit.subject import Error, Message, time_limit
from . import submissions
from .channel import Channel, Job, Lost, RemoteSubject, SandboxError
from .sandbox import Sandbox
from .submissions import Contents, Submission
from .view import view
from .words import clean, masked

READING_SECONDS = 20.0
STATUSES = ("passed", "failed", "not done", "missing", "not graded")


@dataclass(slots=True)
class Outcome:
    """What judging one exercise came to.

    Attributes:
        status: one of STATUSES. "not graded" is a fault of the machine, never of a submission.
        points: of `max_points`; all or none.
        what: what was tried, without the numbers that were drawn.
        saw: what came of it, without numbers.
        because: the misconception that it points to.
        hint: the first of the exercise's hints, where it failed.
        seed: what the inputs were drawn from; None where nothing ran.
        full: the failure in the notebook's words, numbers and all; it is never written to a file.
    """

    id: str
    title: str
    name: str
    status: str
    points: int
    max_points: int
    what: str = ""
    saw: str = ""
    because: str = ""
    holds: str = ""
    hint: str = ""
    seed: int | None = None
    seconds: float = 0.0
    full: str = ""


@dataclass(slots=True)
class Grade:
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
        ValueError: naming a lesson that has none.
    """
    exercises = list(catalogue().values())
    if lessons is None:
        return exercises
    wanted = [f"{int(lesson):02d}" if lesson.isdigit() else lesson for lesson in lessons]
    known = sorted({exercise.lesson for exercise in exercises})
    for lesson in wanted:
        if lesson not in known:
            raise ValueError(f"lesson {lesson!r} has no exercises; there are {', '.join(known)}")
    return [exercise for exercise in exercises if exercise.lesson in wanted]


def grade(
    submission: Submission, exercises: list[Exercise], sandbox: Sandbox, seed: int | None = None
) -> Grade:
    """Judge a submission's exercises, each in a process of its own."""
    try:
        with at_most(3 * READING_SECONDS):
            contents = submissions.read(submission)
    except (TooSlow, MemoryError, RecursionError) as error:
        contents = Contents(warnings=[f"it could not be read: {error or 'it is too large'}"])
    outcomes = []
    for exercise in exercises:
        outcomes.append(grade_exercise(exercise, contents, sandbox, seed))
    return Grade(
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


def grade_exercise(
    exercise: Exercise, contents: Contents, sandbox: Sandbox, seed: int | None = None
) -> Outcome:
    """Judge one exercise; warnings are added to the contents'."""
    start = time.monotonic()
    outcome = Outcome(
        id=exercise.id,
        title=exercise.title,
        name=exercise.name,
        status="missing",
        points=0,
        max_points=exercise.points,
        holds=check_of(exercise.id).holds,
    )
    try:
        with at_most(READING_SECONDS):
            found = submissions.find(exercise, contents.cells)
    except NotFound as error:
        outcome.because = clean(str(error), 400)
        return outcome
    except Exception as error:  # text made to break those who read it
        outcome.status = "failed"
        outcome.because = f"The cells could not be read ({type(error).__name__})."
        return outcome
    contents.warnings += found.warnings
    if found.stub:
        outcome.status = "not done"
        return outcome
    outcome.seed = random.SystemRandom().getrandbits(48) if seed is None else seed
    job = Job(
        f"exercise_{exercise.id.replace('.', '_')}", found.extracted.source, view(exercise.id)
    )
    for attempt in (1, 2):
        try:
            judge_job(exercise, job, sandbox, outcome)
            break
        except SandboxError as error:
            outcome.status, outcome.because = "not graded", clean(str(error), 400)
            if attempt == 2 and sandbox.kind == "none":  # there it can end its own parent
                outcome.status = "failed"
    outcome.seconds = round(time.monotonic() - start, 3)
    if outcome.status == "failed":
        outcome.hint = check_of(exercise.id).hints[0]
    return outcome


def judge_job(exercise: Exercise, job: Job, sandbox: Sandbox, outcome: Outcome) -> None:
    """Load a source in a sandbox, run the check against it, and fill the outcome in.

    Points are given for one thing only: the check ran to its end with every seed, on proper
    replies.

    Raises:
        SandboxError: the sandbox does not work.
    """
    assert outcome.seed is not None
    outcome.because = ""  # of an attempt before
    try:
        channel = sandbox.open(job)
    except Lost as lost:
        outcome.status = "failed"
        outcome.what, outcome.saw = "running your definition alone", str(lost)
        outcome.because = lost_because(str(lost))
        return
    with channel:
        if channel.loaded:
            outcome.status = "failed"
            text = clean(f"{channel.loaded.kind}: {channel.loaded.text}", 300)
            outcome.what = "running your definition alone, with what it needs"
            outcome.full = f"{outcome.what}: {text}"
            outcome.saw = masked(text)
            outcome.because = not_loaded_because(channel.loaded)
            return
        seeds: list[int] = []  # proper replies to each
        subjects = Subjects(channel, seeds)
        verdict = run_check(exercise.id, subjects.new, outcome.seed)
        if channel.fault:
            raise SandboxError(channel.fault)
        outcome.status = verdict.status
        if channel.broken:
            outcome.status = "failed"
            outcome.what = "running the check"
            outcome.saw, outcome.because = channel.broken, lost_because(channel.broken)
            outcome.full = f"{outcome.what}: {channel.broken}"
        elif verdict.status == "passed" and (len(seeds) < SEEDS or min(seeds) < 1):
            outcome.status = "not graded"
            outcome.because = "The check asked nothing."
        elif verdict.failure:
            failure = verdict.failure
            outcome.what = masked(failure.about)
            outcome.saw = masked(failure.saw)
            outcome.because = masked(failure.because, exercise.lesson)
            outcome.full = clean(str(failure), 2000)
    if outcome.status == "passed":
        outcome.points = outcome.max_points


def not_loaded_because(error: Error) -> str:
    """What a learner is told whose definition did not even load."""
    if error.kind in ("ImportError", "ModuleNotFoundError") and "minipaged" in error.text:
        return (
            "Your definition imports something of the package that this exercise may not use: the "
            "answers of this and later exercises are not there."
        )
    return "Your cell uses something that no cell defines by an import, def, class or constant."


def lost_because(why: str) -> str:
    """What a learner is told when there was no proper reply."""
    if "longer than" in why:
        return "Your code does not come to an end, or it takes far too long."
    if "memory" in why:
        return "Your code asks for far more memory than the exercise needs."
    return "There was no proper reply, so there is nothing to give points for."


class Subjects:
    """Makes a fresh subject for each seed, and counts the proper replies of each."""

    def __init__(self, channel: Channel, seeds: list[int]) -> None:
        self.channel, self.seeds = channel, seeds

    def new(self) -> "CountingSubject":
        """A subject with no objects."""
        self.seeds.append(0)
        return CountingSubject(self.channel, len(self.seeds) - 1, self.seeds)


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
