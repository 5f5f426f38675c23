"""How many submissions of lesson 04 are graded in a minute.

python -m minipaged.course.grading.bench N [--jobs J]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ..authoring.cutting import cut
from ..kit.catalogue import ROOT, catalogue
from ..kit.mistakes import given_names
from . import batch
from .channel import SandboxError
from .marking import exercises_of
from .submissions import find_submissions


def notebook(lesson: str, skip: str | None = None) -> str:
    """A solved notebook of a lesson, one exercise left as a stub if wanted."""
    cells = []
    for exercise in catalogue().values():
        if exercise.lesson == lesson:
            text = (ROOT / f"{exercise.module.replace('.', '/')}.py").read_text(encoding="utf-8")
            piece = cut(text, exercise.name, exercise.todo)
            cells.append(code_cell(given_names(exercise)))
            source = piece.stub if exercise.id == skip else piece.source
            cells.append(code_cell(source, {"minipaged": {"exercise": exercise.id}}))
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def code_cell(source: str, metadata: dict | None = None) -> dict:
    """A code cell as nbformat has it."""
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"c{abs(hash(source)) % 10**8}",
        "metadata": metadata or {},
        "outputs": [],
        "source": source,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m minipaged.course.grading.bench")
    parser.add_argument("number", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--lesson", default="04")
    args = parser.parse_args(argv)
    exercises = exercises_of([args.lesson])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "class"
        for number in range(args.number):
            skip = exercises[number % len(exercises)].id if number % 3 == 0 else None
            path = folder / f"student-{number:03d}" / f"{args.lesson}_lesson.ipynb"
            path.parent.mkdir(parents=True)
            path.write_text(notebook(args.lesson, skip), encoding="utf-8")
        start = time.monotonic()
        plan = batch.Plan(exercises, Path(name) / "out", jobs=min(args.jobs, args.number))
        try:
            kind, records = batch.run(find_submissions([folder]), plan)
        except SandboxError as error:
            print(f"no sandbox here: {error}", file=sys.stderr)
            return 3
        seconds = time.monotonic() - start
        points = sum(entry["score"] for entry in records)
    print(
        f"{args.number} submissions of lesson {args.lesson} ({len(exercises)} exercises), "
        f"{args.jobs} jobs, {kind}: {seconds:.1f} s, {60 * args.number / seconds:.0f} a minute; "
        f"{points} points of {sum(entry['max_score'] for entry in records)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
