"""Whole batches: right, wrong, forged and broken side by side; written, resumed and converted."""

import csv
import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from minipaged.course.cli import main
from minipaged.course.grading import batch, feedback, hosting, results
from minipaged.course.grading.bench import notebook as solved_notebook
from minipaged.course.grading.channel import Limits, SandboxError
from minipaged.course.grading.commands import table
from minipaged.course.grading.marking import Marks, Outcome, exercises_of
from minipaged.course.grading.submissions import Submission
from minipaged.course.kit.catalogue import PACKAGE, ROOT, catalogue
from tests.grading_tools import LIMITS, _sandbox, code_cell, lesson_cells, sandbox, stub, write
from tests.test_grading_forged import FORGED

ID = "04.2"
QUICK = [
    name
    for name in FORGED
    if not any(
        word in name
        for word in ("while", "sleep", "bomb", "100 GB", "endless", "loop", "recursion", "in files")
    )
]


def grade(arguments: list[str]) -> int:
    return main(["grade", *arguments])


def hand_in(folder: Path, number: int, draw: random.Random) -> tuple[str, int]:
    """Write a submission of some kind; its name and the points that slot_of should have."""
    kind = ("right", "stub", "wrong", "forged", "broken", "zip")[number % 6]
    name = f"{kind}-{number:03d}"
    path = folder / name / "04_block_tables.ipynb"
    if kind == "right":
        write(path, lesson_cells("04"))
    elif kind == "stub":
        write(path, lesson_cells("04", e04_2=stub(ID)))
    elif kind == "wrong":
        write(path, lesson_cells("04", e04_2="def slot_of(a, b, c):\n    return a[0] * c + b"))
    elif kind == "forged":
        write(path, lesson_cells("04", e04_2=FORGED[draw.choice(QUICK)]))
    elif kind == "broken":
        path.parent.mkdir(parents=True)
        path.write_bytes(draw.choice([b"", b"{", b"[" * 10_000, b"\xff", b'{"cells": 3}']))
    else:
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            archive.writestr("../x.ipynb", "{}")
            archive.writestr("04_x.ipynb", solved_notebook("04"))
    return name, 1 if kind in ("right", "zip") else 0


def points(entry: dict[str, Any]) -> dict[str, int]:
    return {e["id"]: e["points"] for e in entry["exercises"]}


def test_a_mixed_batch_is_graded_right(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    sandbox()
    number = 300 if request.config.getoption("--all") else 12
    folder, out = tmp_path / "class", tmp_path / "out"
    folder.mkdir()
    due = dict(hand_in(folder, idx, random.Random(idx)) for idx in range(number))
    formats = "json,csv,junit,gradescope,classroom50"
    args = [str(folder), "--out", str(out), "--lesson", "04", "--format", formats, "--quiet"]
    assert grade([*args, "--jobs", "2", "--isolation", "bubblewrap"]) == 0
    doc = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert doc["schema"] == "minipaged/grades/v1"
    assert doc["max_score"] == sum(exercise.points for exercise in exercises_of(["04"]))
    assert [entry["student"] for entry in doc["submissions"]] == sorted(due)
    for entry in doc["submissions"]:
        assert entry["max_score"] == doc["max_score"]
        assert entry["isolation"] == "bubblewrap"
        assert points(entry)[ID] == due[entry["student"]], entry
        others = sum(points(entry).values()) - points(entry)[ID]
        whole = entry["student"].startswith(("right", "stub", "wrong", "forged", "zip"))
        assert others == (doc["max_score"] - 1 if whole else 0), entry
        key = batch.key_of(entry["student"])
        page = (out / "feedback" / f"{key}.html").read_text(encoding="utf-8")
        assert "<script" not in page
        scope = json.loads((out / "gradescope" / f"{key}.json").read_text(encoding="utf-8"))
        assert scope["score"] == entry["score"] == sum(test["score"] for test in scope["tests"])
        room = json.loads((out / "classroom50" / f"{key}.json").read_text(encoding="utf-8"))
        assert room["schema"] == "classroom50/result/v1"
        assert room["max-score"] == sum(test["max-score"] for test in room["tests"])
    rows = list(csv.DictReader(io.StringIO((out / "results.csv").read_text(encoding="utf-8"))))
    assert [int(row["score"]) for row in rows] == [e["score"] for e in doc["submissions"]]
    suites = ElementTree.parse(out / "results.xml").getroot()
    assert len(suites) == number


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    sandbox()
    folder = tmp_path / "class"
    for name in ("ada", "bob"):
        write(folder / name / "04_a.ipynb", lesson_cells("04"))
    plan = batch.Plan(exercises_of(["04"]), tmp_path / "out", "bubblewrap", 1, limits=LIMITS)
    items = [Submission(name, folder / name) for name in ("ada", "bob")]
    batch.run(items[:1], plan, None)
    first = json.loads((tmp_path / "out" / "submissions" / "ada.json").read_text())
    said = io.StringIO()
    _, records = batch.run(items, plan, said)
    assert "1 of 2 are kept from an earlier run" in said.getvalue()
    assert next(entry["exercises"][0]["seed"] for entry in records) == first["exercises"][0]["seed"]
    assert [entry["student"] for entry in records] == ["ada", "bob"]
    assert batch.resumed(items[0], plan) == records[0]
    assert batch.resumed(items[0], batch.replace(plan, seed=3)) is None
    write(folder / "ada" / "04_a.ipynb", lesson_cells("04", e04_2=stub(ID)))
    assert batch.resumed(items[0], plan) is None


def test_a_half_written_result_is_made_again(tmp_path: Path) -> None:
    plan = batch.Plan(exercises_of(["04"]), tmp_path, "bubblewrap", 1)
    item = Submission("ada", write(tmp_path / "ada.ipynb", []))
    (tmp_path / "submissions").mkdir()
    for text in ("", "{", "[]", "{}", '{"stamp": 1}', "null"):
        (tmp_path / "submissions" / "ada.json").write_text(text)
        assert batch.resumed(item, plan) is None


def test_the_exit_status_tells_graded_from_could_not_grade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = write(tmp_path / "ada.ipynb", [])
    args = [str(path), "--out", str(tmp_path / "out"), "--lesson", "04"]
    assert grade([*args, "--isolation", "bubblewrap"]) == 3
    said = capsys.readouterr().err
    assert "bubblewrap" in said
    assert "--no-sandbox" in said
    for wrong in (["--lesson", "77"], ["--format", "xls"], ["--jobs", "0"]):
        assert grade([*args, *wrong]) == 2
        assert wrong[1] in capsys.readouterr().err
    assert grade([str(tmp_path / "nowhere"), "--out", str(tmp_path)]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_without_a_sandbox_results_are_not_official(tmp_path: Path) -> None:
    path = write(tmp_path / "ada.ipynb", lesson_cells("04"))
    out = tmp_path / "out"
    args = [str(path), "--out", str(out), "--lesson", "04", "--no-sandbox", "--quiet"]
    assert grade([*args, "--format", "json,gradescope"]) == 0
    entry = json.loads((out / "results.json").read_text())["submissions"][0]
    assert (entry["isolation"], entry["official"]) == ("none", False)
    assert entry["score"] == entry["max_score"]
    assert "not official" in (out / "feedback" / "ada.html").read_text()
    assert "not official" in json.loads((out / "gradescope" / "ada.json").read_text())["output"]


def die_or_hang(
    item: Submission, ids: list[str], isolation: str, limits: Limits, seed: int | None
) -> dict[str, Any]:
    """What a marker does that loses two of three submissions."""
    if item.student == "dies":
        os._exit(9)
    while item.student == "hangs":
        time.sleep(1)
    return {"student": item.student, "process": os.getpid()}


def test_a_marker_that_dies_or_hangs_costs_only_its_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch.Plan, "patience", 6.0)
    done: dict[str, Any] = {}
    plan = batch.Plan(exercises_of(["04"]), tmp_path, "bubblewrap", 2)
    waiting = [Submission(name, tmp_path) for name in ("ada", "dies", "hangs", "bob")]
    batch.attend(waiting, plan, lambda item, entry: done.update({item.student: entry}), die_or_hang)
    assert set(done) == {"ada", "dies", "hangs", "bob"}
    assert done["ada"]["process"] != os.getpid()
    for name, why in (("dies", "ended, with status 9"), ("hangs", "did not end in time")):
        assert {e["status"] for e in done[name]["exercises"]} == {"not graded"}
        assert why in done[name]["warnings"][0]


def test_markers_that_never_start_end_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = batch.Plan(exercises_of(["04"]), tmp_path / "out", "bubblewrap", 2)
    item = Submission("ada", write(tmp_path / "ada.ipynb", []))
    with pytest.raises(SandboxError, match="bubblewrap"):
        batch.run([item], plan, None)


def test_check_tells_a_learner_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = lesson_cells("04", e04_2="def slot_of(a, b, c):\n    return b", e04_3=stub("04.3"))
    path = write(tmp_path / "04_block_tables.ipynb", cells)
    assert main(["check", str(path), "--hints", "2"]) == 0
    said = capsys.readouterr().out
    assert "04.1 BlockPool: passed" in said
    assert "04.2 slot_of: failed" in said
    assert "expected" in said
    assert catalogue()[ID].mistakes["ignores the table"] in said
    assert "hint 2" in said
    assert "04.3 BlockTable: not done" in said
    assert "03.1" not in said


def test_check_prints_verdicts_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = lesson_cells("04", e04_2="def slot_of(a, b, c):\n    return b", e04_3=stub("04.3"))
    path = write(tmp_path / "04_block_tables.ipynb", cells)
    assert main(["check", str(path), "--json"]) == 0
    found = {entry["id"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(found) == [exercise.id for exercise in exercises_of(["04"])]
    assert found["04.1"]["status"] == "passed"
    assert found["04.3"]["status"] == "not done"
    wrong = found["04.2"]
    assert (wrong["name"], wrong["mistake"]) == ("slot_of", "ignores the table")
    assert wrong["about"].startswith("again = slot_of(")
    assert wrong["saw"] != wrong["due"]
    assert set(wrong) == {"id", "name", "status", "about", "saw", "due", "mistake", "because"}


def test_a_notebook_without_exercises_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "notes.ipynb", [code_cell("x = 1")])
    assert main(["check", str(path)]) == 2
    assert "no exercise of the course" in capsys.readouterr().err


def hostile_entry() -> dict[str, Any]:
    evil = '=cmd()<script>alert("1")</script>&\x0b'
    outcome = Outcome("04.2", "a <b>", "slot_of", "failed", 0, 1)
    outcome.saw = outcome.mistake = outcome.because = outcome.hint = evil
    found = Marks(evil, evil, "", "bubblewrap", [outcome], [evil], [evil])
    return results.record(found)


def test_hostile_words_do_no_harm_in_any_form() -> None:
    entry = hostile_entry()
    doc = results.document([entry], [catalogue()[ID]])
    page = feedback.page(entry)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert ElementTree.fromstring(results.as_junit(doc).encode()).find(".//failure") is not None
    row = next(csv.DictReader(io.StringIO(results.as_csv(doc))))
    assert row["student"].startswith("'=")
    json.loads(results.as_json(doc))


def test_no_result_holds_what_was_due_or_drawn(tmp_path: Path) -> None:
    cells = [code_cell("def slot_of(a, b, c):\n    return -12345\n", ID)]
    out = tmp_path / "out"
    sandbox()
    args = [str(write(tmp_path / "ada.ipynb", cells)), "--out", str(out), "--lesson", "04"]
    formats = "json,csv,junit,gradescope,classroom50"
    assert grade([*args, "--quiet", "--format", formats]) == 0
    entry = json.loads((out / "results.json").read_text())["submissions"][0]
    failed = next(e for e in entry["exercises"] if e["id"] == ID)
    assert failed["status"] == "failed"
    assert "…" in failed["saw"]
    assert not any(c.isdigit() for c in failed["saw"])
    texts = [path.read_text() for path in out.rglob("*") if path.is_file()]
    assert len(texts) >= 7
    assert not any("12345" in text for text in texts)


def test_a_name_adds_no_line_to_the_table() -> None:
    entry = results.record(Marks("eve\nada     6/6", "a", "", "bubblewrap", []))
    assert [str(cell) for cell in table([entry]).columns[0].cells] == ["eve ada 6/6"]


def test_results_of_an_earlier_run_are_no_submission(tmp_path: Path) -> None:
    out = tmp_path / "results"
    out.mkdir()
    assert grade([str(tmp_path), "--out", str(out), "--lesson", "04"]) == 2


def test_a_terminal_that_knows_few_characters_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(written, "ascii", write_through=True))
    assert main(["→"]) == 2
    assert b"no command" in written.getvalue()


def test_file_names_of_students_are_safe_and_differ() -> None:
    names = ["ada", "../../etc", "a/b", "a_b", "", ".", "ä", "ö", "x" * 300, "con\n"]
    names += ["\udcff", "\udcfe", batch.key_of("a/b")]
    keys = [batch.key_of(name) for name in names]
    assert len(set(keys)) == len(names)
    assert all(key and "/" not in key and not key.startswith(".") for key in keys)
    assert max(map(len, keys)) < 80


def test_gradescopes_zip_grades_a_submission(tmp_path: Path) -> None:
    path = tmp_path / "autograder.zip"
    assert hosting.main(["gradescope", str(path), "--lesson", "4"]) == 0
    source, submission = tmp_path / "source", tmp_path / "submission"
    with zipfile.ZipFile(path) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
        archive.extractall(source)
    assert modes["setup.sh"] & 0o111
    assert modes["run_autograder"] & 0o111
    for script in ("setup.sh", "run_autograder"):
        subprocess.run(["bash", "-n", str(source / script)], check=True)
    write(submission / "whatever name.ipynb", lesson_cells("04"))
    (tmp_path / "results").mkdir()
    script = (source / "run_autograder").read_text().replace("/autograder/", f"{tmp_path}/")
    script = script.replace(f"{tmp_path}/venv/bin/python", sys.executable)
    if isinstance(_sandbox(), str):
        script = script.replace("--single", "--single --no-sandbox")
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run(["bash", "-c", script], check=True, env=environment, cwd=tmp_path)
    found = json.loads((tmp_path / "results" / "results.json").read_text())
    assert found["score"] == sum(exercise.points for exercise in exercises_of(["04"]))


def test_the_workflow_is_yaml_that_runs_the_command(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    path = tmp_path / "grade.yml"
    assert hosting.main(["workflow", str(path), "--lesson", "04", "--course", "a/b"]) == 0
    steps = yaml.safe_load(path.read_text())["jobs"]["grade"]["steps"]
    assert any("cli grade submission --single" in step.get("run", "") for step in steps)
    assert any(step.get("with", {}).get("repository") == "a/b" for step in steps)


def test_a_wheel_checks_and_grades_outside_a_checkout(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PACKAGE, project / "minipaged", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, project)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*build, str(project), "-w", str(tmp_path)], check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    shutil.rmtree(project)
    cells = lesson_cells("04", e04_2="def slot_of(a, b, c):\n    return b")
    path = write(tmp_path / "04_block_tables.ipynb", cells)

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
        command = [sys.executable, "-m", "minipaged.course.cli", *arguments]
        ended = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    verdicts = json.loads(run("check", str(path), "--json"))
    due = {exercise.id: "passed" for exercise in exercises_of(["04"])} | {ID: "failed"}
    assert {verdict["id"]: verdict["status"] for verdict in verdicts} == due
    kind = ["--no-sandbox"] if isinstance(_sandbox(), str) else []
    run("grade", str(path), "--out", "out", "--lesson", "04", *kind)
    entry = json.loads((tmp_path / "out" / "results.json").read_text())["submissions"][0]
    assert entry["score"] == entry["max_score"] - 1
