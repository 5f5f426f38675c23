"""`check`, `hint` and `progress`: what a notebook asks, and what it prints."""

import ast
import inspect
from typing import Any

from ..kit.catalogue import Exercise, catalogue, exercise_of, say
from ..kit.checks import check_of
from ..kit.mistakes import reference
from ..kit.source import NotFound, ParsedCell, extract
from ..kit.verdicts import SLOW_SECONDS, Verdict, fresh_seed, judge_source
from . import mine


def shell() -> Any:
    """The IPython shell that this runs in, or None."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()


_run: list[str] = []  # cells run since this module was imported

if shell():
    shell().events.register("post_run_cell", lambda done: _run.append(done.info.raw_cell))


def notebook_cells() -> list[str]:
    """The cells that were run in this notebook, oldest first; [] outside of one."""
    if not shell():
        return []
    history = list(shell().history_manager.input_hist_raw)
    return history if any(history) else _run  # nbval runs cells without keeping a history


def is_made_by(candidate: Any, name: str, cells: list[ParsedCell]) -> bool:
    """Whether an object is what the last definition of `name` in some cells made, as far as its name
    and, for a function, its text tell.

    Raises:
        NotFound: when no cell defines it.
    """
    definition = extract(cells, name, {}).target
    made = getattr(candidate, "fn", candidate)  # a kernel is a function with something around it
    if getattr(made, "__name__", None) != name:
        return False
    try:
        source = inspect.getsource(made)
        tree = ast.parse(source)
    except (
        OSError,
        TypeError,
        SyntaxError,
    ):  # not for a notebook's class, or another's at odd lines
        return True
    return ast.dump(tree) == ast.dump(ast.parse(definition))


def check(exercise_id: str, candidate: Any) -> Any:
    """Check an exercise and say what holds and what does not.

    Args:
        exercise_id: "04.1".
        candidate: the learner's object.

    Returns:
        The candidate if it passes, else the course's own object, so that the lesson goes on.
    """
    exercise = exercise_of(exercise_id)
    ours = reference(exercise)
    label = f"{exercise.id} {exercise.name}"
    if candidate is ours:
        print(say("the course's own", label=label))
        return ours
    cells = [ParsedCell(text) for text in notebook_cells()]
    try:
        if not is_made_by(candidate, exercise.name, cells):
            print(say("from elsewhere", label=label, name=exercise.name))
            return ours
        if check_of(exercise_id).slow:
            print(say("running", label=label, seconds=SLOW_SECONDS), flush=True)
        verdict, extracted = judge_source(exercise, cells, fresh_seed())
    except NotFound as error:
        print(f"{label}: {error}")
        return ours
    if verdict.status == "not done":
        print(say("not done", label=label))
        return ours
    mine.count(exercise.id, verdict.status)
    if verdict.status == "failed":
        print(explain(exercise, verdict))
        return ours
    print(say("passed", label=label, holds=exercise.holds))
    for line in mine.accept(exercise, extracted):
        print(line)
    return candidate


def explain(exercise: Exercise, verdict: Verdict) -> str:
    """What a learner reads when a check fails."""
    rows = [
        ("what holds", exercise.holds),
        ("run again", verdict.about),
        ("saw", verdict.saw),
        ("expected", verdict.due),
        ("your code" if verdict.mistake else "must hold", verdict.because),
    ]
    if exercise.id not in _rungs:
        rows.append(("hint", next_hint(exercise)))
    lines = [say("not right yet", label=f"{exercise.id} {exercise.name}")]
    for key, text in rows:
        if text:
            first, *others = text.split("\n")
            lines += [f"  {say(key):11} {first}", *(f"  {'':11} {line}" for line in others)]
    lines.append(f"  {say('more hints', id=exercise.id)}")
    return "\n".join(lines)


_rungs: dict[str, int] = {}  # how many hints were shown


def next_hint(exercise: Exercise) -> str:
    """The next rung of the ladder; the last one again when there are no more."""
    _rungs[exercise.id] = min(_rungs.get(exercise.id, 0) + 1, len(exercise.hints))
    return exercise.hints[_rungs[exercise.id] - 1]


def hint(exercise_id: str, number: int | None = None) -> None:
    """Print a hint: 1 the concept, 2 what must hold, 3 nearly the code; without a number, the next."""
    exercise = exercise_of(exercise_id)
    many = len(exercise.hints)
    if number is not None:
        if not 1 <= number <= many:
            raise ValueError(f"exercise {exercise_id} has hints 1 to {many}, not {number}")
        _rungs[exercise_id] = number - 1
    text = next_hint(exercise)
    print(say("hint of", id=exercise_id, number=_rungs[exercise_id], many=many, text=text))


def progress() -> None:
    """Print what is done, exercise by exercise."""
    record = mine.record()
    for exercise in catalogue().values():
        entry = record.get(exercise.id, {})
        status = say(f"is {entry.get('status', 'not done')}")
        tries = say("tries", number=entry["tries"]) if entry.get("tries") else ""
        print(f"{exercise.id} {exercise.title:40} {status}{tries}")
