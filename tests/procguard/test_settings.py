"""The configuration file: the shipped one holds the defaults, and a wrong one is named key by key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import InputError
from platform_launch.procguard.server.settings import ServerSettings, join_token, read_settings
from platform_launch.project import project_root

SHIPPED = project_root() / "configs" / "procguard" / "procguard.yaml"


def read(tmp_path: Path, text: str) -> ServerSettings:
    path = tmp_path / "procguard.yaml"
    path.write_text(text)
    return read_settings(path)


def test_the_shipped_file_shows_every_key_with_its_default() -> None:
    assert read_settings(SHIPPED) == read_settings(None) == ServerSettings()
    shown = SHIPPED.read_text()
    missing = [
        key for key in ServerSettings.model_fields if f"\n{key}:" not in shown and f"\n# {key}:" not in shown
    ]
    assert missing == []


def test_what_is_set_is_read(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        "listen: '[::1]:9000'\ndata: /var/lib/procguard\nheartbeat_s: 0.5\ntrusted_proxies: [10.0.0.0/8]\n",
    )
    assert (settings.host, settings.port, settings.loopback) == ("::1", 9000, True)
    assert settings.database_url == "sqlite:////var/lib/procguard/procguard.db"
    assert settings.trusted_proxies == ("10.0.0.0/8",)
    assert read(tmp_path, "") == ServerSettings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heartbeat: 2", "'heartbeat' is not a key"),
        ("heartbeat_s: soon", "heartbeat_s='soon': .*number"),
        ("heartbeat_s: 0", "heartbeat_s='0': .*greater than or equal to 0.2"),
        ("heartbeat_s: 30", "heartbeat_s='30': .*less than or equal to 5"),
        ("listen: 8765", "listen='8765'"),
        ("listen: localhost", "expected HOST:PORT"),
        ("listen: ::1:80", "expected HOST:PORT"),
        ("listen: a:70000", "at most 65535"),
        ("trusted_proxies: [10.0.0.1/8]", "expected an address, or a network"),
        ("tls_key: k.pem", "both or none"),
        ("- listen", "expected `key: value` lines"),
        ("a: [", "is not YAML"),
        ("a: \x00", "is not YAML"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        read(tmp_path, text)
    assert str(tmp_path / "procguard.yaml") in str(error.value)
    assert error.value.hint


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_settings(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="Is a directory"):
        read_settings(tmp_path)


def test_a_join_token(tmp_path: Path) -> None:
    none, given = Environment({}), Environment({"PROCGUARD_JOIN_TOKEN": "t" * 16})
    file = tmp_path / "token"
    file.write_text("f" * 32 + "\n")
    with pytest.raises(InputError, match="others may read"):
        join_token(ServerSettings(join_token_file=file), none)
    file.chmod(0o600)
    by_file = ServerSettings(join_token_file=file)
    assert len(join_token(ServerSettings(data=tmp_path / "data"), none)[0]) > 40
    assert join_token(by_file, none)[0] == "f" * 32
    assert join_token(by_file, given)[0] == "t" * 16
    outside = ServerSettings(listen="0.0.0.0:8765")
    assert join_token(outside, given)[0] == "t" * 16
    with pytest.raises(InputError, match="no join token is set"):
        join_token(outside, none)
    with pytest.raises(InputError, match="PROCGUARD_JOIN_TOKEN has 3 character"):
        join_token(ServerSettings(), Environment({"PROCGUARD_JOIN_TOKEN": "abc"}))
    file.write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        join_token(by_file, none)
    with pytest.raises(InputError, match="cannot be read"):
        join_token(ServerSettings(join_token_file=tmp_path / os.devnull.strip("/") / "x"), none)
