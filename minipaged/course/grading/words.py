"""Words from learners' code, made fit to be shown: no control characters, no drawn numbers."""

import ast
import re
from functools import cache

from ..kit.catalogue import ROOT

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(\d[\d_]*(\.\d*)?|\.\d+)(e[-+]?\d+)?(?![\w])|\b(nan|inf)\b")
_LIST = re.compile(r"(\w?)[\[(](?:…|\[…\])(?:, ?(?:…|\[…\]))*,?[\])]")


def clean(text: str, length: int = 500) -> str:
    """A text without escape sequences, control characters and lone surrogates, cut to a length."""
    text = text[: 4 * length].encode("utf-8", "replace").decode()
    text = _CONTROLS.sub("", _ESCAPES.sub("", text))
    return text if len(text) <= length else text[: length - 1] + "…"


def masked(text: str, lesson: str | None = None) -> str:
    """A clean text with … for each number, so that nothing that was drawn is told.

    Args:
        lesson: a sentence that stands in this lesson's checks, or in the checks' machinery, keeps
            its numbers: they are the author's, not drawn.
    """
    parts = [text]
    if lesson is not None:
        for known in sentences(lesson):
            if text.startswith(known):
                parts = [known, text[len(known) :]]
                break
    kept = clean(parts[0]) if len(parts) == 2 else ""
    rest = _NUMBER.sub("…", clean(parts[-1]))
    for _ in range(3):
        rest = _LIST.sub(lambda found: f"{found[1]}(…)" if found[1] else "[…]", rest)
    return kept + rest


@cache
def sentences(lesson: str) -> list[str]:
    """The sentences that a lesson's checks hold as constants, the longest first."""
    folder = ROOT / "minipaged" / "course"
    found: set[str] = set()
    for file in (folder / "checks" / f"lesson_{lesson}.py", folder / "checking.py"):
        if file.exists():
            tree = ast.parse(file.read_text(encoding="utf-8"))
            pieces = {  # an f-string's pieces are no sentences
                id(part)
                for node in ast.walk(tree)
                if isinstance(node, ast.JoinedStr)
                for part in ast.walk(node)
            }
            found |= {
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and len(node.value) > 15
                and id(node) not in pieces
            }
    return sorted(found, key=len, reverse=True)
