"""`minipaged doctor`: is everything installed that the course needs, and does it work?"""

import importlib
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator

import torch

NEEDED = ("torch", "safetensors", "tokenizers", "numpy")
LAB = ("jupyterlab", "ipywidgets", "matplotlib")
INSTALL = "run `make lab` again, or `python -m pip install -c constraints.txt -e .[lab]`"


class Trouble(Exception):
    """What is wrong, and in its second argument the remedy."""


def python() -> str:
    """The version of Python."""
    version = platform.python_version()
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise Trouble(f"Python {version}", "install Python 3.11, 3.12 or 3.13, then `make lab`")
    return f"{version} on {platform.system()} {platform.machine()}"


def packages(names: tuple[str, ...]) -> Callable[[], str]:
    """The versions of some packages, each of which must be there."""

    def versions() -> str:
        found = []
        for name in names:
            try:
                module = importlib.import_module(name)
            except ImportError as error:
                raise Trouble(f"{name} cannot be imported: {error}", INSTALL) from None
            found.append(f"{name} {getattr(module, '__version__', '')}".strip())
        return ", ".join(found)

    return versions


def kernels() -> str:
    """What lesson 5's kernels run on."""
    if torch.cuda.is_available():
        return f"GPU: {torch.cuda.get_device_name()}; lesson 5's kernels run on it"
    has_triton = importlib.util.find_spec("triton") is not None
    compiled = "and compile for GPUs that are elsewhere" if has_triton else "and cannot be compiled"
    return f"no GPU, and none is needed: lesson 5's kernels run in an interpreter {compiled}"


def threads() -> str:
    """How many threads torch uses."""
    return f"torch uses {torch.get_num_threads()} of {os.cpu_count()} cores"


def sandbox() -> str:
    """What the grader isolates submissions with."""
    if shutil.which("bwrap"):
        return "bubblewrap is here: submissions of others can be graded"
    return "no bubblewrap: only needed to grade the submissions of others"


def story() -> str:
    """The proof: the embedded model writes."""
    from minipaged.generation import generate
    from minipaged.given.model import Model

    try:
        model = Model.load()
        start = time.perf_counter()
        token_ids = generate(model, "Once upon a time", max_new_tokens=24)
        seconds = time.perf_counter() - start
    except Exception as error:
        remedy = "the package is damaged: clone it again"
        raise Trouble(f"the embedded model does not run: {error}", remedy) from None
    text = model.tokenizer.decode(token_ids)
    return f"{len(token_ids) / seconds:.0f} tokens a second: Once upon a time{text}"


CHECKS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("python", python),
    ("package", packages(NEEDED)),
    ("notebook", packages(LAB)),
    ("threads", threads),
    ("kernels", kernels),
    ("grader", sandbox),
    ("model", story),
)


def findings() -> Iterator[tuple[str, bool, str]]:
    """What each check found: its name, whether it is well, and a line to read."""
    for name, examine in CHECKS:
        try:
            yield name, True, examine()
        except Trouble as trouble:
            what, remedy = trouble.args
            yield name, False, f"{what}. Remedy: {remedy}."


def doctor() -> bool:
    """Print what was found; True when all is well."""
    well = True
    for name, is_well, line in findings():
        print(f"{'ok     ' if is_well else 'TROUBLE'} {name:9} {line}")
        well = well and is_well
    print("All is well." if well else "Fix what is marked TROUBLE, then run this again.")
    return well
