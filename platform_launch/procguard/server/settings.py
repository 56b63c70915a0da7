"""The server's configuration file, and secrets in files that only the server's user may read."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from platform_launch.environment import Environment
from platform_launch.errors import InputError, shown
from platform_launch.files import (
    OTHERS_MAY_CHANGE,
    OTHERS_MAY_READ,
    PRIVATE,
    foreign_problem,
    not_yaml,
    write_new,
)
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.api.wire import JOIN_TOKEN
from platform_launch.project import project_root
from platform_launch.text import Phrase, counted, joined


def read_or_make(path: Path) -> str:
    """Return the secret in a file; create it with a random one if the file is missing.

    It is written atomically and never replaced. Raises InputError if it can be neither read nor created.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError):  # another process was faster: its secret counts
                write_new(path, secrets.token_urlsafe(32) + "\n", mode=PRIVATE)
    except OSError as error:
        raise InputError(
            Phrase("{file} cannot be written: {problem}", file=path, problem=error.strerror),
            "make its folder writable",
        ) from error
    return read_secret(path, str(path))


def read_secret(path: Path, named: str) -> str:
    """Return the secret in a file, called ``named`` in messages. Raises InputError if others can read it."""
    try:
        check_private(path)
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else Phrase("not a text file")
        raise InputError(
            Phrase("{file} cannot be read: {problem}", file=named, problem=reason),
            "expected a file with a secret that this user may read",
        ) from error
    if not text:
        raise InputError(
            Phrase("{file} is empty: expected a secret", file=named), "create one: openssl rand -hex 32"
        )
    return text


def check_private(path: Path) -> None:
    """Check that a secret's file is ours and that nobody else can read it. Raises InputError."""
    _check(path, OTHERS_MAY_READ, f"chmod 600 {path} (of a Kubernetes Secret: defaultMode 0440)")


def check_ours(path: Path) -> None:
    """Check that nobody else can change a file or folder of the server's. Raises InputError."""
    _check(path, OTHERS_MAY_CHANGE, f"chmod go-w {path}")


def _check(path: Path, forbidden: int, mend: str) -> None:
    problem = foreign_problem(path.stat(), forbidden)
    if problem:
        raise InputError(
            Phrase("{file}: {problem}", file=path, problem=problem),
            Phrase("it must belong to the user that runs the server; {command}", command=mend),
        )


SHORTEST = 16
"""Characters; shorter ones can be guessed."""


def join_token(settings: ServerSettings, env: Environment) -> tuple[str, Path | None]:
    """Return the configured token, or a random one for a server that only this machine can reach.

    Also returns its file, None if it came from the variable. Raises InputError if it is too short, or if none
    is set and others can reach the server.
    """
    value = env.text(JOIN_TOKEN)
    if value is not None and value.value:
        return _long_enough(value.value, JOIN_TOKEN), None
    path = settings.join_token_file
    if path is not None:
        return _long_enough(read_secret(path, f"join_token_file={path}"), str(path)), path
    if not settings.loopback:
        raise InputError(
            Phrase(
                "listen={address} can be reached from other machines, and no join token is set",
                address=settings.listen,
            ),
            "set PROCGUARD_JOIN_TOKEN or join_token_file, so that only your agents can join, or listen on "
            "127.0.0.1",
        )
    path = settings.data / "join-token"
    return read_or_make(path), path


def _long_enough(token: str, source: str) -> str:
    if len(token) < SHORTEST:
        raise InputError(
            Phrase(
                "the join token in {source} has {length}: expected at least {least}",
                source=source,
                length=counted(len(token), "character"),
                least=SHORTEST,
            ),
            "create one: openssl rand -hex 32",
        )
    return token


_LARGEST_FILE = 1024 * 1024  # bytes
EVERYBODY = "*"

EVENTS = (
    "failed", "failing", "degraded", "recovered", "finished", "idle", "hold-ends", "queued",
)  # fmt: skip
_SCHEMES = (
    "mailto", "mailtos", "slack", "feishu", "lark", "dingtalk", "wecombot", "msteams", "discord", "tgram",
)  # fmt: skip


class NoticeReceiver(BaseModel):
    """A receiver of notices about all groups: an Apprise address, and the events to send."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(pattern=r"^[a-z0-9]+://[^\s]+$", max_length=2_000)]
    events: tuple[Literal[EVENTS], ...] = ("failed", "failing", "degraded", "finished")  # type: ignore[valid-type]


class OidcSettings(BaseModel):
    """An OpenID Connect provider, and the claims with a user's name and groups."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: Annotated[str, Field(pattern=r"^https?://[!-~]+$", max_length=1_000)]
    client_id: Annotated[str, Field(min_length=1, max_length=400)]
    client_secret_file: Path
    scope: Annotated[str, Field(pattern=r"(^| )openid( |$)", max_length=400)] = "openid profile email"
    name_claim: str = "preferred_username"
    groups_claim: str = "groups"


class ProxyHeaders(BaseModel):
    """The headers with which a trusted proxy, such as oauth2-proxy, names the user and the user's groups."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,80}$")] = "X-Forwarded-User"
    groups_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,80}$")] = "X-Forwarded-Groups"


class SignInSettings(BaseModel):
    """Sign-in without passwords, and the roles of groups."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    oidc: OidcSettings | None = None
    proxy: ProxyHeaders | None = None
    roles: dict[UserRole, tuple[str, ...]] = {}

    def role(self, groups: Collection[str]) -> UserRole | None:
        """Return the highest role of the groups; ``*`` stands for everybody. None: no role."""
        for role in (UserRole.ADMIN, UserRole.OPERATOR, UserRole.VIEWER):
            if not {*groups, EVERYBODY}.isdisjoint(self.roles.get(role, ())):
                return role
        return None


class ServerSettings(BaseModel):
    """See ``configs/procguard/procguard.yaml``. Paths are relative to the working directory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: str = "127.0.0.1:8765"
    data: Path = Path("procguard-data")
    database: str | None = None
    join_token_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: Annotated[tuple[str, ...], Field(max_length=64)] = ()
    sign_in: SignInSettings = SignInSettings()
    nodes_limit: Annotated[int, Field(ge=1, le=100_000)] = 1024
    new_nodes_per_minute: Annotated[int, Field(ge=1, le=100_000)] = 300
    # At most a third of DEFAULT_SILENT_AFTER_S: otherwise living workers would count as silent.
    heartbeat_s: Annotated[float, Field(ge=0.2, le=5)] = 2.0
    log_limit_mib: Annotated[int, Field(ge=1, le=1024 * 1024)] = 64
    logs_limit_gib: Annotated[float, Field(ge=0.01, le=1024 * 1024)] = 100.0
    notices: Annotated[tuple[NoticeReceiver, ...], Field(max_length=16)] = ()
    notice_schemes: Annotated[tuple[str, ...], Field(max_length=64)] = _SCHEMES
    owners_default: Literal["creator", "everyone"] = "creator"
    page_url: Annotated[str, Field(pattern=r"^(https?://[^\s]+)?$", max_length=400)] = ""
    session_hours: Annotated[float, Field(ge=0.1, le=24 * 365)] = 12.0

    @property
    def host(self) -> str:
        """The name or address to listen on."""
        return self.listen.rpartition(":")[0].removeprefix("[").removesuffix("]")

    @property
    def port(self) -> int:
        """The port to listen on; 0 for a free one."""
        return int(self.listen.rpartition(":")[2])

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def database_url(self) -> str:
        """The database's URL: SQLite in ``data`` unless set."""
        return self.database or f"sqlite:///{self.data.resolve() / 'procguard.db'}"

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        host, _, port = value.strip().rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not bare or (":" in bare and bare == host) or not (port.isascii() and port.isdigit()):
            raise ValueError("expected HOST:PORT, such as 127.0.0.1:8765 or [::1]:8765")
        if len(port) > 5 or int(port) > 65535:
            raise ValueError("expected a port of at most 65535")
        return value.strip()

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            try:
                ipaddress.ip_network(entry)
            except ValueError:
                raise ValueError(
                    f"{shown(entry)}: expected an address, or a network such as 10.0.0.0/8"
                ) from None
        return value

    @model_validator(mode="after")
    def _whole(self) -> ServerSettings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key: expected both or none")
        if self.sign_in.proxy and not self.trusted_proxies:
            raise ValueError("sign_in.proxy: expected the proxy's address in trusted_proxies")
        if (self.sign_in.proxy or self.sign_in.oidc) and not self.sign_in.roles:
            raise ValueError("sign_in.roles: expected the groups of at least one role")
        return self


def read_settings(path: Path | None) -> ServerSettings:
    """Read a configuration file; without one, return the defaults.

    Raises InputError with the file, the key, its value and what was expected.
    """
    if path is None:
        return ServerSettings()
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise InputError(
                Phrase(
                    "{file} is larger than {limit} bytes: expected a configuration file",
                    file=path,
                    limit=_LARGEST_FILE,
                )
            )
        check_ours(path)
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            Phrase("{file} cannot be read: {problem}", file=path, problem=error.strerror),
            "pass --config with the file's path",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(not_yaml(path, error), "correct the file") from error
    if loaded is None:
        return ServerSettings()
    if not isinstance(loaded, dict):
        raise InputError(Phrase("{file}: expected `key: value` lines", file=path), "correct the file")
    try:
        return ServerSettings.model_validate({str(key): value for key, value in loaded.items()})
    except ValidationError as error:
        known = joined(ServerSettings.model_fields)
        lines = "; ".join(_problem_text(problem) for problem in error.errors(include_url=False))
        raise InputError(
            Phrase("{file}: {problem}", file=path, problem=lines),
            Phrase(
                "the keys are {keys}; see {example}",
                keys=known,
                example=project_root() / "configs" / "procguard" / "procguard.yaml",
            ),
        ) from error


def _problem_text(problem: Any) -> str:
    """Return one problem of the file: the key, its value and what was expected."""
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"{shown(key)} is not a key"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["loc"][:1] == ("notices",) and "events" not in problem["loc"]:
        return f"{key}: {message}"  # a receiver's address is a secret
    return f"{key}={shown(str(problem['input']))}: {message}" if key else message
