"""Make the course's environment: what `make lab` and `make test` run first.

    python3 minipaged/course/installing.py [--venv .venv] lab [test]

Runs on the plain Python of a new machine, also on one that is too old, and so imports nothing that
has to be installed. What is there already is left alone.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OLDEST, NEWEST = (3, 11), (3, 13)
# (GB to download, GB on disk): with the CPU build of torch, and with the CUDA build
CPU_SIZES, CUDA_SIZES = (0.6, 3), (3, 8)
NO_NETWORK = ("connection", "resolve", "timed out", "network", "no matching distribution")


class Refused(Exception):
    """Why the course cannot be installed here, and what to do about it, in one sentence."""


def refuse_unfit_machine(version, system, machine):
    """Raise Refused for a Python or a machine that will not do.

    Args:
        version: (major, minor) of this Python.
        system, machine: as `platform.system()` and `platform.machine()` give them.
    """
    if not OLDEST <= tuple(version) <= NEWEST:
        raise Refused(
            "Python {}.{} is installed, the course needs {}.{} to {}.{}: install one of them and "
            "run make PYTHON=python{}.{} lab.".format(*version, *OLDEST, *NEWEST, 3, 12)
        )
    if (system, machine) == ("Darwin", "x86_64"):
        raise Refused(
            "This Mac (or this Python) is for Intel processors, for which torch is no longer made: "
            "use a Mac with Apple silicon and its own Python, or run the course on Binder or Linux."
        )


def refuse_full_disk(free_bytes, needed_gb):
    """Raise Refused where there is less room than the environment takes."""
    if free_bytes < needed_gb * 1e9:
        raise Refused(
            "{:.1f} GB are free on this disk, about {} GB are needed: make room and try "
            "again.".format(free_bytes / 1e9, needed_gb)
        )


def explain_failure(output):
    """One sentence for what pip or uv said last."""
    text = output.lower()
    if any(word in text for word in NO_NETWORK):
        return "The packages could not be fetched: check the network connection and try again."
    if "no space left" in text:
        return "The disk is full: make room and try again."
    return "The installation failed; the lines above say why. Run it again when that is mended."


def plan(system, has_uv, has_gpu):
    """What will be installed, in words, and its (GB to download, GB on disk)."""
    if system != "Linux":
        return "torch for this machine", CPU_SIZES
    if has_uv and not has_gpu:
        return "the CPU build of torch, since there is no GPU", CPU_SIZES
    if has_uv:
        return "the build of torch that fits this GPU", CUDA_SIZES
    return (
        "torch as pip chooses it, which on Linux usually brings CUDA; with uv on the path "
        "(python -m pip install uv) a machine without a GPU needs {} GB only".format(CPU_SIZES[0]),
        CUDA_SIZES,
    )


def fingerprint(extras):
    """What the environment is made from: installed again when it changes."""
    text = ",".join(sorted(extras))
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            text += file.read()
    return hashlib.sha256(text.encode()).hexdigest()


def run(command):
    """Run a command, show what it prints, and raise Refused when it fails."""
    lines = []
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    for line in process.stdout or ():
        lines.append(line)
        print("  " + line, end="", flush=True)
    if process.wait():
        raise Refused(explain_failure("".join(lines[-30:])))


def install(venv, extras):
    """Make the environment if it is not there, or not this one."""
    refuse_unfit_machine(sys.version_info[:2], platform.system(), platform.machine())
    scripts = os.path.join(venv, "Scripts" if os.name == "nt" else "bin")
    python = os.path.join(scripts, "python")
    stamp = os.path.join(venv, "minipaged-{}.stamp".format("-".join(sorted(extras))))
    wanted = fingerprint(extras)
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read() == wanted:
                return
    uv, has_gpu = shutil.which("uv"), bool(shutil.which("nvidia-smi"))
    words, (download, on_disk) = plan(platform.system(), bool(uv), has_gpu)
    is_new = not os.path.exists(python)
    if is_new:
        parent = os.path.dirname(os.path.abspath(venv))
        refuse_full_disk(shutil.disk_usage(parent).free, on_disk)
        print("Making {} with Python {}.{}.".format(venv, *sys.version_info[:2]))
    print(
        "Installing the course ({}): {}.\nAbout {} GB to download and {} GB on disk the first "
        "time; what is there is not fetched again.".format(
            ", ".join(extras), words, download, on_disk
        )
    )
    sys.stdout.flush()
    requirement = ["-c", "constraints.txt", "-e", ".[{}]".format(",".join(extras))]
    if uv:
        if is_new:
            run([uv, "venv", "--quiet", "--python", sys.executable, venv])
        backend = ["--torch-backend", "auto"] if platform.system() == "Linux" else []
        run([uv, "pip", "install", "--python", python, *backend, *requirement])
    else:
        if is_new:
            try:
                run([sys.executable, "-m", "venv", venv])
            except Refused:
                shutil.rmtree(venv, ignore_errors=True)
                raise Refused(
                    "This Python cannot make a virtual environment: on Debian and Ubuntu install "
                    "python{}.{}-venv, then try again.".format(*sys.version_info[:2])
                ) from None
        run([python, "-m", "pip", "install", "--disable-pip-version-check", "-q", *requirement])
    with open(stamp, "w") as file:
        file.write(wanted)
    print("Installed.")


def main():
    """The command line; exit status 1 and one sentence where the course cannot be installed."""
    parser = argparse.ArgumentParser(description="Make the course's environment.")
    parser.add_argument("--venv", default=os.path.join(ROOT, ".venv"))
    parser.add_argument("extras", nargs="+", choices=["lab", "test"])
    options = parser.parse_args()
    try:
        install(options.venv, options.extras)
    except Refused as refused:
        sys.exit(str(refused))


if __name__ == "__main__":
    main()
