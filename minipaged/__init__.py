"""minipaged: PagedAttention, built piece by piece.

Read `given/model.py`, then the chapters in the order of `CHAPTERS`. No module is imported here, so
that `use_mine` can come first.
"""

import importlib
import os
import sys
from pathlib import Path

__version__ = "0.1.0"

# each chapter of the package, in reading order, and the lesson that builds it
CHAPTERS = {
    "generation": "00",
    "cache_size": "00",
    "attention": "01",
    "naive_cache": "01",
    "contiguous_cache": "02",
    "waste": "02",
    "paging": "03",
    "block_table": "04",
    "paged_cache": "04",
    "triton_kernels": "05",
    "flash_attention": "06",
}


def mine_folder() -> Path:
    """Where the learner's modules are: `mine/` in the project's root; where the package is installed
    without the project, in the working directory."""
    root = Path(__file__).resolve().parent.parent
    return (root if (root / "lessons").is_dir() else Path.cwd()) / "mine"


def use_mine(folder: str | Path | None = None) -> None:
    """Put the learner's own modules before the course's.

    From here on `minipaged.x` is `mine/x.py` where that file exists, also for imports between
    modules. With the environment variable MINIPAGED_MINE=off it does nothing and says so.

    Args:
        folder: where the modules are; None is `mine_folder()`.

    Raises:
        FileNotFoundError: there is no such folder, or no module in it.
        RuntimeError: naming the modules whose other version has already been loaded.
    """
    if os.environ.get("MINIPAGED_MINE") == "off":
        print("MINIPAGED_MINE=off: the course's own modules are used")
        return
    mine = Path(folder or mine_folder()).resolve()
    names = sorted(path.stem for path in mine.glob("*.py") if path.stem != "__init__")
    if not names:
        raise FileNotFoundError(
            f"no modules in {mine}: no exercise has been passed yet, and a check that passes puts "
            "your code there"
        )
    loaded = []
    for name in names:
        module = sys.modules.get(f"minipaged.{name}")
        if module is not None and Path(module.__file__ or "").resolve() != mine / f"{name}.py":
            loaded.append(f"minipaged.{name}")
    if loaded:
        raise RuntimeError(
            f"loaded already: {', '.join(loaded)}; restart the kernel, then call use_mine() first"
        )
    if str(mine) in __path__:
        __path__.remove(str(mine))
    __path__.insert(0, str(mine))
    importlib.invalidate_caches()
    print(f"yours: {', '.join(names)}")
