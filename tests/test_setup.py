"""Set-up: requirements stand once, the installer refuses in clear words, README says what is."""

import ast
import functools
import operator
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from minipaged.course import cli, installing
from minipaged.course.kit.catalogue import ROOT, course
from minipaged.course.notebook import doctor as diagnosis

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
VERBS = re.search(r"\.PHONY: (.*)", MAKEFILE)[1].split()


def requirements() -> dict[str, Requirement]:
    texts = PROJECT["dependencies"] + functools.reduce(
        operator.iadd, PROJECT["optional-dependencies"].values(), []
    )
    return {item.name: item for item in map(Requirement, texts)}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_every_pin_is_within_its_range_and_every_range_has_a_pin() -> None:
    for name, item in requirements().items():
        if name != "triton":
            assert item.specifier.contains(pins()[name]), name


def test_nothing_of_a_gpu_is_pinned() -> None:
    assert not [name for name in pins() if "triton" in name or "nvidia" in name or "cu1" in name]
    assert not requirements()["triton"].specifier
    assert str(requirements()["triton"].marker) == 'sys_platform == "linux"'


def test_conda_makes_the_same_environment() -> None:
    text = (ROOT / "environment.yml").read_text()
    entries = re.findall(r"^ +- (.+?)(?:  #.*)?$", text, re.MULTILINE)
    python = next(entry for entry in entries if entry.startswith("python="))
    extras = ",".join(PROJECT["optional-dependencies"])
    assert PROJECT["requires-python"] == ">=3.11,<3.14" and python == "python=3.12"
    assert f"pytorch-cpu={pins()['torch']}" in entries
    assert entries[-3:] == ["pip:", "-c constraints.txt", f"-e .[{extras}]"]
    # whatever else is needed comes through pip, from pyproject.toml
    assert len(entries) == len(["conda-forge", "python", "pip", "pytorch-cpu", *entries[-3:]])


def test_the_supported_pythons_stand_once() -> None:
    oldest, newest = installing.OLDEST, installing.NEWEST
    wanted = f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
    assert PROJECT["requires-python"] == wanted
    assert (
        f"({oldest[0]}, {oldest[1]}) <= sys.version_info < ({newest[0]}, {newest[1] + 1})"
        in MAKEFILE
    )


@pytest.mark.parametrize(
    ("version", "system", "machine", "says"),
    [
        ((3, 10), "Linux", "x86_64", "Python 3.10"),
        ((3, 14), "Linux", "x86_64", "Python 3.14"),
        ((3, 12), "Darwin", "x86_64", "Apple silicon"),
    ],
)
def test_unfit_machines_are_refused_with_a_remedy(version, system, machine, says) -> None:
    with pytest.raises(installing.Refused, match=says):
        installing.refuse_unfit_machine(version, system, machine)


@pytest.mark.parametrize(
    "machine", [("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")]
)
@pytest.mark.parametrize("minor", [11, 12, 13])
def test_fit_machines_are_not_refused(minor, machine) -> None:
    installing.refuse_unfit_machine((3, minor), *machine)


def test_a_full_disk_is_refused_with_both_numbers() -> None:
    with pytest.raises(installing.Refused, match=r"1\.5 GB are free.*about 3 GB are needed"):
        installing.refuse_full_disk(1_500_000_000, 3)
    installing.refuse_full_disk(3_100_000_000, 3)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("ERROR: No matching distribution found for torch==2.13.0", "network"),
        ("Failed to establish a new connection: [Errno -3]", "network"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("error: metadata-generation-failed", "lines above"),
    ],
)
def test_failures_are_explained(output, says) -> None:
    assert says in installing.explain_failure(output)


def test_cuda_is_announced_where_pip_would_bring_it() -> None:
    words, sizes = installing.plan("Linux", has_uv=False, has_gpu=False)
    assert "CUDA" in words and sizes == installing.CUDA_SIZES
    assert installing.plan("Linux", has_uv=True, has_gpu=False)[1] == installing.CPU_SIZES
    assert installing.plan("Darwin", has_uv=False, has_gpu=False)[1] == installing.CPU_SIZES


def test_the_installer_can_be_read_by_the_pythons_that_it_refuses() -> None:
    text = Path(installing.__file__).read_text()
    ast.parse(text, feature_version=(3, 6))
    assert "f'" not in text and 'f"' not in text


@pytest.mark.parametrize("extras", [["lab"], ["lab", "test"]])
def test_an_environment_that_stands_is_left_alone(extras, tmp_path, monkeypatch, capsys) -> None:
    ran = []
    monkeypatch.setattr(installing, "run", ran.append)
    monkeypatch.setattr(installing.shutil, "which", lambda name: None)
    (tmp_path / "venv").mkdir()
    installing.install(str(tmp_path / "venv"), extras)
    assert "GB to download" in capsys.readouterr().out
    assert ran[0][1:3] == ["-m", "venv"] and ran[1][-1] == f".[{','.join(extras)}]"
    installing.install(str(tmp_path / "venv"), extras)
    assert len(ran) == 2 and capsys.readouterr().out == ""


def test_uv_is_asked_for_the_build_that_fits(tmp_path, monkeypatch) -> None:
    ran = []
    monkeypatch.setattr(installing, "run", ran.append)
    monkeypatch.setattr(
        installing.shutil, "which", lambda name: "/bin/uv" if name == "uv" else None
    )
    monkeypatch.setattr(installing.platform, "system", lambda: "Linux")
    (tmp_path / "venv").mkdir()
    installing.install(str(tmp_path / "venv"), ["lab"])
    assert [command[0] for command in ran] == ["/bin/uv", "/bin/uv"]
    assert ran[1][ran[1].index("--torch-backend") + 1] == "auto"


def test_make_says_in_one_sentence_that_there_is_no_python(tmp_path) -> None:
    command = ["make", "lab", "PYTHON=no-such-python", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "There is no no-such-python here: install Python 3.11" in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_readme_lists_every_verb_of_make(verb) -> None:
    assert f"make {verb}" in README


def test_readme_names_no_verb_or_command_that_there_is_not() -> None:
    assert set(re.findall(r"`?make ([a-z-]+)", README)) <= set(VERBS)
    assert set(re.findall(r"^ *minipaged ([a-z]+)", README, re.MULTILINE)) <= set(cli.COMMANDS)


def test_readme_has_a_row_for_each_lesson() -> None:
    for lesson in course().lessons:
        link = rf"\[0?{int(lesson.id)}[^|]*\]\(lessons/{lesson.notebook}\.ipynb\)"
        row = rf"\| {link} \| {re.escape(lesson.title)}[^|]*\|[^|]*\| {lesson.minutes} \|"
        assert re.search(row, README), lesson


def test_readme_points_at_files_that_are_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_readme_lines_without_make_do_what_make_does() -> None:
    """Windows has no make: the lines for it call the same installer with the same words."""
    lines = [line.strip() for line in README.splitlines() if "installing.py" in line]
    assert lines
    for line in lines:
        file, *extras = line.split()[-len(line.split()) + 2 :]
        assert (ROOT / file.replace("\\", "/")).is_file()
        assert extras == ["lab", "test"] or extras == ["lab"]
    assert r".venv\Scripts\jupyter lab --notebook-dir=. lessons\00_start_here.ipynb" in README


def test_ci_runs_the_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK) and "\nmake test\n" in script.read_text()


def test_doctor_finds_all_well_here(capsys) -> None:
    assert cli.main(["doctor"]) == 0
    assert "Once upon a time, a" in capsys.readouterr().out


def test_doctor_names_the_remedy(monkeypatch, capsys) -> None:
    broken = (("package", diagnosis.packages(("no_such_package",))), *diagnosis.CHECKS[:1])
    monkeypatch.setattr(diagnosis, "CHECKS", broken)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "TROUBLE package" in out and "Remedy: run `make lab` again" in out
    assert "ok      python" in out


def test_unknown_commands_are_named(capsys) -> None:
    assert cli.main(["grad"]) == 2
    assert "no command 'grad'" in capsys.readouterr().err
    assert cli.main([]) == 0
    assert "doctor" in capsys.readouterr().out
