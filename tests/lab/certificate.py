"""A certificate of this test alone, for servers on the loopback."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 and return it with its key; skips where openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    certificate, key = folder / "server.crt", folder / "server.key"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=lab"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request.split(), *names], check=True, capture_output=True)
    return certificate, key
