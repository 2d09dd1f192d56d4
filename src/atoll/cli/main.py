"""The `atoll` command.

Each command lives in its own file as a typer function named `command` (or a typer app named `app`, for those with
commands of their own). Only the file of the command that is asked for is read; it imports light modules at the top and
the rest inside the function, so that help answers at once and a laptop without a GPU stack can plan. Whatever a person
can act on ends here as one `error:` line and one `hint:` line on stderr, with the exit code of its kind; a traceback
means a defect of ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from atoll.errors import AtollError

COMMANDS = (
    "train",
    "join",
    "sim",
    "compare",
    "plan",
    "limits",
    "demo",
    "peer",
    "data",
    "export",
    "generate",
    "recipes",
    "watch",
    "schema",
    "version",
)
"""In the order of the help page."""

EPILOG = """\b
Examples:
  atoll demo                           four peers train a small model on this machine
  atoll train run.toml --peers 2       start a run and print the ticket that others join with
  atoll join TICKET                    take part in a run
  atoll sim run.toml --fleet homes     the same run in virtual time on an imagined fleet

\b
Exit codes:
  0 done   1 failed   2 wrong usage or run file   3 this machine cannot do its part
  4 network or peer lost   5 refused   130 interrupted (Ctrl-C)
"""

app = typer.Typer(
    name="atoll",
    help="Train one language model on many machines that are far apart, unequal and unreliable.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    """Train one language model on many machines that are far apart, unequal and unreliable."""


def _register(words: Sequence[str]) -> None:
    """Add the command that the first word names; where it names none, every one whose file is there."""
    named = [name for name in COMMANDS if name in words[:1]]
    for name in named or COMMANDS:
        if importlib.util.find_spec(f"atoll.cli.{name}") is None:
            continue
        module = importlib.import_module(f"atoll.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        elif hasattr(module, "command"):
            app.command(name, hidden=getattr(module, "HIDDEN", False))(module.command)


def main() -> NoReturn:
    """Run the command line; never returns."""
    _register(sys.argv[1:])
    try:
        app(prog_name="atoll")
    except AtollError as error:
        fail(error)
    except BaseExceptionGroup as group:  # from a task group: the first that a person can act on speaks
        first = _first(group)
        if first is None:
            raise
        fail(first)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone (`atoll recipes | head -1`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def fail(error: AtollError) -> NoReturn:
    """Print an error and its hint, and exit with its code."""
    print(f"error: {error.what}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    sys.exit(error.exit_code)


def _first(group: BaseExceptionGroup[BaseException]) -> AtollError | None:
    """Return the first error of ours in a group, however deep."""
    for error in group.exceptions:
        found = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, AtollError):
            return found
    return None


if __name__ == "__main__":
    main()
