"""What a submission may see of the package while one exercise is checked.

The given files, the interpreter and the chapters of earlier lessons are there whole. Of the same
lesson there is what the exercises before this one hold and need, and what the lesson's cells use
before this one. The exercise's own object and all later ones are stubs, as in the lesson; later
chapters are not there.
"""

import ast
from collections.abc import Iterable
from functools import cache

from minipaged import CHAPTERS

from ..authoring.cutting import cut
from ..kit.catalogue import PACKAGE, Exercise, catalogue
from ..kit.checks import needs
from ..kit.source import find_definition, global_names, imports

_INIT = '"""The part of the package that this exercise may see."""\n'


@cache
def view(exercise_id: str) -> dict[str, str]:
    """The package as an exercise may see it: texts by path, `minipaged/...`."""
    exercise = catalogue()[exercise_id]
    exercises = list(catalogue().values())
    number = exercises.index(exercise)
    whole = {
        f"minipaged.{name}": (PACKAGE / f"{name}.py").read_text(encoding="utf-8")
        for name, lesson in CHAPTERS.items()
        if lesson <= exercise.lesson
    }
    texts = dict(whole)
    for later in exercises[number:]:
        if later.module in texts:
            texts[later.module] = without(texts[later.module], later)
    shown = {(earlier.module, earlier.name) for earlier in exercises[: number + 1]}
    shown |= set(exercise.shown)
    for other in exercises:
        if other.lesson == exercise.lesson:
            shown |= needs(other.id)
    node = find_definition(ast.parse(whole[exercise.module]), exercise.name)
    assert node is not None
    shown |= {(exercise.module, name) for name in global_names(node).used}
    kept = reach(texts, shown)
    for name, lesson in CHAPTERS.items():
        module = f"minipaged.{name}"
        if lesson == exercise.lesson and module in kept:
            texts[module] = only(texts[module], kept[module])
        elif lesson == exercise.lesson:
            del texts[module]
    seen = {"minipaged/__init__.py": _INIT}
    for folder in ("given", "interpreter"):
        for file in sorted(PACKAGE.glob(f"{folder}/*.py")):
            seen[f"minipaged/{folder}/{file.name}"] = file.read_text(encoding="utf-8")
    return seen | {f"{module.replace('.', '/')}.py": text for module, text in texts.items()}


def without(text: str, exercise: Exercise) -> str:
    """A module's text with an exercise's object replaced by its stub."""
    piece = cut(text, exercise.name, exercise.todo)
    lines = text.split("\n")
    first = piece.line - 1
    height = piece.source.count("\n") + 1
    lines[first : first + height] = piece.stub.split("\n")
    return "\n".join(lines)


def reach(texts: dict[str, str], start: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Everything that some names need, however deep: names by module.

    Statements that bind nothing, which run when a module is imported, need what they use.

    Args:
        texts: the modules that there are.
        start: (module, name) pairs; those of other modules do not count.
    """
    bodies = {
        module: [(node, global_names(node)) for node in ast.parse(text).body]
        for module, text in texts.items()
    }
    kept: dict[str, set[str]] = {}
    waiting = [pair for pair in start if pair[0] in texts]
    while waiting:
        module, name = waiting.pop()
        first = module not in kept
        if name in kept.setdefault(module, set()):
            continue
        kept[module].add(name)
        for node, names in bodies[module]:
            if name in names.bound or (first and not names.bound):
                waiting += [(module, used) for used in names.used]
                for there, original, local in imports(node, "minipaged"):
                    if local == name and there in texts:
                        waiting.append((there, original))
    return kept


def only(text: str, names: set[str]) -> str:
    """A module's text without the definitions, the constants and the imports from the package that
    are not among some names."""
    lines = text.split("\n")
    for node in reversed(ast.parse(text).body):
        first = min(item.lineno for item in (node, *getattr(node, "decorator_list", [])))
        left: list[str] | None = None
        if isinstance(node, ast.ImportFrom) and node.level:
            aliases = [a for a in node.names if (a.asname or a.name) in names]
            if len(aliases) < len(node.names):
                single = ast.ImportFrom(node.module, aliases, node.level)
                left = [ast.unparse(single)] if aliases else []
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            bound = global_names(node).bound
            left = [] if bound and not bound & names else None
        if left is not None:
            lines[first - 1 : node.end_lineno] = left
    return "\n".join(lines)
