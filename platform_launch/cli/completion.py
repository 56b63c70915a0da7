"""Shell completion of values: files, folders, and names that only this project knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from platform_launch.errors import LaunchError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Offer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer files, and the folders on the way to them."""
    return _of_shell("file", incomplete)


def folders(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer folders."""
    return _of_shell("dir", incomplete)


def names(known: Callable[[click.Context], Iterable[str]]) -> Offer:
    """Return a completion that offers the names ``known`` returns, or none if it fails."""

    def offer(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            found = sorted(set(known(ctx)))
        except (LaunchError, OSError):
            return []  # an error would garble the command line that is being typed
        given = ctx.params.get(param.name or "") if param.nargs == -1 else None
        left = [name for name in found if name not in (given or ())]
        return [CompletionItem(name) for name in left if name.startswith(incomplete)]

    return offer


def jobs(ctx: click.Context) -> list[str]:
    """Return the jobs that have logs in the folder the command line names."""
    from platform_launch.project import logs_folder
    from platform_launch.why.sources import jobs_in

    return jobs_in(ctx.params.get("log_dir") or logs_folder())


def jobs_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer jobs, or files if no job starts with this text."""
    return names(jobs)(ctx, param, incomplete) or files(ctx, param, incomplete)


def _of_shell(kind: str, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    item: CompletionItem[Any] = CompletionItem(incomplete, type=kind)
    return [item]
