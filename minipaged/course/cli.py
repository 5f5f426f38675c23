"""The command `minipaged`."""

import io
import sys
from collections.abc import Callable, Sequence


def doctor_command(arguments: Sequence[str]) -> int:
    """Look whether everything that the course needs is here and works."""
    from .notebook.doctor import doctor

    return 0 if doctor() else 1


def progress_command(arguments: Sequence[str]) -> int:
    """Show which exercises are done."""
    from .notebook.checking import progress

    progress()
    return 0


def bench_command(arguments: Sequence[str]) -> int:
    """Time the ways to attend, as ratios from one run."""
    from . import bench

    bench.main(arguments)
    return 0


def check_command(arguments: Sequence[str]) -> int:
    """Run the checks over a notebook of your own, with hints."""
    from .grading.commands import check_command as command

    return command(arguments)


def grade_command(arguments: Sequence[str]) -> int:
    """Grade submitted notebooks without trusting them."""
    from .grading.commands import grade_command as command

    return command(arguments)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "doctor": doctor_command,
    "progress": progress_command,
    "check": check_command,
    "grade": grade_command,
    "bench": bench_command,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 when all went well."""
    for stream in (sys.stdout, sys.stderr):  # a name that a terminal can't show stops nothing
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]](words[1:])
    lines = [f"  {name:10}{command.__doc__}" for name, command in COMMANDS.items()]
    usage = "usage: minipaged COMMAND [OPTIONS]; COMMAND --help tells more\n\n" + "\n".join(lines)
    if not words or words[0] in ("-h", "--help"):
        print(usage)
        return 0
    print(f"minipaged: no command {words[0]!r}\n{usage}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
