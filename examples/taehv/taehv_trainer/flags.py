"""The command line of ``train.py``: every key of the config is a flag too."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from taehv_trainer.config import TrainConfig, key_types, load_config


def parse_arguments(arguments: Sequence[str]) -> TrainConfig:
    """Return the config that ``--config`` names, with the other flags in place of its values."""
    parser = argparse.ArgumentParser(
        prog="train.py",
        allow_abbrev=False,
        description="Train TAEHV, a tiny autoencoder of video latents. Start it with accelerate launch.",
    )
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="Python file: config = TrainConfig(...)"
    )
    keys = parser.add_argument_group("keys of the config", "A flag wins over the config file.")
    kinds = key_types()
    for key in fields(TrainConfig):
        kind = kinds[key.name]
        keys.add_argument(
            "--" + key.name.replace("_", "-"),
            type=_reader(kind),
            choices=get_args(kind) if get_origin(kind) is Literal else None,
            default=argparse.SUPPRESS,
            metavar=None if get_origin(kind) is Literal else "VALUE",
            help=f"{key.metadata['meaning']} (default: {key.default})",
        )
    given = vars(parser.parse_args(arguments))
    return load_config(given.pop("config"), given)


def _reader(kind: Any) -> Callable[[str], object]:
    if get_origin(kind) is Literal:
        return str
    kinds = get_args(kind) or (kind,)  # of `int | None`: both
    number = next((one for one in (int, float) if one in kinds), None)
    return number or (_yes_or_no if bool in kinds else str)


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected true or false")
    return text.lower() == "true"
