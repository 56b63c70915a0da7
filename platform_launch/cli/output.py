"""Writes files atomically, and never over an existing file unless asked to."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote

import click

from platform_launch import files
from platform_launch.errors import InputError, UsageError
from platform_launch.text import Phrase


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Write ``text`` to ``path``; an existing file only with ``force``. Never leaves half a file.

    Raises UsageError when the file exists, InputError when it cannot be written.
    """
    try:
        (files.write_whole if force else files.write_new)(path, text)
    except FileExistsError as error:
        raise UsageError(
            Phrase("{path} exists: expected a new file", path=path), "choose another name, or add --force"
        ) from error
    except FileNotFoundError as error:
        make_it = f"mkdir -p {quote(str(path.parent))}"
        raise InputError(
            Phrase("{path} cannot be written: there is no folder {parent}", path=path, parent=path.parent),
            make_it,
        ) from error
    except OSError as error:
        raise InputError(
            Phrase("{path} cannot be written: {problem}", path=path, problem=error.strerror)
        ) from error


def print_json(document: object) -> None:
    """Print a document as JSON."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def read_text(path: Path, hint: str = "") -> str:
    """Return a file's text. Raises InputError when it cannot be read; ``hint`` is what to do then."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            Phrase("{path} cannot be read: {problem}", path=path, problem=error.strerror), hint
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(Phrase("{path} is not a text file: expected UTF-8", path=path)) from error
