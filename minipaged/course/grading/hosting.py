"""Grading where others run it: a zip for Gradescope, and a workflow for GitHub Actions.

python -m minipaged.course.grading.hosting gradescope OUT.zip --lesson 04
python -m minipaged.course.grading.hosting workflow OUT.yml --lesson 04
"""

import argparse
import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ..kit.catalogue import PACKAGE, ROOT
from .marking import exercises_of

SETUP = """\
#!/bin/bash
# Runs once, when Gradescope builds the image. Choose Ubuntu 24.04: Python 3.11 or later is needed.
set -euo pipefail
apt-get update
apt-get install -y --no-install-recommends python3 python3-venv bubblewrap
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "The course needs Python 3.11 or later: choose a newer base image."; exit 1; }
python3 -m venv /autograder/venv
/autograder/venv/bin/pip install uv
cd /autograder/source
/autograder/venv/bin/uv pip install --python /autograder/venv/bin/python --torch-backend cpu \\
  -c constraints.txt -r pyproject.toml
# The answers: readable for root alone. A submission runs as another user.
chmod -R go-rwx /autograder/source
"""

RUN = """\
#!/bin/bash
# Runs for each submission. Without results.json Gradescope says that grading failed, not 0 points.
set -euo pipefail
cd /autograder/source
export MINIPAGED_MINE=off PYTHONPATH=/autograder/source PYTHONDONTWRITEBYTECODE=1
rm -rf /autograder/grades
/autograder/venv/bin/python -m minipaged.course.cli grade /autograder/submission --single \\
  --out /autograder/grades --jobs 1 --format json,gradescope{lessons}
cp /autograder/grades/gradescope/submission.json /autograder/results/results.json
"""

WORKFLOW = """\
# Grades the repository that it is in. Its results are worth something only where students can't
# change it: in the instructor's repository, or as the workflow that a classroom tool prescribes.
name: grade
on: [push, workflow_dispatch]
permissions:
  contents: read
jobs:
  grade:
    runs-on: ubuntu-24.04
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@v4
        with:
          path: submission
          persist-credentials: false
      - uses: actions/checkout@v4
        with:
          repository: {repository}
          path: course
          persist-credentials: false
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: Install
        run: |
          sudo apt-get update
          sudo apt-get install -y --no-install-recommends bubblewrap
          # Ubuntu 24.04 forbids namespaces to users; the sandbox is made of them.
          sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0
          python -m pip install uv
          cd course && uv pip install --system --torch-backend cpu -c constraints.txt \\
            -r pyproject.toml && cd ..
          chmod -R go-rwx course
      - name: Grade
        env:
          MINIPAGED_MINE: "off"
          PYTHONPATH: course
        run: >
          python -m minipaged.course.cli grade submission --single --out results
          --format json,junit,classroom50{lessons}
      - name: The result where a classroom tool looks for it
        run: cp results/classroom50/submission.json result.json
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: results
          path: results
"""

LEFT_OUT = {"__pycache__", "figures.py", "demos.py", "lesson.md"}
PLACEHOLDER = "OWNER/COURSE"


def course_files() -> list[Path]:
    """What grading needs: the package, and what to install."""
    files = [path for path in PACKAGE.rglob("*") if path.is_file()]
    files += [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    return sorted(path for path in files if not set(path.parts) & LEFT_OUT)


def gradescope_zip(out: Path, lessons: list[str]) -> None:
    """Write the zip that is uploaded as a Gradescope autograder."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (("setup.sh", SETUP), ("run_autograder", run_script(lessons))):
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.external_attr = 0o755 << 16
            archive.writestr(info, text)
        for path in course_files():
            archive.write(path, path.relative_to(ROOT).as_posix())


def run_script(lessons: list[str]) -> str:
    """The script that grades one submission on Gradescope."""
    return RUN.replace("{lessons}", options(lessons))


def workflow(lessons: list[str], repository: str = PLACEHOLDER) -> str:
    """The GitHub Actions workflow."""
    text = WORKFLOW.replace("{lessons}", options(lessons))
    return text.replace("{repository}", repository)


def options(lessons: list[str]) -> str:
    """The options that name the lessons."""
    return "".join(f" --lesson {lesson}" for lesson in lessons)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m minipaged.course.grading.hosting")
    parser.add_argument("kind", choices=("gradescope", "workflow"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--lesson", action="append", default=[], metavar="NN")
    parser.add_argument("--course", default=PLACEHOLDER, help="the course's repository on GitHub")
    args = parser.parse_args(argv)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", args.course):
        parser.error(f"{args.course!r} is not OWNER/NAME")
    try:
        lessons = sorted({e.lesson for e in exercises_of(args.lesson or None)})
    except ValueError as error:
        parser.error(str(error))
    lessons = lessons if args.lesson else []
    if args.kind == "gradescope" and not (ROOT / "constraints.txt").exists():
        parser.error("Gradescope's zip is made in a checkout of the course, not from a package")
    if args.kind == "gradescope":
        gradescope_zip(args.out, lessons)
    else:
        args.out.write_text(workflow(lessons, args.course), encoding="utf-8")
    print(f"written: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
