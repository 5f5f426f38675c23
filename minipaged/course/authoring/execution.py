"""Execute a solution's notebook, and keep of its outputs what belongs into a file."""

import copy
import hashlib
import json
import os
import re
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from .lesson_text import IGNORE

CELL_TIMEOUT = 120  # seconds
PNG_LIMIT = 300_000  # bytes
WIDGET = "application/vnd.jupyter.widget-view+json"


class Client(NotebookClient):
    """Runs a notebook as if nobody looked at its widgets.

    nbclient answers an Output widget over the channel on which it waits for the cell's end, and
    then may miss that end until the timeout.
    """

    def handle_comm_msg(self, outs: list, msg: dict, cell_index: int) -> None:
        """Let a widget's message go."""


class CellFailed(Exception):
    """A cell failed; `line` is the line in the cell where that is known, else 0."""

    def __init__(self, cell: NotebookNode, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.cell, self.line = cell, line


def execute(notebook: NotebookNode, folder: Path, root: Path) -> NotebookNode:
    """Run every cell of a copy in a new kernel whose working directory is the folder.

    Args:
        notebook: without outputs; its metadata stay as they are.
        root: where the package stands.

    Returns:
        The copy with outputs, and the digest of them in metadata.minipaged.outputs.

    Raises:
        CellFailed: when a cell raises, is too slow, writes to stderr or makes too large a picture.
    """
    done = copy.deepcopy(notebook)
    env = {**os.environ, "MINIPAGED_MINE": "off", "MINIPAGED_PREDICT": "reveal"}
    env["OMP_NUM_THREADS"] = "1"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))
    running: list[NotebookNode] = []
    client = Client(
        done,
        kernel_name=notebook.metadata.kernelspec.name,
        timeout=CELL_TIMEOUT,
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=lambda cell, cell_index: running.append(cell),
    )
    try:
        client.execute(env=env)
    except CellExecutionError as error:
        line = _failed_line(running[-1])
        raise CellFailed(running[-1], f"fails: {error.ename}: {error.evalue}", line) from None
    except CellTimeoutError:
        raise CellFailed(running[-1], f"takes more than {CELL_TIMEOUT} s") from None
    except DeadKernelError:
        raise CellFailed(running[-1], "ends its kernel") from None
    for cell in done.cells:
        if cell.cell_type == "code":
            refuse_outputs(cell)
            if any(WIDGET in item.get("data", {}) for item in cell.outputs):
                cell.outputs = []  # a static figure stands before every widget
    done.metadata = copy.deepcopy(notebook.metadata)
    done.metadata.minipaged.outputs = outputs_digest(done)
    return done


def outputs_digest(notebook: NotebookNode) -> str:
    """What shows whether somebody touched the outputs."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [[cell.execution_count, cell.outputs] for cell in cells]
    return hashlib.sha256(json.dumps(outputs, sort_keys=True).encode()).hexdigest()


def _failed_line(cell: NotebookNode) -> int:
    text = "\n".join(line for output in cell.outputs for line in output.get("traceback", []))
    found = re.search(r"Cell In\[\d+\], line (\d+)", re.sub(r"\x1b\[[\d;]*m", "", text))
    return int(found[1]) if found else 0


def refuse_outputs(cell: NotebookNode) -> None:
    """Raise CellFailed for warnings, unless the cell is tagged, and for large pictures."""
    for output in cell.outputs:
        if output.get("name") == "stderr" and IGNORE not in cell.metadata.get("tags", []):
            lines = output.text.strip().splitlines()
            raise CellFailed(cell, f"writes to stderr: {lines[-1] if lines else ''}")
        size = len(output.get("data", {}).get("image/png", "")) * 3 // 4
        if size > PNG_LIMIT:
            raise CellFailed(cell, f"makes a PNG of {size:,} B; at most {PNG_LIMIT:,} B")
