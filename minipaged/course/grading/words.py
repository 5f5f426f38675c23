"""Words from learners' code, made fit to be shown: no control characters, no drawn numbers."""

import re

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(\d[\d_]*(\.\d*)?|\.\d+)(e[-+]?\d+)?(?![\w])|\b(nan|inf)\b")
_LIST = re.compile(r"(\w?)[\[(](?:…|\[…\])(?:, ?(?:…|\[…\]))*,?[\])]")


def clean(text: str, length: int = 500) -> str:
    """A text without escape sequences, control characters and lone surrogates, cut to a length."""
    text = text[: 4 * length].encode("utf-8", "replace").decode()
    text = _CONTROLS.sub("", _ESCAPES.sub("", text))
    return text if len(text) <= length else text[: length - 1] + "…"


def masked(text: str) -> str:
    """A clean text with … for each number, so that nothing that was drawn is told."""
    text = _NUMBER.sub("…", clean(text))
    for _ in range(3):
        text = _LIST.sub(lambda found: f"{found[1]}(…)" if found[1] else "[…]", text)
    return text
