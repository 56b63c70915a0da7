"""Shared by the command lines of this package: lazily loaded commands, and errors in one form."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click import core, exceptions, parser, types

from platform_launch import streams
from platform_launch.console import Console
from platform_launch.console.languages import translate
from platform_launch.errors import InstallationError, LaunchError, UsageError, of_file
from platform_launch.helper import PACKAGE
from platform_launch.text import Phrase, joined, wrapped

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def _of_click(text: str) -> str:
    return text if text.isalpha() and text.islower() else translate(text)  # names of types stay as they are


def _one_or_many_of_click(one: str, many: str, number: int) -> str:
    return translate(one if number == 1 else many)


# click passes its messages through gettext's functions. Here they are looked up in this project's catalogue.
for _module in (core, exceptions, parser, types):
    vars(_module).update(_=_of_click, ngettext=_one_or_many_of_click)

# What --help shows for a number, instead of INTEGER RANGE; the range follows the description.
types.IntRange.name, types.FloatRange.name = "integer", "number"


class HelpFormatter(click.HelpFormatter):
    """Writes click's help in the user's language; English is left to click."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the line of usage."""
        super().write_usage(prog, args, translate("Usage: ") if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        """Write the title of a section."""
        title = translate(heading)
        self.write(f"{'':>{self.current_indent}}{title}{':' if title.isascii() else '：'}\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        translated = translate(text)
        if translated == text:
            super().write_text(text)
            return
        indent = " " * self.current_indent
        for line in translated.replace(
            "\b\n", ""
        ).splitlines():  # \b: lines of this paragraph stay as they are
            parts = wrapped(line, self.width - len(indent))
            self.write("".join(f"{indent}{part}".rstrip() + "\n" for part in parts))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write options or commands with their descriptions."""
        rows = list(rows)
        parts = [(name, *text.partition("  [")) for name, text in rows]  # click appends default and range
        translated = [
            (name, translate(text) + bracket + translate(joined(extra.split("; "), "; ")))
            for name, text, bracket, extra in parts
        ]
        if translated == rows:
            super().write_dl(rows, col_max, col_spacing)
            return
        indent = " " * self.current_indent
        column = min(max(len(name) for name, _ in rows), col_max) + col_spacing
        for name, text in translated:
            first, *rest = wrapped(text, max(self.width - len(indent) - column, 10))
            lead = f"{indent}{name}".ljust(len(indent) + column)
            if len(name) > column - col_spacing:
                lead = f"{indent}{name}\n{indent}{'':{column}}"
            self.write(f"{lead}{first}\n" + "".join(f"{indent}{'':{column}}{part}\n" for part in rest))


click.Context.formatter_class = HelpFormatter

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

EXIT_CODES = (
    "Exit codes: 64 command line, 65 topology, 66 input files, 67 installation, 69 hardware, 75 nodes absent "
    "(retry), 76 nodes disagree, 77 hang, 78 unfit node. Once the job runs: its own exit code."
)
"""The end of --help. An installed package has no copy of docs/reference/exit-codes.md."""


class Commands(click.Group):
    """A group that imports a command's module only when that command runs.

    ``modules`` maps each command to the module whose ``command`` it is, and to its line of help.
    """

    def __init__(self, *args: Any, modules: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in their own order."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self._modules:
            return None
        command = import_module(self._modules[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands that start with this text, without importing any, or the options."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=line)
            for name, (_, line) in self._modules.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._modules.items()])


def message_of(error: click.UsageError) -> str:
    """Return click's message. An option that shares little more than dashes is not offered."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        from difflib import get_close_matches

        name = error.option_name.strip("-")
        near = [one for one in error.possibilities if get_close_matches(name, [one.strip("-")])]
        error = click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
    return error.format_message()


def run_program(group: click.Group, name: str, arguments: Sequence[str] | None) -> int:
    """Run a command line and return the exit code. Every expected failure becomes an error and a hint."""
    streams.ensure()
    if not PACKAGE.is_dir():
        return show(
            InstallationError(
                Phrase(
                    "{folder} is not a folder: processes can be started from files, not from an archive",
                    folder=PACKAGE,
                ),
                "install the package with pip, or unpack the archive",
            )
        )
    try:
        code = group.main(args=arguments, prog_name=name, standalone_mode=False)
    except LaunchError as error:
        return show(error)
    except click.UsageError as error:
        message = message_of(error)
        if not message.isascii():
            message = message.removesuffix(".").replace(" （", "（")  # what click itself adds
        if message.startswith("Usage: "):  # a group without a command: its help, since click 8.2 as an error
            click.echo(message, err=True)
            return UsageError.exit_code
        where = error.ctx.command_path if error.ctx is not None else name
        return show(UsageError(message, Phrase("see {where} --help", where=where)))
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader of our output exited (`| head`); the interpreter must not complain at exit.
        sys.stdout = None
        return 141
    except OSError as error:
        known = of_file(error)
        if known is None:
            raise
        if error.filename is None:
            sys.stdout = None
        return show(known)
    return code if isinstance(code, int) else 0


def show(error: LaunchError) -> int:
    """Print an error in this project's form and return its exit code."""
    Console().show_error(error)
    return error.exit_code
