"""Grading without trust: learners' code runs in sandboxes, and the marks are made outside.

Read `submissions.py` (what was handed in), `view.py` (what a learner's code may see), `worker.py`
(what runs inside), `sandbox.py` (what holds it there), `channel.py` (what comes out), `marking.py`
(the marks), `words.py`, `results.py` and `feedback.py` (what is written), `batch.py` (hundreds of
submissions), `commands.py` and `hosting.py` (Gradescope, GitHub Actions).
"""
