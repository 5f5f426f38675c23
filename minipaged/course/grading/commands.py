"""`minipaged grade` and `minipaged check`."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ..authoring.lesson_text import SourceError
from ..kit.catalogue import Exercise
from ..kit.checking import check_of
from . import batch, results, submissions
from .channel import Limits, SandboxError
from .judge import Grade, exercises_of, grade
from .results import FORMATS, Record, not_graded
from .sandbox import KINDS, Sandbox
from .submissions import Submission
from .words import clean

GRADED, USAGE, COULD_NOT_GRADE = 0, 2, 3
ADVICE = (
    "On Linux, install bubblewrap (apt-get install bubblewrap). In a container that holds one "
    "student and forbids namespaces, start as root with --isolation user. --no-sandbox runs the "
    "learners' code as you, and its results are not official."
)


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that both commands have."""
    parser.add_argument("--isolation", choices=KINDS[:2], help="default: the best that works")
    parser.add_argument(
        "--no-sandbox", action="store_true", help="run learners' code as you; never official"
    )
    parser.add_argument("--seed", type=int, help="draw the same inputs as a result that has it")
    parser.add_argument(
        "--time-limit", type=float, default=60.0, metavar="S", help="seconds an exercise (60)"
    )


def limits_of(args: argparse.Namespace) -> Limits:
    """The limits that the options mean."""
    seconds = max(1.0, args.time_limit)
    return Limits(
        seconds=seconds, call_seconds=min(15.0, seconds), cpu_seconds=max(2, int(seconds))
    )


def grade_command(argv: Sequence[str] | None = None) -> int:
    """Grade submissions. The exit status is 0 when all were graded, whatever their marks."""
    parser = argparse.ArgumentParser(
        prog="minipaged grade", description="Grade notebooks without trusting them."
    )
    parser.add_argument("submission", nargs="+", type=Path, help="notebook, folder or zip")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--lesson", action="append", metavar="NN", help="only this one; may stand several times"
    )
    parser.add_argument(
        "--single", action="store_true", help="each path is one submission, whatever it holds"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--format", default="json,csv", help=f"of {','.join(FORMATS)}")
    parser.add_argument("--quiet", action="store_true", help="no progress and no table")
    add_common(parser)
    args = parser.parse_args(argv)
    formats = tuple(name.strip() for name in args.format.split(",") if name.strip())
    for name in formats:
        if name not in FORMATS:
            parser.error(f"format {name!r} is none of {', '.join(FORMATS)}")
    if args.jobs < 1:
        parser.error("--jobs is at least 1")
    try:
        lessons = None if not args.lesson else [n for one in args.lesson for n in one.split(",")]
        exercises = exercises_of(lessons)
        items = submissions.find_submissions(args.submission, args.single)
        out = args.out.resolve()  # of an earlier run, in the folder of the submissions
        items = [item for item in items if item.path.is_symlink() or item.path.resolve() != out]
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if not items:
        parser.error("there is no submission in it")
    if not exercises:
        parser.error("the course has no exercises")
    try:
        plan = batch.Plan(
            exercises=exercises,
            out=args.out,
            isolation="none" if args.no_sandbox else args.isolation,
            jobs=min(args.jobs, len(items)),
            formats=formats,
            seed=args.seed,
            limits=limits_of(args),
        )
        isolation, records = batch.run(items, plan, None if args.quiet else sys.stderr)
    except SandboxError as error:
        print(f"could not grade: {error}\n{ADVICE}", file=sys.stderr)
        return COULD_NOT_GRADE
    except (SourceError, OSError) as error:
        print(f"could not grade: {error}", file=sys.stderr)
        return COULD_NOT_GRADE
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    if not args.quiet:
        print(table(records, exercises))
        print(f"isolation: {isolation}; results in {args.out}")
    left = [entry["student"] for entry in records if not_graded(entry)]
    if left:
        print(f"could not grade {len(left)}: {', '.join(left[:10])}", file=sys.stderr)
        return COULD_NOT_GRADE
    return GRADED


def table(records: list[Record], exercises: list[Exercise]) -> str:
    """Marks by student and exercise, in columns."""
    marks = {"passed": "+", "failed": "-", "not done": ".", "missing": " ", "not graded": "?"}
    names = [re.sub(r"\s", " ", entry["student"]) for entry in records]
    width = min(40, max([len("student"), *map(len, names)]))
    lines = []
    lessons = sorted({exercise.lesson for exercise in exercises})
    head = "  ".join(lesson.ljust(sum(e.lesson == lesson for e in exercises)) for lesson in lessons)
    lines.append(f"{'student':{width}}  points  {head}")
    for name, entry in zip(names, records, strict=True):
        cells = []
        for lesson in lessons:
            cells.append(
                "".join(
                    marks[e["status"]] for e in entry["exercises"] if e["id"].startswith(lesson)
                ).ljust(2)
            )
        points = f"{entry['score']}/{entry['max_score']}"
        name = name if len(name) <= width else name[: width - 1] + "…"
        lines.append(f"{name:{width}}  {points:>6}  {'  '.join(cells)}".rstrip())
    lines.append("+ passed   - failed   . not done   (blank) missing   ? not graded")
    return "\n".join(lines)


def check_command(argv: Sequence[str] | None = None) -> int:
    """Check one's own notebook as the grader does, with feedback and hints."""
    parser = argparse.ArgumentParser(
        prog="minipaged check", description="Run the grader on your own notebook."
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--lesson", action="append", metavar="NN")
    parser.add_argument("--hints", type=int, default=1, choices=(0, 1, 2, 3), help="how many (1)")
    add_common(parser)
    args = parser.parse_args(argv)
    if not args.notebook.exists():
        parser.error(f"there is no {args.notebook}")
    submission = Submission(submissions.name_of(args.notebook), args.notebook)
    try:
        exercises = exercises_of(args.lesson or lessons_in(submission))
    except ValueError as error:
        parser.error(str(error))
    try:
        with own_sandbox(args) as sandbox:
            found = grade(submission, exercises, sandbox, args.seed)
    except SandboxError as error:
        print(f"could not check: {error}", file=sys.stderr)
        return COULD_NOT_GRADE
    print(report(found, args.hints))
    return COULD_NOT_GRADE if not_graded(results.record(found)) else GRADED


def own_sandbox(args: argparse.Namespace) -> Sandbox:
    """A sandbox if there is one; one's own code may also run without."""
    if args.isolation or args.no_sandbox:
        return Sandbox("none" if args.no_sandbox else args.isolation, limits_of(args))
    try:
        return Sandbox("bubblewrap", limits_of(args))
    except SandboxError:
        return Sandbox("none", limits_of(args))


def lessons_in(submission: Submission) -> list[str] | None:
    """The lessons that a notebook says or shows that it holds; None where it is unclear."""
    contents = submissions.read(submission)
    known = {exercise.id: exercise for exercise in exercises_of(None)}
    found = {known[c.exercise].lesson for c in contents.cells if c.exercise in known}
    if not found:
        names = {exercise.name: exercise.lesson for exercise in known.values()}
        found = {
            lesson
            for cell in contents.cells
            for name, lesson in names.items()
            if not cell.markdown and submissions.defines(cell.text, name)
        }
    return sorted(found) or None


def report(found: Grade, hints: int) -> str:
    """What a learner reads."""
    lines = [f"{found.student}: {found.score} of {found.max_score} points"]
    lines += [f"  note: {clean(text)}" for text in found.warnings]
    for outcome in found.outcomes:
        lines.append(f"{outcome.id} {outcome.name}: {outcome.status}")
        if outcome.status == "passed":
            lines.append(f"  {outcome.holds}")
        if outcome.status == "failed":
            lines.append(f"  what holds  {outcome.holds}")
            if outcome.full:
                lines.append(f"  saw         {outcome.full}")
            elif outcome.because:
                lines.append(f"  saw         {outcome.because}")
            ladder = check_of(outcome.id).hints[:hints]
            lines += [f"  hint {number}      {text}" for number, text in enumerate(ladder, 1)]
        elif outcome.because:
            lines.append(f"  {outcome.because}")
    lines.append(f"isolation: {found.isolation}; this is a rehearsal, the marks are made elsewhere")
    return "\n".join(lines)
