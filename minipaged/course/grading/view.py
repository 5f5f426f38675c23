"""What a submission may see of the package while one exercise is judged.

The modules of earlier lessons stand there whole. Of the same lesson there is what the exercises
before this one hold and need, and what the lesson's cells use before this one. The exercise's own object and
all later ones are stubs, as in the lesson; later modules are not there.
"""

import ast
import re
from collections.abc import Callable, Iterable
from functools import cache

from ..authoring.cutting import Definition, cut, find_definition
from ..authoring.lesson_text import read_lesson
from ..kit.catalogue import ROOT, Exercise, catalogue
from ..kit.source import plain_python

PACKAGE = ROOT / "minipaged"
_INIT = '"""The part of the package that this exercise may see."""\n'


@cache
def view(exercise_id: str) -> dict[str, str]:
    """The package as an exercise may see it: texts by path, `minipaged/...`."""
    exercise = catalogue()[exercise_id]
    ids = list(catalogue())
    later = [e for e in catalogue().values() if ids.index(e.id) >= ids.index(exercise_id)]
    texts: dict[str, str] = {}
    same: set[str] = set()
    for file in sorted(PACKAGE.glob("*.py")):
        text = file.read_text(encoding="utf-8")
        lesson = lesson_of(text)
        module = f"minipaged.{file.stem}"
        if lesson is None or lesson > exercise.lesson:
            continue
        for other in later:
            if other.module == module:
                text = without(text, other)
        texts[module] = text
        if lesson == exercise.lesson:
            same.add(module)
    kept = reach(texts, roots(exercise, texts))
    for module in same:
        texts[module] = only(texts[module], kept.get(module, set()))
    for module in sorted(same):
        if not kept.get(module):
            del texts[module]
    texts = {module: without_imports_of(text, set(texts)) for module, text in texts.items()}
    paths = {f"{module.replace('.', '/')}.py": text for module, text in texts.items()}
    return {"minipaged/__init__.py": _INIT, **paths}


def lesson_of(text: str) -> str | None:
    """The number in a module's first line, "04"; None where it names no lesson."""
    found = re.match(r'[ru]*"""Lesson (\d+):', text)
    return f"{int(found[1]):02d}" if found else None


def without(text: str, exercise: Exercise) -> str:
    """A module's text with an exercise's object replaced by its stub."""
    piece = cut(text, exercise.name, exercise.todo)
    lines = text.split("\n")
    first = piece.line - 1
    height = piece.source.count("\n") + 1
    lines[first : first + height] = piece.stub.split("\n")
    return "\n".join(lines)


def roots(exercise: Exercise, texts: dict[str, str]) -> set[tuple[str, str]]:
    """What is shown of the exercise's lesson: (module, name) pairs."""
    found: set[tuple[str, str]] = {(exercise.module, exercise.name)}
    for other in catalogue().values():
        if other.id == exercise.id:
            break
        found.add((other.module, other.name))
    original = (ROOT / f"{exercise.module.replace('.', '/')}.py").read_text(encoding="utf-8")
    node = find_definition(ast.parse(original), exercise.name)
    assert node is not None
    own = {*definitions(original), *imports(ast.parse(original))}
    found |= {(exercise.module, name) for name in mentioned(node) & own}
    for module in texts:
        for name in targets(exercise.lesson, module):
            found.add((module, name))
    return found | used_before(exercise)


def targets(lesson: str, module: str) -> set[str]:
    """The names of a module that the checks of a lesson call for: "minipaged.x:Name"."""
    file = ROOT / "minipaged" / "course" / "checks" / f"lesson_{lesson}.py"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return set(re.findall(rf'"{re.escape(module)}:(\w+)', text))


def used_before(exercise: Exercise) -> set[tuple[str, str]]:
    """What the lesson's own cells import of the package and use before an exercise."""
    found: set[tuple[str, str, str]] = set()
    used: set[str] = set()
    for fence in read_lesson(exercise.file).fences:
        if fence.line >= exercise.line:
            break
        for node in ast.parse(plain_python(fence.code)).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minipaged."):
                found |= {(node.module or "", a.name, a.asname or a.name) for a in node.names}
            else:
                used |= mentioned(node)
    return {(module, name) for module, name, local in found if local in used}


def definitions(text: str) -> dict[str, Definition]:
    """The top-level functions and classes of a module."""
    return {node.name: node for node in ast.parse(text).body if isinstance(node, Definition)}


def bound(node: ast.stmt) -> set[str]:
    """The names that a top-level statement binds, unless it is an import."""
    if isinstance(node, Definition):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return set()
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def mentioned(node: ast.AST) -> set[str]:
    """Every name in a piece of code, quoted annotations included."""
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            if part.value.isidentifier():
                found.add(part.value)
    return found


def reach(texts: dict[str, str], start: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Everything that some names need, however deep: names by module.

    Statements that bind nothing, which run when a module is imported, need what they mention.
    """
    trees = {module: ast.parse(text) for module, text in texts.items()}
    sources = {module: imports(tree) for module, tree in trees.items()}
    kept: dict[str, set[str]] = {}
    waiting = [pair for pair in start if pair[0] in texts]
    while waiting:
        module, name = waiting.pop()
        if module not in kept:
            kept[module] = set()
            for node in trees[module].body:
                if not bound(node) and not isinstance(node, ast.ImportFrom):
                    waiting += [(module, used) for used in mentioned(node)]
        if name in kept[module]:
            continue
        kept[module].add(name)
        for node in trees[module].body:
            if name in bound(node):
                waiting += [(module, used) for used in mentioned(node)]
        if name in sources[module] and sources[module][name][0] in texts:
            waiting.append(sources[module][name])
    return kept


def imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """The names that a module imports from the package: name -> (module, name there)."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for alias in node.names:
                place = f"minipaged.{node.module or alias.name}"
                found[alias.asname or alias.name] = (place, alias.name if node.module else "")
    return found


def only(text: str, names: set[str]) -> str:
    """A module's text without the definitions and constants that are not among some names, and
    without the imports from the package that nothing needs any more."""
    lines = text.split("\n")
    for node in reversed(ast.parse(text).body):
        if bound(node) and not bound(node) & names:
            first = min(item.lineno for item in (node, *getattr(node, "decorator_list", [])))
            del lines[first - 1 : node.end_lineno]
    rest = ast.parse("\n".join(lines))
    used = {name for node in rest.body for name in mentioned(node)} | names
    return _drop_aliases("\n".join(lines), lambda module, name: name in used)


def without_imports_of(text: str, there: set[str]) -> str:
    """A module's text without imports from modules of the package that are not there."""
    return _drop_aliases(text, lambda module, name: f"minipaged.{module}" in there)


def _drop_aliases(text: str, keep: Callable[[str, str], bool]) -> str:
    lines = text.split("\n")
    for node in reversed(ast.parse(text).body):
        if not (isinstance(node, ast.ImportFrom) and node.level == 1 and node.module):
            continue
        aliases = [a for a in node.names if keep(node.module, a.asname or a.name)]
        if len(aliases) < len(node.names):
            single = ast.ImportFrom(node.module, aliases, 1)
            lines[node.lineno - 1 : node.end_lineno] = [ast.unparse(single)] if aliases else []
    return "\n".join(lines)
