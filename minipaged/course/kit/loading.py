"""From a definition's text to a module: a real file, which a kernel and `inspect` need."""

import atexit
import importlib.util
import shutil
import sys
import tempfile
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType

from .catalogue import Exercise
from .source import Extracted

_numbers = count(1)


@cache
def folder() -> Path:
    """Where the files are, until Python ends."""
    path = Path(tempfile.mkdtemp(prefix="minipaged-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def load(exercise: Exercise, extracted: Extracted) -> ModuleType:
    """Write extracted source to a file of its own and import it; see `Extracted`."""
    name = f"exercise_{exercise.id.replace('.', '_')}_{next(_numbers)}"
    path = folder() / f"{name}.py"
    path.write_text(extracted.source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
