"""Grading without trust: learners' code runs in sandboxes, and the judging stays outside.

Read `submissions.py` (what was handed in), `view.py` (what a learner's code may see), `worker.py`
(what runs inside), `sandbox.py` (what holds it there), `channel.py` (what comes out), `judge.py`
(the verdicts), `words.py`, `results.py` and `feedback.py` (what is written), `batch.py` (hundreds
of submissions), `commands.py` and `hosting.py` (Gradescope, GitHub Actions).
"""

import importlib
from typing import Any

__all__ = ["check_command", "grade_command"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.commands"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
