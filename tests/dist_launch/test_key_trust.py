"""Which key may log in to a node."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from platform_launch.dist_launch.cluster_keys import read_public
from platform_launch.dist_launch.folder import WaitFolder
from platform_launch.dist_launch.key_trust import KeyTrust, fingerprint
from platform_launch.errors import InputError
from tests.dist_launch.lab import requires_ssh

FIRST, SECOND = "ssh-ed25519 AAAAfirst", "ssh-ed25519 AAAAsecond000"


@pytest.fixture
def folder(tmp_path: Path) -> WaitFolder:
    made = WaitFolder.beside(tmp_path / "info")
    made.create()
    return made


def test_the_first_key_is_taken_and_every_other_refused_with_both_shown(folder: WaitFolder) -> None:
    assert KeyTrust(folder).decide(FIRST) == FIRST
    assert KeyTrust(folder).decide(FIRST) == FIRST
    with pytest.raises(InputError) as refused:
        KeyTrust(folder).decide(SECOND)
    assert fingerprint(FIRST) in str(refused.value)
    assert fingerprint(SECOND) in str(refused.value)
    assert KeyTrust(folder).decide(FIRST) == FIRST


def test_a_key_that_was_named_for_the_node_wins_from_the_beginning(folder: WaitFolder) -> None:
    trust = KeyTrust(folder, named=FIRST)
    assert trust.decide(SECOND) == FIRST
    assert (trust.objection(FIRST), fingerprint(SECOND) in trust.objection(SECOND)) == ("", True)


def test_an_authenticated_rank_0_may_change_its_key(folder: WaitFolder) -> None:
    trust = KeyTrust(folder, authenticated=True)
    assert [trust.decide(key) for key in (FIRST, SECOND)] == [FIRST, SECOND]


@requires_ssh
def test_fingerprints_are_those_of_openssh(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    shown = subprocess.run(["ssh-keygen", "-l", "-f", key], check=True, capture_output=True, text=True)
    assert fingerprint(read_public(key.with_suffix(".pub"))) == shown.stdout.split()[1]


@pytest.mark.parametrize("text", [None, "", "no key", "-----BEGIN OPENSSH PRIVATE KEY-----\n"])
def test_a_named_key_that_is_none_is_an_error(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "key.pub"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match="SSH_PUBLIC_KEY="):
        read_public(path)
