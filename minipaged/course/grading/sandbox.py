"""Sandboxes: a warmed parent per marker, and a `Channel` to one child per exercise and submission.

Three kinds of isolation, named in every result:

bubblewrap  Linux namespaces: no network, no other processes, no files but Python, torch and what
            the exercise may see. Works as root, and as another user where the kernel lets users
            make namespaces.
user        started as root where namespaces are forbidden: a user of its own for each child. The
            course must be unreadable for others (mode 0700), which is tested. Fit for a container
            that holds one student.
none        limits only. The learner's code can read what you can read.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import secrets
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Self

from ..kit.catalogue import PACKAGE, ROOT
from .channel import Channel, Job, Limits, RemoteSubject, SandboxError

HERE = Path(__file__).resolve().parent
CODEC = PACKAGE / "course" / "kit" / "subject.py"
LIBRARIES = ("torch", "numpy", "safetensors", "tokenizers", "triton")
KINDS = ("bubblewrap", "user", "none")

# --- the command that starts a parent ------------------------------------------------------------


def library_entries() -> dict[str, Path]:
    """The files and folders of torch, and of all that it and the package need, by their names.

    Nothing else of the environment is shown to a submission: neither an installed copy of the
    course nor an engine that holds its answers.
    """
    entries: dict[str, Path] = {}
    seen: set[str] = set()
    waiting = list(LIBRARIES)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen or name == "minipaged":
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in distribution.files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__", "bin") and not top.endswith(".pth"):
                entries[top] = Path(str(distribution.locate_file(top)))
        for requirement in distribution.requires or []:
            wanted, _, marker = requirement.partition(";")
            if "extra" not in marker:
                waiting.append(re.match(r"[\w.-]+", wanted.strip())[0])  # type: ignore[index]
    for name in LIBRARIES:  # an installer may leave no list of a library's files
        spec = importlib.util.find_spec(name)
        if spec and spec.origin and name not in entries:
            entries[name] = Path(spec.origin).parent
    return {name: path for name, path in entries.items() if path.exists()}


def python_binds() -> list[str]:
    """What bubblewrap shows of Python itself and of the system's libraries."""
    binds: list[str] = []
    for folder in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"):
        if os.path.islink(folder):
            binds += ["--symlink", os.readlink(folder), folder]
        elif os.path.exists(folder):
            binds += ["--ro-bind", folder, folder]
    executable = os.path.realpath(sys.executable)
    base = os.path.realpath(sys.base_prefix)
    shown = {executable}
    if base != "/usr":
        shown.add(os.path.join(base, "lib"))
    shown.add(os.path.realpath(sysconfig.get_path("stdlib")))
    for path in sorted(shown):
        if not path.startswith(("/lib/", "/usr/lib/")):
            binds += ["--ro-bind", path, path]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for place in (os.path.join(base, "lib", version), "/usr/lib/python3", f"/usr/lib/{version}"):
        for name in ("site-packages", "dist-packages"):
            if os.path.isdir(os.path.join(place, name)):
                binds += ["--tmpfs", os.path.join(place, name)]
    return binds


def bubblewrap_command() -> list[str]:
    """bwrap with a read-only world that holds Python, torch, the model's files and the worker."""
    command = [shutil.which("bwrap") or "bwrap", "--clearenv"]
    command += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--uid", "65000", "--gid", "65000"]
    for name, value in environment().items():
        command += ["--setenv", name, value]
    binds = python_binds()
    for name, path in library_entries().items():
        binds += ["--ro-bind", str(path), f"/libraries/{name}"]
    binds += ["--ro-bind", str(HERE / "worker.py"), "/course/worker.py"]
    binds += ["--ro-bind", str(CODEC), "/course/codec.py"]
    binds += ["--ro-bind", str(PACKAGE / "data"), "/course/data"]
    command += ["--dev", "/dev", "--proc", "/proc", "--perms", "0755", "--dir", "/tmp"]
    places = (Path(binds[idx + 2]) for idx, word in enumerate(binds) if word == "--ro-bind")
    for folder in sorted({str(parent) for place in places for parent in place.parents} - {"/"}):
        if not os.path.islink(folder):  # bubblewrap itself would make them 0700
            command += ["--perms", "0755", "--dir", folder]
    command += binds
    return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def why_not(kind: str) -> str | None:
    """Why a kind of isolation can't be had here, as far as that shows without trying."""
    if kind == "bubblewrap" and not (sys.platform == "linux" and shutil.which("bwrap")):
        return "bubblewrap: the program bwrap is not installed, or this is not Linux"
    if kind == "user" and (sys.platform != "linux" or os.geteuid() != 0):
        return "user: this isolation needs Linux and root"
    return None


def environment() -> dict[str, str]:
    """All of the environment that there is inside."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **dict.fromkeys(names, "1"),
        "LC_ALL": "C.UTF-8",
        "HOME": "/tmp",
        "PATH": "",
        "CUDA_VISIBLE_DEVICES": "",
        "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS
    }


# --- one parent ----------------------------------------------------------------------------------


class Sandbox:
    """A warmed parent. `open` gives a channel to a new child."""

    def __init__(self, kind: str, limits: Limits | None = None) -> None:
        """Start it and prove that it holds.

        Raises:
            SandboxError: when it does not start, or does not hold what it should.
        """
        if kind not in KINDS:
            raise ValueError(f"isolation {kind!r} is none of {', '.join(KINDS)}")
        self.kind = kind
        self.limits = limits or Limits()
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.start()
        if kind != "none":
            try:
                self.prove()
            except BaseException:
                self.close()
                raise

    def start(self) -> None:
        """Start the parent and wait until torch is there."""
        if why := why_not(self.kind):
            raise SandboxError(why)
        ours, theirs = socket.socketpair()
        inside = self.kind == "bubblewrap"
        config = {
            "mode": self.kind,
            "own_user": inside and os.geteuid() == 0,
            "uid": 61_000 + 1000 * secrets.randbelow(4),
            "control": theirs.fileno(),
            "paths": ["/libraries"] if inside else library_paths(),
            "codec": "/course/codec.py" if inside else str(CODEC),
            "limits": asdict(self.limits),
        }
        worker = "/course/worker.py" if inside else str(HERE / "worker.py")
        python = [os.path.realpath(sys.executable) if inside else sys.executable, "-I", "-S", "-B"]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self.process = subprocess.Popen(
            [*(bubblewrap_command() if inside else []), *python, worker, json.dumps(config)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            env=None if inside else environment(),
            cwd="/",
        )
        theirs.close()
        self.control = ours
        ready, _, _ = select.select([ours], [], [], 120)
        if not ready or ours.recv(1) != b"R":
            self.log.seek(0)
            said = self.log.read()[-600:].decode(errors="replace").strip()
            self.close()
            raise SandboxError(f"{self.kind}: it did not start. {said}")

    def open(self, job: Job) -> "Channel":
        """A channel to a new child that has loaded the job.

        Raises:
            SandboxError: when there is no child.
        """
        if self.process is None or self.process.poll() is not None:
            self.close()
            self.start()
        assert self.control is not None
        channel, inside = socket.socketpair()
        leash, held = socket.socketpair()
        try:
            socket.send_fds(self.control, [b"J"], [inside.fileno(), held.fileno()])
        except OSError as error:
            channel.close()
            leash.close()
            self.close()
            raise SandboxError(f"{self.kind}: the parent is gone ({error})") from None
        finally:
            inside.close()
            held.close()
        data = "/course/data" if self.kind == "bubblewrap" else str(PACKAGE / "data")
        return Channel(channel, leash, job, data if job.view else None, self.limits)

    def prove(self) -> None:
        """Run something that tries what must not work.

        Raises:
            SandboxError: naming what worked.
        """
        with self.open(Job("probe", PROBE)) as channel:
            if channel.loaded:
                raise SandboxError(f"{self.kind}: {channel.loaded.text}")
            subject = RemoteSubject(channel, 0)
            paths = [str(PACKAGE / "block_table.py"), str(ROOT / "tests"), "/proc/self", str(ROOT)]
            installed = [str(Path(path) / "minipaged") for path in sys.path if path]
            found = subject.call("probe", [*paths, *installed], self.limits.processes + 4).value
        if type(found) is not dict:
            raise SandboxError(f"{self.kind}: the probe gave no answer")
        open_doors = [name for name, holds in found.items() if holds is not True]
        if self.kind == "user":
            open_doors = [name for name in open_doors if not name.startswith("hides /proc")]
        if open_doors:
            advice = "; chmod 0700 the course's folder" if self.kind == "user" else ""
            raise SandboxError(f"{self.kind}: it does not hold: {', '.join(open_doors)}{advice}")

    def close(self) -> None:
        """End the parent and all that runs below it."""
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
            self.process = None
            self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def library_paths() -> list[str]:
    """Where the libraries lie, for the kinds of isolation that have no view of their own."""
    return sorted({str(path.parent) for path in library_entries().values()})


PROBE = """
import os, socket, signal

def probe(paths, processes):
    found = {"is not root": os.getuid() != 0}
    for path in paths:
        try:
            open(path).close()
            found["hides " + path] = False
        except IsADirectoryError:
            try:
                found["hides " + path] = not os.listdir(path)
            except OSError:
                found["hides " + path] = True
        except OSError:
            found["hides " + path] = True
    try:
        socket.socket()
        found["has no sockets"] = False
    except OSError:
        found["has no sockets"] = True
    children = []
    try:
        for _ in range(processes):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
        found["limits processes"] = False
    except OSError:
        found["limits processes"] = True
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return found
"""
