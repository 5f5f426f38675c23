"""Takes one definition, and all that it needs, out of the cells of a notebook.

Notebook, tests and grader use this one way: the last definition of the exercise's name, with the
imports, functions, classes and constants that it needs, however deep, as the text of a module.
"""

import ast
import builtins
import io
import re
import symtable
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field


class NotFound(Exception):
    """No cell defines the name; the message says what there is instead."""


@dataclass(slots=True)
class Definition:
    """A top-level statement that binds a name: where, and its text without decorators lost."""

    node: ast.stmt
    text: str


@dataclass(slots=True)
class Extracted:
    """A definition with what it needs.

    Attributes:
        name: the exercise's object.
        target: the text of its definition.
        needs: texts of the other statements, in an order that works.
        notes: what a reader should be told, such as cells that could not be read.
    """

    name: str
    target: str
    needs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def source(self) -> str:
        """The text of a module."""
        return "\n\n\n".join([*self.needs, self.target]) + "\n"


_RUNS_THE_REST = re.compile(r"\A\s*%%(time|capture|prun)\b.*")  # what follows is Python
_PROMPTS = (  # how the first line begins, and how any does
    (r">>>( |$)", r"(>>>|\.\.\.)( |$)"),
    (r"In \[\d+\]: ", r"(In \[\d+\]: |\s*\.{3,}: ?)"),
)
_IPYTHON = re.compile(r"(\s*)([%!?]|[\w, ]+=\s*[%!]|[^#\"'=]+\?\s*$)")


def plain_python(cell: str) -> str:
    """A cell's text with IPython's own lines (%magic, !command, help?) made `pass`, and without what
    IPython takes away: the indentation of all of it, and pasted prompts."""
    cell = _RUNS_THE_REST.sub("", cell)
    cell = re.sub(r"\A(?:[ \t]*\n)+", lambda empty: "\n" * empty[0].count("\n"), cell)
    if prefix := re.match(r"\n*([ \t]+)", cell):
        cell = re.sub(rf"(?m)^{prefix[1]}", "", cell)
    for first, prompt in _PROMPTS:
        if re.match(rf"\n*{first}", cell):
            cell = re.sub(rf"(?m)^{prompt}", "", cell)
    if cell.lstrip().startswith("%%"):
        return ""
    lines = cell.split("\n")
    for idx, line in enumerate(lines):
        found = _IPYTHON.match(line)
        if found and not unfinished("\n".join(lines[:idx])):
            lines[idx] = f"{found[1]}pass"
    return "\n".join(lines)


def unfinished(text: str) -> bool:
    """Whether a text ends inside a string or a bracket, so that its next line goes on with it."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO(text).readline):
            pass
    except tokenize.TokenError as error:
        return "multi-line" in str(error) or "triple-quoted" in str(error)
    except SyntaxError:
        return False
    return text.endswith("\\")


def definitions(cells: Iterable[str], notes: list[str] | None = None) -> dict[str, Definition]:
    """The last definition of each name in some cells.

    Args:
        cells: texts, in the order in which they count.
        notes: gets a line for each cell that is not Python.
    """
    found: dict[str, Definition] = {}
    for number, cell in enumerate(cells, start=1):
        text = plain_python(io.StringIO(cell, newline=None).read())
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if notes is not None:
                notes.append(f"cell {number} was left out, it is not Python: {error}")
            continue
        lines = [line + "\n" for line in text.split("\n")]  # as ast counts them
        for node in body:
            try:
                found.update(bound_names(node, lines))
            except (ValueError, RecursionError) as error:  # a number or a nesting without end
                if notes is not None:
                    notes.append(f"line {node.lineno} of cell {number} was left out: {error}")
    return found


def bound_names(node: ast.stmt, lines: list[str]) -> Iterable[tuple[str, Definition]]:
    """The names that a top-level statement defines for good: no results of calls, but for a few
    calls that only make a constant or a type."""
    if isinstance(node, Named):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        text = "".join(lines[first - 1 : node.end_lineno]).rstrip()
        yield node.name, Definition(node, text)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            single = type(node)(**{**dict(ast.iter_fields(node)), "names": [alias]})
            bound = alias.asname or alias.name.split(".")[0]
            if alias.name == "*":
                bound = f"* of {getattr(node, 'module', '')}"
            yield bound, Definition(node, ast.unparse(single))
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        if is_constant(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assignment = Definition(node, ast.unparse(node))
            for target in targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        yield part.id, assignment
    elif isinstance(node, ast.If | ast.Try):
        inner = list(branches(node))
        if all(isinstance(part, (*Named, ast.Import, ast.ImportFrom, *Plain)) for part in inner):
            whole = Definition(node, ast.unparse(node))
            for part in inner:
                for name, _ in bound_names(part, lines):
                    if not name.startswith("* of "):
                        yield name, whole


Named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Plain = (ast.Assign, ast.AnnAssign, ast.Pass, ast.If, ast.Try)
HARMLESS = {
    *("float", "int", "str", "bool", "tuple", "list", "dict", "set", "frozenset", "range", "len"),
    *("namedtuple", "NamedTuple", "TypeVar", "NewType", "getLogger", "sqrt", "log", "log2", "exp"),
    *("device", "finfo", "iinfo", "compile", "itemgetter", "is_available", "partial"),
}


def branches(node: ast.If | ast.Try) -> Iterator[ast.stmt]:
    """The statements in the branches of an `if` or a `try`."""
    yield from node.body + node.orelse
    if isinstance(node, ast.Try):
        yield from node.finalbody
        for handler in node.handlers:
            yield from handler.body


def is_constant(value: ast.AST) -> bool:
    """Whether an expression only names, or makes, a constant, a type or a small function."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Lambda):
            waiting += [*part.args.defaults, *(d for d in part.args.kw_defaults if d)]
            continue
        if isinstance(part, ast.Await | ast.comprehension | ast.NamedExpr):
            return False
        if isinstance(part, ast.Call):
            if ast.unparse(part.func).rpartition(".")[2] not in HARMLESS:
                return False
        waiting += ast.iter_child_nodes(part)
    return True


@dataclass(frozen=True, slots=True)
class Names:
    """The global names of a piece of code: those that it binds and those that it uses."""

    bound: set[str]
    used: set[str]


def global_names(code: str, own: Collection[str] = ()) -> Names:
    """The global names of a piece of code; annotations, decorators and defaults count, quoted
    annotations too. Parameters, local names and builtins do not.

    Args:
        own: builtins that count all the same, as other code defines them anew.

    Raises:
        SyntaxError: when the code is no Python.
    """
    top = symtable.symtable(code, "cell", "exec")
    bound = {
        item.get_name() for item in top.get_symbols() if item.is_assigned() or item.is_imported()
    }
    used = {item.get_name() for item in top.get_symbols() if item.is_referenced()}
    tables = list(top.get_children())
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for item in table.get_symbols():
            if item.is_global() and item.is_referenced():
                used.add(item.get_name())
            if item.is_declared_global() and item.is_assigned():
                bound.add(item.get_name())
    for node in ast.walk(ast.parse(code)):
        annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for part in (part for note in annotations if note for part in ast.walk(note)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                if part.value.isidentifier():
                    used.add(part.value)
    return Names(bound, used - (set(dir(builtins)) - set(own)))


def names_used(node: ast.AST, own: Collection[str] = ()) -> set[str]:
    """Every global name that a statement uses; see `global_names`."""
    return global_names(ast.unparse(node), own).used


def extract(cells: Iterable[str], name: str, given: Mapping[str, str]) -> Extracted:
    """Take the last definition of `name` and what it needs.

    Args:
        cells: texts of code cells, in the order in which they count.
        name: of the exercise's object.
        given: names of the other exercises' objects -> the module of the package that has them.
            They are imported, not copied: an exercise is judged on top of right earlier ones.

    Raises:
        NotFound: when no cell defines it as a function or class.
    """
    notes: list[str] = []
    found = definitions(cells, notes)
    definition = found.get(name)
    if definition is None or not isinstance(definition.node, ast.FunctionDef | ast.ClassDef):
        raise NotFound(" ".join([f"no cell defines {name} as a function or class.", *notes]))
    result = Extracted(name, definition.text, notes=notes)
    done = {name}
    unknown: list[str] = []
    functions = (*Named, ast.Import, ast.ImportFrom)
    own = [known for known, what in found.items() if isinstance(what.node, functions)]

    def visit(node: ast.AST) -> None:
        for used in sorted(names_used(node, own) - done):
            done.add(used)
            if used in given:
                result.needs.append(f"from {given[used]} import {used}")
            elif used in found:
                visit(found[used].node)
                if found[used].text not in result.needs:
                    result.needs.append(found[used].text)
            else:
                unknown.append(used)

    visit(definition.node)
    result.needs.sort(key=lambda text: not text.startswith(("import ", "from ")))
    if unknown:  # perhaps they come from there
        stars = [what.text for bound, what in found.items() if bound.startswith("* of ")]
        result.needs[:0] = stars
    if FUTURE in (what.text for what in found.values()):
        result.needs.insert(0, FUTURE)
    return result


FUTURE = "from __future__ import annotations"  # IPython keeps it for all cells that follow


def is_stub(node: ast.AST, todo: tuple[str, ...]) -> bool:
    """Whether a body that the learner should write is still `raise NotImplementedError`."""
    functions = [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.FunctionDef) and (not todo or part.name in todo)
    ]
    return any(is_raise(function.body) for function in functions[: len(todo) or 1])


def is_raise(body: list[ast.stmt]) -> bool:
    """Whether a body, its docstring apart, only raises NotImplementedError."""
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        body = body[1:]
    if len(body) != 1 or not isinstance(body[0], ast.Raise):
        return False
    return "NotImplementedError" in {n.id for n in ast.walk(body[0]) if isinstance(n, ast.Name)}
