"""Saved tokens, one per server, in a file that only this user may read."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from platform_launch.environment import Environment
from platform_launch.errors import InputError, UsageError
from platform_launch.files import PRIVATE, write_whole
from platform_launch.text import Phrase


class SavedTokens:
    """The file ``$XDG_CONFIG_HOME/procguard/tokens.json``."""

    def __init__(self, env: Environment) -> None:
        home = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".config")
        self.path = Path(home) / "procguard" / "tokens.json"

    def read(self) -> dict[str, str]:
        """Return the token of each server; the last one is that of the last login."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InputError(
                Phrase("{file} cannot be read: {problem}", file=self.path, problem=error),
                "remove it and log in again",
            ) from error
        if not isinstance(kept, dict):
            raise InputError(
                Phrase("{file} contains no tokens", file=self.path), "remove it and log in again"
            )
        return {str(url): str(token) for url, token in kept.items()}

    def save(self, url: str, token: str | None) -> None:
        """Save a server's token as the last one, or delete it. Raises InputError."""
        kept = {known: its for known, its in self.read().items() if known != url}
        if token is not None:
            kept[url] = token
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.path, json.dumps(kept, indent=2), mode=PRIVATE)
        except OSError as error:
            raise InputError(
                Phrase("{file} cannot be written: {problem}", file=self.path, problem=error.strerror)
            ) from error


def is_encrypted_or_local(url: str) -> bool:
    """Return whether nobody on the network can read what is sent to a server."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")


def server(env: Environment, url: str | None) -> tuple[str, str | None]:
    """Return the server to use and its token. Raises UsageError, InputError."""
    kept = SavedTokens(env).read()
    wanted = url or env.get("PROCGUARD_SERVER") or next(reversed(kept), None)
    if wanted is None:
        raise UsageError(
            "no server: expected --server, PROCGUARD_SERVER or an earlier login",
            "procguard ctl login --server http://127.0.0.1:8765",
        )
    wanted = wanted.strip().rstrip("/")
    if not wanted.startswith(("http://", "https://")):
        raise UsageError(Phrase("server {url!r}: expected http://HOST:PORT or https://HOST:PORT", url=wanted))
    return wanted, env.get("PROCGUARD_TOKEN") or kept.get(wanted)
