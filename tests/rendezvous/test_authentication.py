from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from platform_launch.environment import Environment
from platform_launch.errors import InputError
from platform_launch.rendezvous.authentication import Secret, read_secret
from tests.lab.waiting import LIMIT_S
from tests.rendezvous.cluster import ROOT, SCRIPT

VALUE = "0123456789abcdef0123"


def secret_of(**variables: str) -> Secret | None:
    return read_secret(Environment(variables, hostname="gn7", address="10.0.0.7"))


def file_of(tmp_path: Path, mode: int = 0o600, text: str = f"{VALUE}\n") -> Path:
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_secret_is_read_from_a_variable_or_a_private_file(tmp_path: Path) -> None:
    assert secret_of() is None
    for secret in (
        secret_of(PLATFORM_LAUNCH_SECRET=VALUE),
        secret_of(PLATFORM_LAUNCH_SECRET_FILE=str(file_of(tmp_path))),
        secret_of(PLATFORM_LAUNCH_SECRET_FILE=str(file_of(tmp_path, 0o440))),
    ):
        assert secret is not None
        assert secret.reveal() == VALUE
        assert VALUE not in repr(secret)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o606])
def test_file_accessible_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = file_of(tmp_path, mode)
    with pytest.raises(InputError, match=rf"others may read or change it \(mode {mode:04o}\)") as refused:
        secret_of(PLATFORM_LAUNCH_SECRET_FILE=str(path))
    assert VALUE not in str(refused.value)


def test_secret_file_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        secret_of(PLATFORM_LAUNCH_SECRET_FILE=str(tmp_path / "absent"))
    with pytest.raises(InputError, match="it is not a regular file"):
        secret_of(PLATFORM_LAUNCH_SECRET_FILE="/dev/null")


def test_short_secret_and_two_secrets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 5 characters: expected at least 16"):
        secret_of(PLATFORM_LAUNCH_SECRET="short")
    with pytest.raises(InputError, match="both set"):
        secret_of(PLATFORM_LAUNCH_SECRET=VALUE, PLATFORM_LAUNCH_SECRET_FILE=str(file_of(tmp_path)))


def test_secret_is_in_no_output_log_or_record(tmp_path: Path) -> None:
    command: list[str | Path] = [
        sys.executable,
        ROOT / "platform_launch" / "__main__.py",
        "run",
        "--launcher",
        "python",
    ]
    command += ["--no-doctor", "--script", SCRIPT, "--log-dir", tmp_path, "--nproc-per-node", "1"]
    variables = {"PATH": "/usr/bin:/bin", "PLATFORM_LAUNCH_SECRET": VALUE, "HOME": str(tmp_path)}
    said = b""
    for options in (["--print-env", "--format", "json"], ["--print-env"], []):
        done = subprocess.run(
            [*command, *options], env=variables, capture_output=True, timeout=LIMIT_S, check=True
        )
        said += done.stdout + done.stderr
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert VALUE.encode() not in said + b"".join(written)
