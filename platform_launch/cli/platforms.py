"""``platform-launch platforms``: the platforms this launcher knows, in the order they are tried."""

from __future__ import annotations

import click

from platform_launch.cli.flags import json_or_table
from platform_launch.cli.options import lang_option
from platform_launch.cli.output import print_json
from platform_launch.console.languages import translate
from platform_launch.platforms import PLATFORMS
from platform_launch.text import Phrase


@click.command("platforms")
@json_or_table
@lang_option
def command(form: str) -> None:
    """List the platforms this launcher knows, in the order they are tried."""
    if form == "json":
        print_json([{"name": p.name, "title": p.title, "recognised_by": p.recognised_by} for p in PLATFORMS])
        return
    for platform in PLATFORMS:
        click.echo(f"{platform.name:<17} {translate(platform.title)}")
        mark = Phrase("recognised by {mark}", mark=translate(platform.recognised_by))
        click.echo(f"{'':<17} {translate(mark)}")
