"""The lessons' figures, a file a lesson: `figures.blocks(...)` finds the one that has `blocks`."""

import importlib
import pkgutil
from typing import Any


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for module in pkgutil.iter_modules(__path__):
            if module.name.startswith("lesson_"):
                figures = importlib.import_module(f"{__name__}.{module.name}")
                if hasattr(figures, name):
                    return getattr(figures, name)
    raise AttributeError(f"no figure is called {name}")
