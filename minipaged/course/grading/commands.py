"""`minipaged grade` and `minipaged check`."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..kit.catalogue import Exercise, catalogue, say
from ..kit.verdicts import Verdict
from . import batch, results, submissions
from .channel import Limits, SandboxError
from .marking import Marks, Outcome, exercises_of, mark
from .results import FORMATS, Record, not_graded
from .sandbox import KINDS, Sandbox
from .submissions import Submission
from .words import clean

GRADED, COULD_NOT_GRADE, INTERRUPTED = 0, 3, 130  # and 2 for a command that makes no sense
ADVICE = (
    "On Linux, install bubblewrap (apt-get install bubblewrap). In a container that holds one "
    "student and forbids namespaces, start as root with --isolation user. --no-sandbox runs the "
    "learners' code as you, and its results are not official."
)
MARKS = {
    "passed": ("+", "green"),
    "failed": ("-", "red"),
    "not done": (".", "yellow"),
    "missing": (" ", ""),
    "not graded": ("?", "magenta"),
}
WIDE = 160  # columns of an output that is not a terminal
COMMON = (
    click.option(
        "--lesson", "lessons", multiple=True, metavar="NN", help="Only this one; may be repeated."
    ),
    click.option("--isolation", type=click.Choice(KINDS[:2]), help="Default: the best that works."),
    click.option("--no-sandbox", is_flag=True, help="Run learners' code as you; never official."),
    click.option("--seed", type=int, help="Draw the same inputs as a result that has it."),
    click.option(
        "--time-limit",
        type=click.FloatRange(min=1.0, clamp=True),
        default=60.0,
        metavar="S",
        help="Seconds an exercise (60).",
    ),
)


def common(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that both have."""
    for option in reversed(COMMON):
        command = option(command)
    return command


def limits_of(seconds: float) -> Limits:
    """The limits that go with so many seconds an exercise."""
    whole = max(2, int(seconds))
    return Limits(seconds=seconds, call_seconds=min(15.0, seconds), cpu_seconds=whole)


def chosen(lessons: tuple[str, ...]) -> list[Exercise]:
    """The exercises that the options mean."""
    try:
        return exercises_of([n for one in lessons for n in one.split(",")] if lessons else None)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def formats_of(context: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    """The formats that a list of them names."""
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    for name in names:
        if name not in FORMATS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(FORMATS)}")
    return names


@click.command("grade")
@click.argument("paths", nargs=-1, required=True, type=Path, metavar="SUBMISSION...")
@click.option("--out", type=Path, required=True, help="Folder for the results.")
@click.option("--single", is_flag=True, help="Each path is one submission, whatever it holds.")
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count() or 1, metavar="N")
@click.option(
    "--format", "formats", default="json,csv", callback=formats_of, help=f"Of {','.join(FORMATS)}."
)
@click.option("--quiet", is_flag=True, help="No progress and no table.")
@common
def grade_command(
    paths: tuple[Path, ...],
    out: Path,
    single: bool,
    jobs: int,
    formats: tuple[str, ...],
    quiet: bool,
    lessons: tuple[str, ...],
    isolation: str | None,
    no_sandbox: bool,
    seed: int | None,
    time_limit: float,
) -> int:
    """Grade notebooks, folders and zips without trusting them.

    The exit status is 0 when all were graded, whatever their marks.
    """
    exercises = chosen(lessons)
    try:
        items = submissions.find_submissions(list(paths), single)
    except OSError as error:
        raise click.UsageError(str(error)) from None
    whole = out.resolve()  # of an earlier run, in the folder of the submissions
    items = [item for item in items if item.path.is_symlink() or item.path.resolve() != whole]
    if not items:
        raise click.UsageError("there is no submission in it")
    isolation = "none" if no_sandbox else isolation
    jobs = min(jobs, len(items))
    plan = batch.Plan(exercises, out, isolation, jobs, formats, seed, limits_of(time_limit))
    try:
        kind, records = batch.run(items, plan, None if quiet else sys.stderr)
    except SandboxError as error:
        click.echo(f"could not grade: {error}\n{ADVICE}", err=True)
        return COULD_NOT_GRADE
    except OSError as error:
        click.echo(f"could not grade: {error}", err=True)
        return COULD_NOT_GRADE
    except KeyboardInterrupt:
        click.echo("interrupted; the same command goes on from here", err=True)
        return INTERRUPTED
    if not quiet:
        console().print(table(records))
        click.echo("+ passed   - failed   . not done   (blank) missing   ? not graded")
        click.echo(f"isolation: {kind}; results in {out}")
    left = [entry["student"] for entry in records if not_graded(entry)]
    if left:
        click.echo(f"could not grade {len(left)}: {', '.join(left[:10])}", err=True)
        return COULD_NOT_GRADE
    return GRADED


def console() -> Console:
    """Where a command writes; colours are for terminals."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=WIDE)


def table(records: list[Record]) -> Table:
    """Marks by student and exercise."""
    found = Table(box=None, pad_edge=False)
    lessons = sorted({e["id"][:2] for entry in records for e in entry["exercises"]})
    found.add_column("student", no_wrap=True, max_width=40)
    found.add_column("points", justify="right", no_wrap=True)
    for lesson in lessons:
        found.add_column(lesson, no_wrap=True)
    for entry in records:
        row: list[Text | str] = [
            Text(" ".join(entry["student"].split())),
            f"{entry['score']}/{entry['max_score']}",
        ]
        for lesson in lessons:
            here = [e["status"] for e in entry["exercises"] if e["id"].startswith(lesson)]
            row.append(Text.assemble(*(MARKS[status] for status in here)))
        found.add_row(*row)
    return found


@click.command("check")
@click.argument("notebook", type=click.Path(exists=True, path_type=Path))
@click.option("--hints", type=click.IntRange(0, 3), default=1, help="How many (1).")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
@common
def check_command(
    notebook: Path,
    hints: int,
    as_json: bool,
    lessons: tuple[str, ...],
    isolation: str | None,
    no_sandbox: bool,
    seed: int | None,
    time_limit: float,
) -> int:
    """Check a notebook of your own as the grader does, with hints."""
    submission = Submission(submissions.name_of(notebook), notebook)
    exercises = chosen(lessons or lessons_in(submission))
    try:
        with own_sandbox("none" if no_sandbox else isolation, limits_of(time_limit)) as sandbox:
            marks = mark(submission, exercises, sandbox, seed)
    except SandboxError as error:
        click.echo(f"could not check: {error}", err=True)
        return COULD_NOT_GRADE
    if as_json:
        click.echo(json.dumps([verdict_of(outcome) for outcome in marks.outcomes], indent=1))
        for text in marks.warnings:
            click.echo(f"note: {text}", err=True)
    else:
        console().print(report(marks, hints), soft_wrap=True)
    return COULD_NOT_GRADE if not_graded(results.record(marks)) else GRADED


def own_sandbox(isolation: str | None, limits: Limits) -> Sandbox:
    """A sandbox if there is one; one's own code may also run without."""
    if isolation:
        return Sandbox(isolation, limits)
    try:
        return Sandbox("bubblewrap", limits)
    except SandboxError:
        return Sandbox("none", limits)


def lessons_in(submission: Submission) -> tuple[str, ...]:
    """The lessons that a notebook says or shows that it holds.

    Raises:
        click.UsageError: when there is none.
    """
    known = {exercise.id: exercise for exercise in exercises_of(None)}
    contents = submissions.read(submission)
    found = {known[cell.exercise].lesson for cell in contents.cells if cell.exercise in known}
    found = found or {
        exercise.lesson
        for cell in contents.cells
        for exercise in known.values()
        if not cell.markdown and cell.defines(exercise.name)
    }
    if not found:
        said = "; ".join(["it has no exercise of the course", *contents.warnings])
        raise click.UsageError(f"{submission.path.name}: {clean(said)}")
    return tuple(sorted(found))


def verdict_of(outcome: Outcome) -> dict[str, Any]:
    """A verdict as JSON has it, with its exercise."""
    verdict = outcome.full or Verdict(outcome.status, because=outcome.because)
    return {"id": outcome.id, "name": outcome.name, **dataclasses.asdict(verdict)}


def report(marks: Marks, hints: int) -> Text:
    """What a learner reads."""
    text = Text(f"{marks.student}: {marks.score} of {marks.max_score} points\n")
    for warning in marks.warnings:
        text.append(f"  note: {warning}\n", "yellow")
    for outcome in marks.outcomes:
        text.append(f"{outcome.id} {outcome.name}: ")
        text.append(f"{outcome.status}\n", MARKS[outcome.status][1])
        verdict = outcome.full or Verdict(outcome.status, because=outcome.because)
        if outcome.status == "failed":
            rows = [
                (say("what holds"), outcome.holds),
                (say("run again"), verdict.about),
                (say("saw"), verdict.saw),
                (say("expected"), verdict.due),
                (say("your code" if verdict.mistake else "must hold"), verdict.because),
            ]
            ladder = catalogue()[outcome.id].hints[:hints]
            rows += [(f"{say('hint')} {n}", hint) for n, hint in enumerate(ladder, 1)]
        else:
            rows = [("", outcome.holds if outcome.status == "passed" else outcome.because)]
        for label, said in rows:
            for line in clean(said, 2000).split("\n") if said else ():
                text.append(f"  {label:11} " if label else "  ", "bold")
                text.append(f"{line}\n")
                label = " " if label else ""
    text.append(f"isolation: {marks.isolation}; this is a rehearsal, the marks are made elsewhere")
    return text
