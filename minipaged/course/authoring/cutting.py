"""Take an object's source text out of a module, and cut the bodies that a learner writes.

Everything is cut as text: unparsing a syntax tree would lose comments and layout. The tree only
says where things are.
"""

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..kit.source import Function, Named, find_definition


@dataclass(frozen=True, slots=True)
class Cut:
    """An object's source, and what is left of it for the learner.

    Attributes:
        line: where the object begins in its module, decorators included; the first line is 1.
        source: its text, verbatim.
        stub: the same without the bodies that are left to the learner.
        removed: the lines that were cut, each with its line in the module.
    """

    line: int
    source: str
    stub: str
    removed: tuple[tuple[int, str], ...]


def methods(node: Named, name: str) -> list[Function]:
    """Every method of that name: a property has a getter and perhaps a setter."""
    return [item for item in node.body if isinstance(item, Function) and item.name == name]


def cut(text: str, name: str, todo: Sequence[str] = ()) -> Cut:
    """Cut the todo methods of a class, or the whole body of a function.

    Args:
        text: a module's source.
        name: a top-level function or class, which must exist.
        todo: methods of the class; for a function nothing.
    """
    lines = text.split("\n")
    node = find_definition(ast.parse(text), name)
    if node is None:
        raise ValueError(f"no function or class named {name!r}")
    if isinstance(node, Function):
        functions = [node]
    else:
        functions = [function for method in todo for function in methods(node, method)]
    first = min(item.lineno for item in (node, *node.decorator_list))
    last = _last_line(lines, node)
    kept, removed = lines[:last], []
    for function in sorted(functions, key=lambda item: -item.lineno):
        line, column, glue = _body_start(lines, function)
        end = _last_line(lines, function)
        gone = [lines[line - 1][column:], *lines[line:end]]
        removed += [(line + idx, part) for idx, part in enumerate(gone) if part.strip()]
        stump = f"{lines[line - 1][:column]}{glue}raise NotImplementedError"
        kept[line - 1 : end] = stump.split("\n")
    source, stub = ("\n".join(part[first - 1 :]) for part in (lines[:last], kept))
    return Cut(first, source, stub, tuple(sorted(removed)))


def _last_line(lines: list[str], node: Named) -> int:
    """The last line of a definition, comments at the end of its body included."""
    last = node.end_lineno or node.lineno
    for line in range(last + 1, len(lines) + 1):
        text = lines[line - 1].lstrip()
        if text and not (text.startswith("#") and len(lines[line - 1]) - len(text) > _column(node)):
            break
        last = line if text else last
    return last


def _column(node: ast.stmt) -> int:
    return node.col_offset  # in bytes; only white space comes before a statement


def _body_start(lines: list[str], function: Function) -> tuple[int, int, str]:
    """Line and column after the docstring or else the signature; what joins a statement there."""
    line, column = _signature_end(lines, function)
    first = function.body[0]
    same_line = first.lineno == line
    glue = "\n" + " " * (_column(function) + 4 if same_line else _column(first))
    if ast.get_docstring(function, clean=False) is not None:
        line = first.end_lineno or first.lineno
        column = len(lines[line - 1].encode()[: first.end_col_offset].decode())
        glue = "; " if same_line else glue
    return line, column, glue


def _signature_end(lines: list[str], function: Function) -> tuple[int, int]:
    """Line and column, in characters, after the signature's colon."""
    depth = 0
    for token in tokens("\n".join(lines[function.lineno - 1 :])):
        if token.string in ("(", "[", "{"):
            depth += 1
        elif token.string in (")", "]", "}"):
            depth -= 1
        elif token.string == ":" and depth == 0:
            return function.lineno - 1 + token.end[0], token.end[1]
    raise AssertionError(f"the signature of {function.name} has no end")


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a text, as far as it can be read: it may be a part of a program."""
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError):
        return
