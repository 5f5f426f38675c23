"""The command `minipaged`; what a command needs is imported when it is called."""

import importlib
import io
import sys
from collections.abc import Sequence

import click

COMMANDS = {  # where each is, and what it does
    "doctor": ("cli:doctor", "Test whether everything that the course needs is here and works."),
    "progress": ("cli:progress", "Show which exercises are done."),
    "check": ("grading.commands:check_command", "Check a notebook of your own, with hints."),
    "grade": ("grading.commands:grade_command", "Grade notebooks without trusting them."),
    "bench": ("cli:bench", "Time the ways to attend, as ratios from one run."),
}


class Commands(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command:
        """A command by its name."""
        if name not in COMMANDS:
            context.fail(f"no command {name!r}; there are {', '.join(COMMANDS)}")
        module, _, attribute = COMMANDS[name][0].partition(":")
        found = getattr(importlib.import_module(f"minipaged.course.{module}"), attribute)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """What there is, without importing it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.pass_context
def minipaged(context: click.Context) -> int:
    """A course in notebooks: build PagedAttention step by step. COMMAND --help tells more."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


@click.command()
def doctor() -> int:
    """Test whether everything that the course needs is here and works."""
    from .notebook.doctor import doctor

    return 0 if doctor() else 1


@click.command()
def progress() -> int:
    """Show which exercises are done."""
    from .notebook.checking import progress

    progress()
    return 0


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> int:
    """Time the ways to attend, as ratios from one run."""
    from . import bench

    bench.main(arguments)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 when all went well, 2 for one that makes no sense."""
    for stream in (sys.stdout, sys.stderr):  # a name that a terminal can't show stops nothing
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return int(minipaged(None if arguments is None else list(arguments), standalone_mode=False))
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
