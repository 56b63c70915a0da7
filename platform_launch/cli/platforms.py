"""``platform-launch platforms``: the dialects this launcher knows, in the order they are tried."""

from __future__ import annotations

import json

import click

from platform_launch.platforms import PLATFORMS


@click.command("platforms")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(form: str) -> None:
    """List the platforms this launcher knows, in the order they are tried."""
    if form == "json":
        listed = [{"name": p.name, "title": p.title, "recognised_by": p.recognised_by} for p in PLATFORMS]
        click.echo(json.dumps(listed, indent=2, ensure_ascii=False))
        return
    for platform in PLATFORMS:
        click.echo(f"{platform.name:<17} {platform.title}")
        click.echo(f"{'':<17} recognised by {platform.recognised_by}")
