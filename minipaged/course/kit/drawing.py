"""One look for all figures: sizes, colours and how a figure is shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt

INK, FAINT, EMPTY = "#222222", "#9a9a9a", "#f1efe9"
# sequences A, B, C ...: told apart by people who see red and green alike
SEQUENCES = ("#3b75af", "#e1812c", "#8f6fb3", "#2a9d8f", "#c44e52", "#b8a13a")
# the five classes of the waste report, always in this order
WASTE = {
    "used": "#3b75af",
    "reserved": "#a9c6e3",
    "internal": "#e1812c",
    "external": "#c44e52",
    "free": EMPTY,
}


@contextmanager
def drawing(
    width: float = 8.0, height: float = 2.6, rows: int = 1, columns: int = 1
) -> Iterator[Any]:
    """Axes to draw on, with the course's look; shown at the end of the block.

    Args:
        width, height: inches of the whole figure.
        rows, columns: of axes; more than one gives an array of them.
    """
    look: Any = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": FAINT,
        "text.color": INK,
        "axes.labelcolor": INK,
        "figure.dpi": 96,
        "savefig.dpi": 96,
    }
    with plt.rc_context(look):
        figure, axes = plt.subplots(rows, columns, figsize=(width, height), layout="constrained")
        yield axes
        plt.show()
        plt.close(figure)
