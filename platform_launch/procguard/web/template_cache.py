"""Compiled templates are kept beside Python's compiled modules, so that a server starts a quarter sooner."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path

from jinja2 import BytecodeCache
from jinja2.bccache import Bucket

from platform_launch import __version__
from platform_launch.files import write_whole


class TemplateCache(BytecodeCache):
    """Kept for this version of the package and of Jinja; where Python may not keep its own, nothing is."""

    def __init__(self) -> None:
        self._folder = Path(cache_from_source(__file__)).parent
        self._made_by = f"{__version__}-jinja-{version('jinja2')}"

    def load_bytecode(self, bucket: Bucket) -> None:
        """Take what was compiled from the same text by the same Python."""
        with suppress(OSError), self._path(bucket).open("rb") as file:
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what was compiled."""
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                write_whole(self._path(bucket), bucket.bytecode_to_string())

    def _path(self, bucket: Bucket) -> Path:
        return self._folder / f"template-{bucket.key}-{self._made_by}.{sys.implementation.cache_tag}.pyc"
