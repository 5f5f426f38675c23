"""What a piece of code defines and needs; takes one definition with its needs out of a notebook.

Notebook, tests and grader use this one way: the last definition of the exercise's name, with the
imports, functions, classes and constants that it needs, however deep, as the text of a module.
"""

import ast
import builtins
import io
import re
import symtable
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef
Named = Function | ast.ClassDef
BUILTINS = frozenset(dir(builtins))
FUTURE = "from __future__ import annotations"  # IPython keeps it for all cells that follow


class NotFound(Exception):
    """No cell defines the name; the message says what there is instead."""


# ------------------------------------------------------------------------------------- names


@dataclass(frozen=True, slots=True)
class Names:
    """The global names of a piece of code.

    Attributes:
        bound: those that it binds.
        used: those that it uses, builtins too, with the line of the first use.
    """

    bound: frozenset[str]
    used: dict[str, int]


def global_names(tree: ast.AST, text: str = "") -> Names:
    """The global names of a piece of code; annotations, decorators and defaults count, quoted
    annotations too. Parameters and local names do not.

    Args:
        text: what the tree was parsed from, where it is at hand.

    Raises:
        SyntaxError: for code that is wrong though it could be parsed, such as two equal parameters.
    """
    top = symtable.symtable(text or ast.unparse(tree), "cell", "exec")
    symbols = top.get_symbols()
    bound = {item.get_name() for item in symbols if item.is_assigned() or item.is_imported()}
    used: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for item in table.get_symbols():
            if item.is_referenced() and (table is top or item.is_global()):
                used.add(item.get_name())
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in used:
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
        for note in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            for part in ast.walk(note) if note else ():
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    if part.value.isidentifier():
                        lines.setdefault(part.value, part.lineno)
    return Names(frozenset(bound), dict.fromkeys(used, 1) | lines)


def imports(tree: ast.AST, package: str = "") -> Iterator[tuple[str, str, str]]:
    """What a piece of code imports, wherever it does: the module, the name there, the name here.

    The name there is "" for `import module`.

    Args:
        package: where the code is; relative imports start from it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, "", alias.asname or alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            prefix = above[: len(above) - node.level + 1] if node.level else []
            module = ".".join([*prefix, *filter(None, [node.module])])
            yield from ((module, alias.name, alias.asname or alias.name) for alias in node.names)


def find_definition(tree: ast.Module, name: str) -> Named | None:
    """The last top-level function or class of that name."""
    found = [node for node in tree.body if isinstance(node, Named) and node.name == name]
    return found[-1] if found else None


# ------------------------------------------------------------------------------------- cells


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


@dataclass(frozen=True)
class Definition:
    """A top-level statement that binds a name, and its text, decorators included."""

    node: ast.stmt
    text: str

    @cached_property
    def uses(self) -> frozenset[str]:
        """The global names that it uses, builtins too."""
        return frozenset(global_names(self.node, self.text).used)


class ParsedCell:
    """A cell's text, parsed once, however many definitions are taken out of it.

    Attributes:
        text: as plain Python; see `plain_python`.
        tree: None where it is not Python.
        error: why it is not.
        definitions: the last of each name; see `lasting`.
        odd: the statements that could not be read: line and why.
    """

    def __init__(self, cell: str) -> None:
        self.text = plain_python(io.StringIO(cell, newline=None).read())
        self.tree: ast.Module | None = None
        self.error: Exception | None = None
        self.definitions: dict[str, Definition] = {}
        self.odd: list[tuple[int, Exception]] = []
        try:
            self.tree = ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.error = error
            return
        lines = [line + "\n" for line in self.text.split("\n")]  # as ast counts them
        for node in self.tree.body:
            try:
                self.definitions.update(lasting(node, lines))
            except (SyntaxError, ValueError, RecursionError) as error:  # or a number without end
                self.odd.append((node.lineno, error))

    def defined(self, name: str) -> ast.FunctionDef | ast.ClassDef | None:
        """The last top-level function or class of that name; an async one does not count."""
        node = find_definition(self.tree, name) if self.tree else None
        return None if isinstance(node, ast.AsyncFunctionDef) else node


Cells = Iterable[str | ParsedCell]


def parsed(cells: Cells) -> list[ParsedCell]:
    """Cells, parsed where they are not yet."""
    return [cell if isinstance(cell, ParsedCell) else ParsedCell(cell) for cell in cells]


def definitions(cells: Cells, notes: list[str] | None = None) -> dict[str, Definition]:
    """The last definition of each name in some cells.

    Args:
        cells: texts or parsed, in the order in which they count.
        notes: gets a line for each cell or statement that could not be read.
    """
    found: dict[str, Definition] = {}
    notes = [] if notes is None else notes
    for number, cell in enumerate(parsed(cells), start=1):
        found.update(cell.definitions)
        if cell.error:
            notes.append(f"cell {number} was left out, it is not Python: {cell.error}")
        for line, error in cell.odd:
            notes.append(f"line {line} of cell {number} was left out: {error}")
    return found


def lasting(node: ast.stmt, lines: list[str]) -> Iterator[tuple[str, Definition]]:
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
            assignment = Definition(node, ast.unparse(node))
            yield from ((name, assignment) for name in global_names(node).bound)
    elif isinstance(node, ast.If | ast.Try):
        inner = list(branches(node))
        if all(isinstance(part, Named | ast.Import | ast.ImportFrom | Plain) for part in inner):
            whole = Definition(node, ast.unparse(node))
            for part in inner:
                for name, _ in lasting(part, lines):
                    if not name.startswith("* of "):
                        yield name, whole


Plain = ast.Assign | ast.AnnAssign | ast.Pass | ast.If | ast.Try
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


# ---------------------------------------------------------------------------- one definition


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


def extract(cells: Cells, name: str, given: Mapping[str, str]) -> Extracted:
    """Take the last definition of `name` and what it needs.

    Args:
        cells: code cells, texts or parsed, in the order in which they count.
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
    unknown = False
    functions = Named | ast.Import | ast.ImportFrom
    own = {known for known, what in found.items() if isinstance(what.node, functions)}
    done = {*(BUILTINS - own), name}

    def visit(definition: Definition) -> None:
        nonlocal unknown
        for used in sorted(definition.uses - done):
            done.add(used)
            if used in given:
                result.needs.append(f"from {given[used]} import {used}")
            elif used in found:
                visit(found[used])
                if found[used].text not in result.needs:
                    result.needs.append(found[used].text)
            else:
                unknown = True

    visit(definition)
    result.needs.sort(key=lambda text: not text.startswith(("import ", "from ")))
    if unknown:  # perhaps they come from there
        stars = [what.text for bound, what in found.items() if bound.startswith("* of ")]
        result.needs[:0] = stars
    if FUTURE in (what.text for what in found.values()):
        result.needs.insert(0, FUTURE)
    return result


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
