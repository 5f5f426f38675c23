"""One canonical result, and the forms that other systems read, all made from it.

The canonical form, `minipaged/grades/v1`, is JSON:

    schema        "minipaged/grades/v1"
    course        a digest of the package and its checks
    graded_at     when, in UTC
    lessons       the lessons that were graded
    max_score     what a right submission gets
    submissions   for each:
        student, path, digest (of the files), isolation ("bubblewrap", "user", "none"),
        official (false for "none"), score, max_score, files, warnings,
        exercises  for each: id, title, name, status ("passed", "failed", "not done", "missing",
                   "not graded"), points, max_points, saw, mistake (the name of the known mistake
                   that acts as the code does, or null), because, holds, hint, seed, seconds

Neither expected values nor drawn inputs are in it; the seed tells the instructor what was drawn.
"""

import csv
import datetime
import hashlib
import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ..kit.catalogue import FILE, PACKAGE, Exercise
from ..notebook.mine import write_atomically
from .marking import Marks

SCHEMA = "minipaged/grades/v1"
FORMATS = ("json", "csv", "junit", "gradescope", "classroom50")
Record = dict[str, Any]


@cache
def course_digest() -> str:
    """A digest of everything that a verdict depends on."""
    digest = hashlib.sha256()
    for file in sorted([*PACKAGE.rglob("*.py"), FILE]):
        digest.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def now() -> str:
    """The time in UTC, as ISO 8601 has it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def record(marks: Marks) -> Record:
    """One submission in the canonical form."""
    exercises = [
        {name: value for name, value in asdict(outcome).items() if name != "full"}
        for outcome in marks.outcomes
    ]
    return {
        "student": marks.student,
        "path": marks.path,
        "digest": marks.digest,
        "isolation": marks.isolation,
        "official": marks.isolation != "none",
        "score": marks.score,
        "max_score": marks.max_score,
        "files": marks.files,
        "warnings": marks.warnings,
        "exercises": exercises,
    }


def document(records: list[Record], exercises: list[Exercise]) -> Record:
    """A whole batch in the canonical form."""
    return {
        "schema": SCHEMA,
        "course": course_digest(),
        "graded_at": now(),
        "lessons": sorted({exercise.lesson for exercise in exercises}),
        "max_score": sum(exercise.points for exercise in exercises),
        "submissions": records,
    }


def not_graded(entry: Record) -> list[str]:
    """The exercises that could not be graded through no fault of the submission."""
    return [e["id"] for e in entry["exercises"] if e["status"] == "not graded"]


def as_json(content: Any) -> str:
    """JSON text that ends in a newline."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(doc: Record) -> str:
    """A line for each submission: score, points by exercise, and the known mistakes made."""
    out = io.StringIO()
    ids = list(dict.fromkeys(e["id"] for s in doc["submissions"] for e in s["exercises"]))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["student", "score", "max_score", *ids, "mistakes", "isolation", "warnings"])
    for entry in doc["submissions"]:
        points = {
            e["id"]: "" if e["status"] == "not graded" else e["points"] for e in entry["exercises"]
        }
        row = [entry["student"], entry["score"], entry["max_score"]]
        row += [points.get(exercise, "") for exercise in ids]
        told = [f"{e['id']}: {e['mistake']}" for e in entry["exercises"] if e["mistake"]]
        row += ["; ".join(told), entry["isolation"], "; ".join(entry["warnings"])]
        writer.writerow([no_formula(value) for value in row])
    return out.getvalue()


def no_formula(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.lstrip()[:1] in ("=", "+", "-", "@", "|", "%"):
        return f"'{value}"
    return value


def as_junit(doc: Record) -> str:
    """JUnit XML: a suite for each submission, a case for each exercise."""
    root = ElementTree.Element("testsuites", name="minipaged")
    for entry in doc["submissions"]:
        cases = entry["exercises"]
        bad = [e for e in cases if e["status"] not in ("passed", "not graded")]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=xml_text(entry["student"]),
            tests=str(len(cases)),
            failures=str(len(bad)),
            errors=str(len(not_graded(entry))),
            time=f"{sum(e['seconds'] for e in cases):.3f}",
        )
        for e in cases:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=xml_text(entry["student"]),
                name=f"{e['id']} {e['name']}",
                time=f"{e['seconds']:.3f}",
            )
            if e["status"] != "passed":
                kind = "error" if e["status"] == "not graded" else "failure"
                message = xml_text(e["because"] or e["status"])
                child = ElementTree.SubElement(case, kind, type=e["status"], message=message)
                child.text = xml_text(explanation(e))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def xml_text(text: str) -> str:
    """A text without the characters that XML does not have."""
    return "".join(c for c in text if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff"))


def label_of(e: Record) -> str:
    """What kind of reason is given: what the code does, what must hold, or another."""
    if e["status"] != "failed":
        return "reason"
    return "your code" if e["mistake"] else "must hold"


def explanation(e: Record) -> str:
    """What a learner is told about one exercise, as plain text."""
    if e["status"] == "passed":
        return str(e["holds"])
    parts = [
        ("what holds", e["holds"] if e["status"] == "failed" else ""),
        ("saw", e["saw"]),
        (label_of(e), e["because"]),
        ("hint", e["hint"]),
    ]
    lines = [f"{name}: {text}" for name, text in parts if text]
    return "\n".join(lines) or str(e["status"])


def as_gradescope(entry: Record) -> Record:
    """Gradescope's results.json of one submission."""
    seconds = sum(e["seconds"] for e in entry["exercises"])
    notes = [*entry["warnings"]]
    if not entry["official"]:
        notes.append("graded without a sandbox: not official")
    return {
        "score": entry["score"],
        "execution_time": round(seconds),
        "output": "\n".join(notes),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {"isolation": entry["isolation"], "max_score": entry["max_score"]},
        "tests": [
            {
                "name": f"{e['id']} {e['title']} ({e['name']})",
                "score": e["points"],
                "max_score": e["max_points"],
                "status": "passed" if e["status"] == "passed" else "failed",
                "output": f"{e['status']}\n{explanation(e)}",
                "output_format": "text",
                "visibility": "visible",
            }
            for e in entry["exercises"]
        ],
    }


def as_classroom50(entry: Record) -> Record:
    """The classroom50/result/v1 of one submission; what is around it comes from its runner."""
    get = os.environ.get
    server = get("GITHUB_SERVER_URL", "https://github.com")
    place = f"{server}/{get('GITHUB_REPOSITORY', '')}"
    commit = get("COMMIT_URL") or f"{place}/commit/{get('GITHUB_SHA', '')}"
    submission = get("SUBMISSION_TAG") or get("GITHUB_REF_NAME") or entry["student"]
    return {
        "schema": "classroom50/result/v1",
        "classroom": get("CLASSROOM") or "minipaged",
        "assignment": get("ASSIGNMENT") or "minipaged",
        "usernames": [get("USERNAME") or get("GITHUB_ACTOR") or entry["student"]],
        "submission": submission,
        "commit": commit,
        "release": get("RELEASE_URL") or f"{place}/releases/tag/{submission}",
        "review": get("REVIEW_URL") or commit,
        "datetime": now(),
        "score": entry["score"],
        "max-score": entry["max_score"],
        "tests": [
            {
                "test-name": f"{e['id']} {e['name']}",
                "passed": e["status"] == "passed",
                "score": e["points"],
                "max-score": e["max_points"],
            }
            for e in entry["exercises"]
        ],
    }


def write_single(entry: Record, folder: Path, key: str, formats: tuple[str, ...]) -> None:
    """Write the forms that are one file a submission."""
    makers: dict[str, Callable[[Record], Record]] = {
        "gradescope": as_gradescope,
        "classroom50": as_classroom50,
    }
    for name, maker in makers.items():
        if name in formats:
            write_atomically(folder / name / f"{key}.json", as_json(maker(entry)))


def write_all(doc: Record, folder: Path, formats: tuple[str, ...]) -> list[Path]:
    """Write the forms that are one file for all; the canonical JSON always."""
    texts = {"results.json": as_json(doc)}
    if "csv" in formats:
        texts["results.csv"] = as_csv(doc)
    if "junit" in formats:
        texts["results.xml"] = as_junit(doc)
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return [folder / name for name in texts]
