"""Tokens kept between calls: one for each server, in a file that only this user may read."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.errors import InputError, UsageError


@dataclass(frozen=True)
class Server:
    """Where the server is, and the token to show there."""

    url: str
    token: str | None


class Saved:
    """The file ``$XDG_CONFIG_HOME/procguard/tokens.json``."""

    def __init__(self, env: Environment) -> None:
        home = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".config")
        self.path = Path(home) / "procguard" / "tokens.json"

    def read(self) -> dict[str, str]:
        """Return server → token, the one logged in to last at the end."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path} cannot be read: {error}", "remove it and log in again") from error
        if not isinstance(kept, dict):
            raise InputError(f"{self.path} does not hold tokens", "remove it and log in again")
        return {str(url): str(token) for url, token in kept.items()}

    def keep(self, url: str, token: str | None) -> None:
        """Keep a server's token as the last one, or forget it. Raises InputError."""
        kept = {known: its for known, its in self.read().items() if known != url}
        if token is not None:
            kept[url] = token
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self.path.parent)  # mode 0600
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(kept, file, indent=2)
                Path(name).replace(self.path)
            finally:
                with suppress(FileNotFoundError):
                    Path(name).unlink()
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from error


def server(env: Environment, url: str | None) -> Server:
    """Return the server that is meant, and its token. Raises UsageError, InputError."""
    saved = Saved(env)
    kept = saved.read()
    wanted = url or env.get("PROCGUARD_SERVER") or next(reversed(kept), None)
    if wanted is None:
        raise UsageError(
            "no server is named: expected --server or PROCGUARD_SERVER, or a login before",
            "procguard ctl login --server http://127.0.0.1:8765",
        )
    wanted = wanted.strip().rstrip("/")
    if not wanted.startswith(("http://", "https://")):
        raise UsageError(f"server {wanted!r}: expected http://HOST:PORT or https://HOST:PORT")
    return Server(wanted, env.get("PROCGUARD_TOKEN") or kept.get(wanted))
