"""How a benchmark shows its rows: each as soon as it is there, and at the end all of them as JSON where asked to.

Our own errors are told in words, and Ctrl-C or SIGTERM ends it with everything that is cleaned up then.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

from bench.stage import leave

from atoll.errors import AtollError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is what a benchmark says of itself, with the flag that all of them have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser


def asked_for(name: str, patterns: str) -> bool:
    """Return whether a name is one of those that somebody asked for: patterns, by comma."""
    return any(fnmatch(name, pattern) for pattern in patterns.split(","))


def show(rows: Iterable[R], text: Callable[[R], str], *, as_json: bool) -> list[R]:
    """Print rows as they come and return them."""
    shown: list[R] = []
    with ending():
        for row in rows:
            shown.append(row)
            print(text(row), file=sys.stderr if as_json else sys.stdout, flush=True)
    if as_json:
        print(json.dumps([asdict(row) for row in shown]))
    return shown


@contextmanager
def ending() -> Iterator[None]:
    """End the program in words where it cannot go on, and quietly where it was asked to end."""
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except AtollError as error:
        print(f"error: {error.what}", *([f"hint: {error.hint}"] if error.hint else []), sep="\n", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def folder_of(keep: Path | None, name: str) -> Iterator[Path]:
    """Give a row a folder of its own: under `keep`, or for as long as it takes."""
    if keep is not None:
        yield keep / name
    else:
        with TemporaryDirectory() as made:
            yield Path(made)
