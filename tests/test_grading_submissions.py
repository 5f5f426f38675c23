"""What can be handed in: every odd form is read as far as it can be, and said."""

import ast
import json
import os
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from minipaged.course.grading import submissions
from minipaged.course.grading.marking import TooSlow, at_most, exercises_of
from minipaged.course.grading.submissions import Found, Submission, find, find_submissions, read
from minipaged.course.kit.catalogue import catalogue
from minipaged.course.kit.source import NotFound
from tests.grading_tools import code_cell, given, lesson_cells, notebook, source, stub, write

SLOT = catalogue()["04.2"]


def found(path: Path) -> tuple[Found, str]:
    """The definition of slot_of in a submission, and all that was said of it."""
    contents = read(Submission("ada", path))
    result = find(SLOT, contents.cells)
    return result, "; ".join([*contents.warnings, *result.warnings])


def warnings_of(path: Path) -> str:
    return "; ".join(read(Submission("ada", path)).warnings)


def test_exercise_is_found_by_its_id(tmp_path: Path) -> None:
    result, said = found(write(tmp_path / "04_block_tables.ipynb", lesson_cells("04")))
    assert result.extracted.target == source("04.2")
    assert not result.stub
    assert said == ""


def test_without_metadata_it_is_found_by_its_name_and_said(tmp_path: Path) -> None:
    cells = lesson_cells("04")
    for cell in cells:
        cell["metadata"] = {}
    result, said = found(write(tmp_path / "a.ipynb", cells))
    assert result.extracted.target == source("04.2")
    assert "found by the name slot_of" in said


def test_nbgraders_metadata_names_the_exercise_too(tmp_path: Path) -> None:
    cells = lesson_cells("04")
    for cell in cells:
        cell["metadata"].pop("minipaged", None)
    assert found(write(tmp_path / "a.ipynb", cells))[1] == ""


def test_of_a_duplicated_cell_the_last_counts(tmp_path: Path) -> None:
    cells = lesson_cells("04")
    cells.append(code_cell(source("04.2").replace("return ", "return 1 + "), "04.2"))
    result, said = found(write(tmp_path / "a.ipynb", cells))
    assert "return 1 + " in result.extracted.target
    assert "is there twice" in said


def test_a_new_cell_counts_where_the_exercises_own_is_untouched(tmp_path: Path) -> None:
    cells = [*lesson_cells("04", e04_2=stub("04.2")), code_cell(source("04.2"))]
    result, said = found(write(tmp_path / "a.ipynb", cells))
    assert not result.stub
    assert "untouched" in said


def test_a_foreign_id_on_a_cell_does_not_hide_the_definition(tmp_path: Path) -> None:
    cells = [code_cell("x = 1", "04.2"), code_cell(source("04.2"), "04.1")]
    result, said = found(write(tmp_path / "a.ipynb", cells))
    assert result.extracted.target == source("04.2")
    assert "does not define it" in said


def test_an_untouched_stub_is_a_stub(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", lesson_cells("04", e04_2=stub("04.2")))
    assert found(path)[0].stub


def test_a_deleted_cell_is_missing(tmp_path: Path) -> None:
    cells = [cell for cell in lesson_cells("04") if "def slot_of" not in cell["source"]]
    with pytest.raises(NotFound, match="no cell defines slot_of"):
        found(write(tmp_path / "a.ipynb", cells))


def test_a_cell_turned_markdown_is_read_and_said(tmp_path: Path) -> None:
    cells = lesson_cells("04")
    for cell in cells:
        if "def slot_of" in cell["source"]:
            cell["cell_type"] = "markdown"
    result, said = found(write(tmp_path / "a.ipynb", cells))
    assert result.extracted.target == source("04.2")
    assert "not a code cell" in said


def test_definitions_after_use_and_ipythons_lines_are_understood(tmp_path: Path) -> None:
    body = "def slot_of(block_ids, token_idx, block_size):\n    return helper(block_ids)\n"
    cells = [
        code_cell("%matplotlib inline\n!ls\n" + body + "%timeit 3\n", "04.2"),
        code_cell("%%bash\nrm -rf /"),
        code_cell("helper = lambda ids: 1\nassert False\nraise SystemExit\n"),
        code_cell("def helper(ids):\n    return FIRST\n"),
        code_cell("FIRST = 3\nx?\nfiles = !ls\n"),
    ]
    result, said = found(write(tmp_path / "a.ipynb", cells))
    text = result.extracted.source
    assert "def helper" in text
    assert "FIRST = 3" in text
    assert "SystemExit" not in text
    assert "only IPython knows" in said
    compile(text, "a", "exec")


def test_a_time_magic_above_a_definition_is_left_out(tmp_path: Path) -> None:
    cells = [code_cell("%%time\n" + source("04.2"), "04.2")]
    assert not found(write(tmp_path / "a.ipynb", cells))[0].stub


def test_a_cell_that_is_no_python_is_missing_and_says_why(tmp_path: Path) -> None:
    cells = [code_cell("def slot_of(block_ids:\n", "04.2")]
    with pytest.raises(NotFound, match="not Python"):
        found(write(tmp_path / "a.ipynb", cells))


BROKEN = {
    "empty": (b"", "it is empty"),
    "white space": (b" \n", "it is empty"),
    "truncated": (json.dumps(notebook(lesson_cells("04"))).encode()[:-40], "not JSON"),
    "no object": (b"[1, 2]", "not a notebook"),
    "a number": (b"NaN", "not a notebook"),
    "no cells": (b'{"nbformat": 4}', "no cells"),
    "cells of a wrong form": (b'{"cells": {"a": 1}, "nbformat": 4}', "no cells"),
    "no text": (b"\xff\xfe\x00\x01", "not UTF-8"),
    "nested too deep": (b"[" * 200_000, "nested too deep"),
    "a huge number": (b'{"cells": [], "nbformat": ' + b"9" * 10_000 + b"}", "not JSON|limit"),
    "worksheets of a wrong form": (b'{"nbformat": 3, "worksheets": [{"cells": 5}, 1]}', "not 4"),
    "odd cells": (b'{"cells": [1, null, {"cell_type": 3}], "nbformat": 4}', "3 cells"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_notebook_is_said_and_stops_nothing(name: str, tmp_path: Path) -> None:
    data, said = BROKEN[name]
    path = tmp_path / "a.ipynb"
    path.write_bytes(data)
    assert any(part in warnings_of(path) for part in said.split("|")), warnings_of(path)


def test_a_notebook_of_200_megabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    with path.open("wb") as file:
        file.truncate(200 << 20)
    assert "more than 20 MB" in warnings_of(path)


def test_code_without_end_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", [code_cell("x = 1\n" * 7_000)] * 2)
    assert "lines of code" in warnings_of(path)


def test_a_cell_without_end_is_left_out_alone(tmp_path: Path) -> None:
    cells = [code_cell("# " + "x" * (10 << 20)), *lesson_cells("04")]
    path = write(tmp_path / "a.ipynb", cells)
    assert found(path)[0].extracted.target == source("04.2")
    assert "cell 1 of a.ipynb was left out" in warnings_of(path)


def test_nan_in_its_json_does_no_harm(tmp_path: Path) -> None:
    cells = lesson_cells("04")
    cells[0]["metadata"]["score"] = float("nan")
    assert found(write(tmp_path / "a.ipynb", cells))[1] == ""


@pytest.mark.parametrize("version", [3, 5, "x", None])
def test_another_version_is_read_and_said(tmp_path: Path, version: object) -> None:
    content = {**notebook(lesson_cells("04")), "nbformat": version}
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(content))
    assert "not 4" in found(path)[1]


def test_an_old_notebook_with_worksheets_is_read(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "input": source("04.2"), "language": "python"}]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"worksheets": [{"cells": cells}], "nbformat": 3}))
    assert not found(path)[0].stub


def test_source_as_a_list_of_lines_is_read(tmp_path: Path) -> None:
    cell = code_cell("", "04.2")
    cell["source"] = source("04.2").splitlines(keepends=True)
    assert not found(write(tmp_path / "a.ipynb", [cell]))[0].stub


def test_lone_surrogates_and_nulls_in_a_cell_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    cell = code_cell("X = '\ud800\0'\n" + source("04.2"), "04.2")
    path.write_text(json.dumps(notebook([cell])))
    found(path)[0].extracted.source.encode("utf-8")


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = write(tmp_path / "elsewhere" / "04_x.ipynb", lesson_cells("04"))
    folder = tmp_path / "ada"
    folder.mkdir()
    (folder / "04_block_tables.ipynb").symlink_to(secret)
    (folder / "more").symlink_to(secret.parent)
    said = warnings_of(folder)
    assert said.count("symbolic link") == 2
    assert not read(Submission("ada", folder)).cells
    link = tmp_path / "bob"
    link.symlink_to(secret.parent)
    assert "symbolic link" in warnings_of(link)


def test_a_pipe_does_not_hold_the_batch_up(tmp_path: Path) -> None:
    folder = tmp_path / "ada"
    folder.mkdir()
    os.mkfifo(folder / "04_a.ipynb")
    assert "not an ordinary file" in warnings_of(folder)


def test_a_zip_is_read_and_leads_nowhere(tmp_path: Path) -> None:
    text = json.dumps(notebook(lesson_cells("04")))
    path = tmp_path / "ada.zip"
    link = zipfile.ZipInfo("link.ipynb")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("work/04_block_tables.ipynb", text)
        archive.writestr("../../escaped.ipynb", text)
        archive.writestr("/absolute.ipynb", text)
        archive.writestr("C:\\windows.ipynb", text)
        archive.writestr("__MACOSX/work/._04_block_tables.ipynb", b"\0\1")
        archive.writestr(link, "/etc/passwd")
    contents = read(Submission("ada", path))
    assert contents.files == ["work/04_block_tables.ipynb"]
    said = "; ".join(contents.warnings)
    assert said.count("leads out of the zip") == 3
    assert "link.ipynb was not read: it is a symbolic link" in said
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ada.zip"]


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "ada.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("bomb.ipynb", "w", force_zip64=True) as file:
            for _ in range(300):
                file.write(b"0" * (1 << 20))
        archive.writestr("04_a.ipynb", json.dumps(notebook(lesson_cells("04"))))
    assert path.stat().st_size < 1 << 20
    contents = read(Submission("ada", path))
    assert "too large when unpacked" in "; ".join(contents.warnings)
    assert contents.files == ["04_a.ipynb"]


@pytest.mark.parametrize("data", [b"", b"PK\3\4 no zip", b"PK\5\6" + b"\0" * 18])
def test_a_broken_zip_is_said(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ada.zip"
    path.write_bytes(data)
    assert warnings_of(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_part_of_a_zip_costs_only_itself(tmp_path: Path, method: int) -> None:
    path = tmp_path / "ada" / "old.zip"
    write(tmp_path / "ada" / "04_block_tables.ipynb", lesson_cells("04"))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.ipynb", "damaged " * 500)
        start = archive.infolist()[0].compress_size // 2
        archive.writestr("b.ipynb", json.dumps(notebook([])))
    data = bytearray(path.read_bytes())
    data[37 + start // 2 : 37 + start] = b"\xff" * len(data[37 + start // 2 : 37 + start])
    path.write_bytes(data)
    for name in ("old.zip", "more.zip"):
        contents = read(Submission("ada", tmp_path / "ada"))
        assert contents.files[-1] == "04_block_tables.ipynb"
        assert "b.ipynb" in contents.files
        assert f"{'a.ipynb' if name == 'old.zip' else name} could not be read" in "; ".join(
            contents.warnings
        )
        (tmp_path / "ada" / "more.zip").write_bytes(b"PK\3\4 no zip")


def test_a_copy_counts_less_than_the_lessons_own_notebook(tmp_path: Path) -> None:
    folder = tmp_path / "ada"
    wrong = source("04.2").replace("return ", "return 1 + ")
    write(folder / "04_block_tables.ipynb", lesson_cells("04"))
    write(folder / "04_block_tables-Copy1.ipynb", lesson_cells("04", e04_2=wrong))
    result, said = found(folder)
    assert result.extracted.target == source("04.2")
    assert "is there twice" in said


def test_a_class_is_found_in_a_folder_of_folders_zips_and_notebooks(tmp_path: Path) -> None:
    write(tmp_path / "ada" / "04_a.ipynb", [])
    write(tmp_path / "bob.ipynb", [])
    (tmp_path / "eve.zip").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no submission")
    (tmp_path / ".hidden").mkdir()
    found = find_submissions([tmp_path])
    assert [item.student for item in found] == ["ada", "bob", "eve"]


def test_a_folder_of_lessons_is_one_students(tmp_path: Path) -> None:
    write(tmp_path / "ada" / "03_paging.ipynb", [])
    write(tmp_path / "ada" / "04_block_tables.ipynb", [])
    assert [item.student for item in find_submissions([tmp_path / "ada"])] == ["ada"]


def test_names_that_are_alike_stay_apart(tmp_path: Path) -> None:
    paths = [write(tmp_path / name / "a.ipynb", []) for name in ("x", "y")]
    assert [item.student for item in find_submissions(paths)] == ["a", "a (2)"]
    paths += [write(tmp_path / "a (2).ipynb", []), write(tmp_path / "z" / "a.ipynb", [])]
    names = [item.student for item in find_submissions(paths)]
    assert names == ["a", "a (3)", "a (2)", "a (4)"]


def test_a_link_has_its_own_name_and_may_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    links = [tmp_path / "eve", tmp_path / "bob.ipynb"]
    for link, there in zip(links, ("there", "nowhere"), strict=True):
        link.symlink_to(tmp_path / there)
    assert [item.student for item in find_submissions(links, single=True)] == ["eve", "bob"]
    assert "symbolic link" in warnings_of(links[1])


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        find_submissions([tmp_path / "nowhere"])


def test_helpers_of_the_learners_come_along() -> None:
    cells = [submissions.Cell("cell 1", given("04.2"), None)]
    texts = ["import math as m", "@m_decorator\ndef slot_of(a, b, c):\n    return help_me(a)"]
    texts += ["def help_me(a):\n    return m.floor(a)", "def m_decorator(f):\n    return f"]
    cells += [submissions.Cell(f"cell {n}", text, None) for n, text in enumerate(texts, 2)]
    text = find(SLOT, cells).extracted.source
    space: dict = {}
    exec(text, space)
    assert space["slot_of"](2.5, 0, 0) == 2


SLOW = {
    "names without end": ",".join(f"a{n}" for n in range(50_000)) + " = 1",
    "assignments in a row": "x = " * 50_000 + "1",
    "lines that only IPython knows": "%time 1\n" * 9_000,
    "an endless number": "x = 0x" + "f" * 50_000,
    "an endless sum": "x = " + "1 + " * 50_000 + "1",
    "brackets": "x = " + "(" * 50_000,
    "definitions": "\n".join(f"def f{n}(): return f{n + 1}" for n in range(9_000)),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_cell_made_to_take_long_costs_only_itself(name: str, tmp_path: Path) -> None:
    start = time.monotonic()
    cells = [code_cell(SLOW[name]), *lesson_cells("04")]
    result, _ = found(write(tmp_path / "a.ipynb", cells))
    assert result.extracted.target == source("04.2")
    assert time.monotonic() - start < 10


def test_each_cell_is_parsed_once_for_all_exercises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [*lesson_cells("04", e04_2=stub("04.2")), code_cell(source("04.2"))]
    contents = read(Submission("ada", write(tmp_path / "a.ipynb", cells)))
    parse, texts = ast.parse, Counter[str]()

    def counted(text: str, *args: Any, **options: Any) -> ast.AST:
        texts[text] += 1
        return parse(text, *args, **options)

    monkeypatch.setattr(ast, "parse", counted)
    for exercise in exercises_of(["04"]):
        find(exercise, contents.cells)
    written = Counter(cell.text for cell in contents.cells)
    assert sum(texts.values()) > 5
    assert {text: n for text, n in texts.items() if n > written[text]} == {}


def test_what_takes_too_long_to_read_is_given_up() -> None:
    start = time.monotonic()
    with pytest.raises(TooSlow, match="longer than 0"), at_most(0.2):
        while True:
            pass
    assert time.monotonic() - start < 5
