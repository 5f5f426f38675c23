"""use_mine() puts the learner's modules in front; each test in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import minipaged

PROJECT = Path(minipaged.__file__).parent.parent


@pytest.fixture
def mine(tmp_path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "block_table.py").write_text(
        "from .paging import PageTable\n\n\nclass BlockPool:\n    whose = 'mine'\n"
    )
    return folder


def run(code: str, mine: Path, **environment: str) -> subprocess.CompletedProcess:
    env = {key: value for key, value in os.environ.items() if key != "MINIPAGED_MINE"}
    env |= {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"} | environment
    code = f"import minipaged\nmine = {str(mine)!r}\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env=env,
        cwd=mine.parent,
    )


def test_importing_the_package_loads_no_submodule_and_no_torch(mine):
    code = (
        "import sys\n"
        "print([m for m in sys.modules if m.startswith('minipaged.') or m == 'torch'])\n"
        "print(minipaged.__version__)"
    )
    assert run(code, mine).stdout.split("\n")[:2] == ["[]", "0.1.0"]


def test_the_learners_module_comes_first_and_its_relative_imports_work(mine):
    done = run(
        "minipaged.use_mine(mine)\n"
        "import minipaged.block_table, minipaged.paging\n"
        "print(minipaged.block_table.BlockPool.whose, minipaged.paging.__file__)",
        mine,
    )
    assert done.stdout.split("\n")[:2] == [
        "yours: block_table",
        f"mine {PROJECT / 'minipaged' / 'paging.py'}",
    ]


def test_imports_between_the_courses_modules_bind_to_the_learners(mine):
    (mine / "naive_cache.py").write_text("from .attention import attention\n")
    (mine / "attention.py").write_text("attention = 'mine'\n")
    (mine / "block_table.py").unlink()
    done = run(
        "minipaged.use_mine(mine)\nfrom minipaged.naive_cache import attention\nprint(attention)",
        mine,
    )
    assert done.stdout.split("\n")[1] == "mine"


def test_a_module_loaded_before_is_named_and_nothing_changes(mine):
    done = run(
        "import minipaged.block_table\n"
        "path = list(minipaged.__path__)\n"
        "try:\n    minipaged.use_mine(mine)\n"
        "except RuntimeError as error:\n    print(error)\n"
        "print(path == list(minipaged.__path__))",
        mine,
    )
    assert done.stdout.split("\n")[:2] == [
        "loaded already: minipaged.block_table; restart the kernel, then call use_mine() first",
        "True",
    ]


def test_a_loaded_module_that_is_not_in_mine_does_no_harm(mine):
    done = run(
        "import minipaged.paging\nminipaged.use_mine(mine)\n"
        "import minipaged.block_table\nprint(minipaged.block_table.BlockPool.whose)",
        mine,
    )
    assert done.stdout.split("\n")[1] == "mine"


def test_calling_it_twice_is_calling_it_once(mine):
    done = run(
        "minipaged.use_mine(mine)\nimport minipaged.block_table\nminipaged.use_mine(mine)\n"
        "print(len(minipaged.__path__))",
        mine,
    )
    assert done.stdout.split("\n")[2] == "2"


def test_a_module_passed_since_the_first_call_asks_for_a_restart(mine):
    done = run(
        "minipaged.use_mine(mine)\nimport minipaged.paging\n"
        "open(mine + '/paging.py', 'w').close()\nminipaged.use_mine(mine)",
        mine,
    )
    assert "RuntimeError: loaded already: minipaged.paging; restart the kernel" in done.stderr


def test_switched_off_it_changes_nothing_and_says_so(mine):
    done = run(
        "minipaged.use_mine(mine)\nimport minipaged.block_table\n"
        "print(hasattr(minipaged.block_table.BlockPool, 'whose'))",
        mine,
        MINIPAGED_MINE="off",
    )
    assert done.stdout.split("\n")[:2] == [
        "MINIPAGED_MINE=off: the course's own modules are used",
        "False",
    ]


@pytest.mark.parametrize("state", ["absent", "empty"])
def test_no_folder_or_no_module_says_that_no_exercise_has_been_passed(mine, state):
    (mine / "block_table.py").unlink()
    if state == "absent":
        mine.rmdir()
    done = run("minipaged.use_mine(mine)", mine)
    assert "FileNotFoundError" in done.stderr
    assert "no exercise has been passed yet" in done.stderr


@pytest.mark.parametrize("project", [True, False])
def test_without_a_folder_it_is_that_of_the_project_or_of_the_working_directory(mine, project):
    root = mine.parent if project else mine.parent / "installed"
    package = root / "minipaged"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text((PROJECT / "minipaged" / "__init__.py").read_text())
    (package / "paging.py").write_text("PageTable = None\n")
    move = ""
    if project:
        (root / "lessons").mkdir()
        move = f"import os\nos.chdir({str(root / 'lessons')!r})\n"
    done = run(
        f"{move}minipaged.use_mine()\n"
        "import minipaged.block_table\nprint(minipaged.block_table.__file__)",
        mine,
        PYTHONPATH=str(root),
    )
    assert done.stdout.split("\n")[1] == str(mine / "block_table.py")


def test_the_given_model_is_found_from_the_learners_module(mine):
    (mine / "generation.py").write_text((PROJECT / "minipaged" / "generation.py").read_text())
    done = run(
        "minipaged.use_mine(mine)\nimport minipaged.generation as own\n"
        "print(own.__file__)\nprint(own.Model.load().config.num_layers)",
        mine,
    )
    assert done.stdout.split("\n")[1:3] == [str(mine / "generation.py"), "4"]
