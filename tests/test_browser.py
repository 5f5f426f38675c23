"""One walk through lesson 4 as a learner takes it: JupyterLab, a browser, a mouse and a keyboard.

Needs selenium, Chromium and its driver; MINIPAGED_SCREENSHOTS=folder keeps what was seen.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minipaged.course.kit.catalogue import catalogue

ROOT = Path(__file__).resolve().parent.parent
LESSON = Path("lessons") / "04_block_tables.ipynb"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)
# No pop-up asks about news, and all cells are in the page, not only those in sight.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}


def missing() -> str:
    """Why this cannot run here; "" where it can."""
    if os.environ.get("CI"):
        return "CI is set: the walk in a browser is for machines of developers"
    absent = [name for name in ("selenium", "jupyterlab") if not importlib.util.find_spec(name)]
    absent += [] if CHROMIUM else ["chromium"]
    absent += [] if DRIVER else ["chromedriver"]
    if absent:
        return f"absent here: {', '.join(absent)}"
    return "" if (ROOT / LESSON).exists() else f"{LESSON} is not built"


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")


# ------------------------------------------------------------------------------ what it runs on


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, so that neither notebooks nor mine/ change."""
    copy = tmp_path / "project"
    for folder in ("minipaged", "lessons"):
        shutil.copytree(
            ROOT / folder,
            copy / folder,
            ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"),
        )
    return copy


@pytest.fixture
def address(project: Path, tmp_path: Path) -> Iterator[str]:
    """JupyterLab in the copied project, on a free port and without a token."""
    settings = tmp_path / "settings"
    settings.mkdir()
    (settings / "overrides.json").write_text(json.dumps(SETTINGS))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = {
        name: str(tmp_path / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    ours = ("MINIPAGED_MINE", "MINIPAGED_PREDICT")
    env = {key: value for key, value in os.environ.items() if key not in ours}
    env |= home | {"PYTHONPATH": str(project)}
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": project,
        "ServerApp.allow_root": True,
        "ServerApp.open_browser": False,
        "IdentityProvider.token": "",
        "LabApp.app_settings_dir": settings,
        "LabApp.user_settings_dir": tmp_path / "user",
        "LabApp.workspaces_dir": tmp_path / "workspaces",
    }
    log = tmp_path / "jupyterlab.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *(f"--{k}={v}" for k, v in options.items())],
            cwd=project,
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait(
            lambda: server.poll() is not None or answers(f"{address}/api/status"), "JupyterLab", 60
        )
        assert server.poll() is None, log.read_text()[-2000:]
        yield address
    finally:
        server.terminate()  # it shuts its kernels down
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)


def answers(url: str) -> bool:
    """Whether something is served there."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
            return True
    except OSError:
        return False


def wait(until: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    """What `until` gives once that is true."""
    end = time.monotonic() + seconds
    while not (value := until()):
        if time.monotonic() > end:
            pytest.fail(f"waited {seconds} s for: {what}")
        time.sleep(0.2)
    return value


# ------------------------------------------------------------------------------- what one can do


class Lab:
    """A notebook in JupyterLab, and what a learner sees of it and does with it."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser = browser
        self.address = address

    def cells(self) -> list[Any]:
        """The code cells in sight, from the top."""
        return self.find(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell")

    def find(self, selector: str, within: Any = None) -> list[Any]:
        return (within or self.browser).find_elements("css selector", selector)

    def text(self, element: Any) -> str:
        """The text of an element, in sight or not."""
        return self.browser.execute_script("return arguments[0].textContent", element)

    def code(self, cell: Any) -> str:
        """What stands in a cell's editor."""
        lines = self.find(".jp-InputArea-editor .cm-line", cell)
        return "\n".join(self.text(line) for line in lines)

    def output(self, cell: Any) -> str:
        return "\n".join(self.text(area) for area in self.find(".jp-OutputArea-output", cell))

    def cell_with(self, *parts: str) -> Any:
        """The only code cell that holds all these texts."""
        found = [cell for cell in self.cells() if all(part in self.code(cell) for part in parts)]
        assert len(found) == 1, f"{len(found)} cells hold {parts}"
        return found[0]

    def prompts(self) -> list[str]:
        """The execution counts of the code cells that hold something: "[3]:", "[*]:", "[ ]:"."""
        return self.browser.execute_script(
            "return [...document.querySelectorAll("
            "    '.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell')]"
            "  .filter(cell => cell.querySelector('.cm-content').textContent.trim())"
            "  .map(cell => cell.querySelector('.jp-InputPrompt').textContent.trim())"
        )

    def idle(self) -> bool:
        return bool(self.find('.jp-Notebook-ExecutionIndicator[data-status="idle"]'))

    def open(self, path: Path) -> None:
        """Open a notebook of the project and wait for its cells and its kernel."""
        cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
        number = sum(cell["cell_type"] == "code" for cell in cells)
        self.browser.get(f"{self.address}/lab/tree/{path.as_posix()}")
        wait(lambda: len(self.cells()) == number, f"the {number} code cells of {path}", 60)
        bar = self.find("#jp-main-statusbar")[0]
        wait(lambda: "Idle" in self.text(bar), f"a kernel of {path}", 60)

    def run_all(self, seconds: float) -> None:
        """Run > Run All Cells, and wait for the end."""
        (menu,) = (item for item in self.find(".lm-MenuBar-item") if self.text(item) == "Run")
        menu.click()
        command = '.lm-Menu-item[data-command="runmenu:run-all"]'
        wait(lambda: self.find(command), "the menu")[0].click()
        wait(
            lambda: self.idle() and all(p.strip("[]:").isdigit() for p in self.prompts()),
            "a number beside every cell",
            seconds,
        )

    def errors(self) -> list[str]:
        """The tracebacks in sight."""
        kind = '[data-mime-type="application/vnd.jupyter.error"]'
        return [self.text(area) for area in self.find(f".jp-OutputArea-output{kind}")]

    def show(self, element: Any) -> None:
        """Scroll to an element."""
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        time.sleep(0.3)

    def press(self, *keys: str) -> None:
        """Press keys one after the other; "shift+Enter" at once."""
        from selenium.webdriver import ActionChains, Keys

        for combined in keys:
            *held, key = combined.split("+")
            special = getattr(Keys, key.upper(), None) if len(key) > 1 else None
            actions = ActionChains(self.browser)
            for name in held:
                actions.key_down(getattr(Keys, name.upper()))
            actions.send_keys(special or key)
            for name in held:
                actions.key_up(getattr(Keys, name.upper()))
            actions.perform()

    def write(self, text: str) -> None:
        """Type text where the cursor is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(text).perform()

    def images(self, cell: Any) -> list[str]:
        """The figures in a cell's output, as their data."""
        return [image.get_attribute("src") for image in self.find(".jp-OutputArea img", cell)]

    def screenshot(self, name: str) -> None:
        if folder := os.environ.get("MINIPAGED_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.browser.save_screenshot(str(Path(folder) / f"{name}.png"))


@pytest.fixture
def lab(address: str, tmp_path: Path) -> Iterator[Lab]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield Lab(browser, address)
    finally:
        browser.quit()


# -------------------------------------------------------------------------------------- the walk


def test_a_learner_runs_lesson_4_moves_a_slider_and_solves_an_exercise(lab: Lab, project: Path):
    lab.open(LESSON)
    lab.screenshot("1-opened")

    lab.run_all(seconds=180)
    assert lab.errors() == []
    lab.screenshot("2-run")

    move_a_slider(lab)
    solve_slot_of(lab)

    assert lab.errors() == []
    joined = (project / "mine" / "block_table.py").read_text()
    assert "divmod(token_idx, block_size)" in joined
    record = json.loads((project / "mine" / "progress.json").read_text())
    assert record["04.2"] == {"status": "passed", "tries": 2}


def move_a_slider(lab: Lab) -> None:
    """The figure below the first slider that has one is drawn anew when the slider moves."""
    cell = next(c for c in lab.cells() if lab.find(".noUi-handle", c) and lab.images(c))
    handle, readout = lab.find(".noUi-handle", cell)[0], lab.find(".widget-readout", cell)[0]
    lab.show(handle)
    before, number = lab.images(cell), lab.text(readout)
    assert before[0].startswith("data:image/png;base64,")
    lab.screenshot("3-slider-before")
    handle.click()
    highest = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
    lab.press("Arrow_Left" if highest else "Arrow_Right")
    wait(lambda: lab.text(readout) != number, "the slider's number to change")
    wait(lambda: lab.images(cell) not in ([], before), "the figure to be drawn anew")
    assert lab.errors() == []
    lab.screenshot("4-slider-moved")


def solve_slot_of(lab: Lab) -> None:
    """The body of exercise 04.2 is typed; its cell and its check are run by the keyboard."""
    exercise = lab.cell_with("def slot_of(", "raise NotImplementedError")
    check = lab.cell_with('check("04.2", slot_of)')
    assert "04.2 slot_of: not done yet" in lab.output(check)
    lab.show(exercise)
    lab.find(".cm-content", exercise)[0].click()
    lab.press("control+End", "shift+Home")
    lab.write("return token_idx")
    lab.press("shift+Enter", "shift+Enter")
    wait(lambda: "04.2 slot_of: not right yet" in lab.output(check), "04.2 slot_of: not right yet")
    wait(lab.idle, "the kernel to be idle")
    told = lab.output(check)
    assert catalogue()["04.2"].mistakes["ignores the table"] in " ".join(told.split())
    assert "again = slot_of(" in told and catalogue()["04.2"].hints[0] in " ".join(told.split())
    lab.show(check)
    lab.screenshot("5-not-right")
    lab.find(".cm-content", exercise)[0].click()
    lab.press("control+End", "shift+Home")
    lab.write("block, offset = divmod(token_idx, block_size)")
    lab.press("Enter")
    lab.write("return block_ids[block] * block_size + offset")
    typed = lab.code(exercise).rstrip().split("\n")
    assert typed[-2:] == [
        "    block, offset = divmod(token_idx, block_size)",
        "    return block_ids[block] * block_size + offset",
    ]
    assert "NotImplementedError" not in "\n".join(typed)
    lab.press("shift+Enter", "shift+Enter")
    wait(lambda: "04.2 slot_of: passed" in lab.output(check), "04.2 slot_of: passed")
    wait(lab.idle, "the kernel to be idle")
    lab.show(check)
    lab.screenshot("6-passed")
