"""What makes minipaged a course: checks, predictions, figures, the builder and the grader."""

import importlib
from typing import Any

_HOMES = {
    "check": "checking",
    "doctor": "diagnosis",
    "hint": "checking",
    "progress": "checking",
    "predict": "predicting",
}
__all__ = ["check", "doctor", "hint", "predict", "progress"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__} has no attribute {name}")
