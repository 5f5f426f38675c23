"""What makes minipaged a course: what a notebook calls, and what an author tries wrong code with.

A notebook takes `check`, `hint`, `predict`, `progress` and `doctor` from here, and a failing check
prints a line with `drawn`. The rooms: lessons/ (a folder for each lesson), kit/ (what checks and figures are
made with), notebook/, authoring/ (from the texts to the notebooks) and grading/.
"""

from .kit.verdicts import Verdict, drawn, judge_cells
from .notebook.checking import check, hint, progress
from .notebook.doctor import doctor
from .notebook.predicting import predict

__all__ = ["Verdict", "check", "doctor", "drawn", "hint", "judge_cells", "predict", "progress"]
