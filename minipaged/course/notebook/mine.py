"""The learner's own package, growing: `mine/`, at the root of the project where there is one.

A module there is the package's module with the learner's accepted definitions, and the helpers
they need, in place of the course's. `minipaged.use_mine()` makes the package use them. The
record of what was passed and predicted is kept beside them. MINIPAGED_MINE=off turns all of it off.
"""

import ast
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from minipaged import mine_folder

from ..kit.catalogue import ROOT, Exercise
from ..kit.source import FUTURE, Extracted, Named, find_definition, global_names

FOLDER = mine_folder()


def enabled() -> bool:
    """Whether anything is kept."""
    return os.environ.get("MINIPAGED_MINE", "on") != "off"


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step, so that an interruption leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)


def record() -> dict[str, dict[str, Any]]:
    """What was passed and predicted, by id. A file that cannot be read is put aside, and named."""
    path = FOLDER / "progress.json"
    if not enabled() or not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(entries, dict) and all(isinstance(e, dict) for e in entries.values()):
            return entries
    except ValueError:
        pass
    number = 1
    while (aside := path.with_name(f"progress-unreadable-{number}.json")).exists():
        number += 1
    path.rename(aside)
    print(f"mine/{path.name} could not be read. It is kept as mine/{aside.name}; a new one begins.")
    return {}


def remember(key: str, **values: Any) -> None:
    """Add to the record."""
    if enabled():
        entries = record()
        entries[key] = {**entries.get(key, {}), **values}
        write_atomically(FOLDER / "progress.json", json.dumps(entries, indent=1) + "\n")


def count(exercise_id: str, status: str) -> None:
    """Count a try, up to the first that passes: an exercise once passed stays so."""
    entry = record().get(exercise_id, {})
    if entry.get("status") != "passed":
        remember(exercise_id, status=status, tries=entry.get("tries", 0) + 1)


def accept(exercise: Exercise, extracted: Extracted) -> list[str]:
    """Put an accepted definition into the learner's module.

    Only what differs from the course's own as a syntax tree is the learner's.

    Returns:
        Lines to print.
    """
    if not enabled():
        return []
    path = FOLDER / f"{exercise.module.partition('.')[2]}.py"
    original = (ROOT / "minipaged" / path.name).read_text("utf-8")
    text = path.read_text("utf-8") if path.exists() else original
    try:
        spliced = splice(text, exercise, extracted, original)
    except SyntaxError as error:
        return [f"  It did not join mine/: mine/{path.name}, line {error.lineno}: {error.msg}"]
    except ValueError as error:
        return [f"  It did not join mine/: {error}"]
    if spliced is None:
        return [f"  It is the same code as the course's, so mine/{path.name} needs no change."]
    write_atomically(path, spliced)
    return [f"  It joined mine/{path.name}."]


def splice(text: str, exercise: Exercise, extracted: Extracted, original: str) -> str | None:
    """A module's text with one definition, and what it needs, replaced by the learner's.

    Args:
        text: of the module as it is now.
        original: of the course's module.

    Returns:
        The new text; None when the learner's definition is the course's own.

    Raises:
        ValueError: when a helper has the name of something else in the module.
    """
    if same(definition(original, exercise.name), ast.parse(extracted.target).body[0]):
        return None
    begin, end = f"# yours: {exercise.id}", f"# end of {exercise.id}"
    lines = text.removesuffix("\n").split("\n")
    if begin in lines:
        if end not in lines:
            raise ValueError(f"its line {begin!r} has no line {end!r}.")
        first, last = lines.index(begin), lines.index(end)
    else:
        old = definition(text, exercise.name)
        starts = [old.lineno, *(d.lineno for d in old.decorator_list)]
        first, last = min(starts) - 1, (old.end_lineno or old.lineno) - 1
    rest = ast.parse("\n".join(lines[:first] + lines[last + 1 :]))
    taken = {name: node for node in rest.body for name in global_names(node).bound}
    imports, helpers = [], []
    for need in extracted.needs:
        if need == FUTURE:
            continue
        node = ast.parse(need).body[0]
        bound = global_names(node).bound
        if isinstance(node, ast.Import | ast.ImportFrom):
            known = bound and bound <= taken.keys()  # a star import names nothing
            if not known and getattr(node, "module", "") != exercise.module:
                imports.append(need)
        elif clash := sorted(n for n in bound & taken.keys() if not same(taken[n], node)):
            names = ", ".join(clash)
            raise ValueError(f"{exercise.module} has another {names}: rename yours, check again.")
        else:
            helpers.append(need)
    parts = [*imports, *helpers, extracted.target]
    lines = [*lines[:first], begin, "\n\n\n".join(parts), end, *lines[last + 1 :]]
    if FUTURE in extracted.needs and FUTURE not in lines:
        top = ast.parse(text).body[0]  # the docstring
        lines.insert((top.end_lineno or 0) if isinstance(top, ast.Expr) else 0, FUTURE)
    return "\n".join(lines) + "\n"


def definition(text: str, name: str) -> Named:
    """The top-level function or class of that name; ValueError where there is none."""
    node = find_definition(ast.parse(text), name)
    if node is None:
        raise ValueError(f"the module has no {name}.")
    return node


def same(one: ast.AST, other: ast.AST) -> bool:
    """Whether two definitions differ in their layout only."""
    return ast.dump(one) == ast.dump(other)
