"""Marked blocks: other people's files come out as they went in."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from platform_launch.dist_launch.marked_blocks import remove_block, with_block, without_block, write_block

MARKER = "dist-launch node0 /tmp/cluster_info.json"


@pytest.mark.parametrize("text", ["", "one\n", "one\ntwo\n", "\n\n", "# >>> other >>>\nx\n# <<< other <<<\n"])
def test_a_block_comes_and_goes_without_a_trace(text: str) -> None:
    for at_top in (False, True):
        added = with_block(text, MARKER, ["a", "b"], at_top=at_top)
        assert "a\nb\n" in added
        assert without_block(added, MARKER) == text


def test_a_block_is_replaced_whole_wherever_it_stood() -> None:
    text = with_block("one\n", MARKER, ["old"]) + "two\n"
    assert with_block(text, MARKER, ["new"]).count(">>> dist-launch") == 1
    assert without_block(with_block(text, MARKER, ["new"]), MARKER) == "one\ntwo\n"


def test_a_block_that_lost_its_end_takes_nothing_of_others_with_it() -> None:
    torn = with_block("one\n", MARKER, ["ours"]).replace(f"# <<< {MARKER} <<<\n", "two\n")
    assert without_block(torn, MARKER) == "one\nours\ntwo\n"


def test_a_file_without_a_last_line_end_stays_readable() -> None:
    assert with_block("key", MARKER, ["a"]).startswith("key\n# >>>")


def test_new_files_are_private_and_old_ones_keep_their_mode(tmp_path: Path) -> None:
    new, old = tmp_path / "ssh" / "config", tmp_path / "old"
    write_block(new, MARKER, ["a"])
    assert (new.stat().st_mode & 0o777, new.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    old.write_text("mine\n")
    old.chmod(0o640)
    write_block(old, MARKER, ["a"])
    assert old.stat().st_mode & 0o777 == 0o640
    remove_block(new, MARKER)
    remove_block(old, MARKER)
    assert not new.exists()
    assert old.read_text() == "mine\n"


def test_a_link_stays_a_link_and_bytes_that_are_no_text_stay_bytes(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"caf\xe9\n")
    link.symlink_to(target)
    write_block(link, MARKER, ["a"])
    remove_block(link, MARKER)
    assert link.is_symlink()
    assert target.read_bytes() == b"caf\xe9\n"


def test_a_mounted_file_is_written_in_place(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    before = hosts.stat().st_ino
    write_block(hosts, MARKER, ["10.0.0.1 rank-0"], in_place=True)
    remove_block(hosts, MARKER, in_place=True)
    assert (hosts.stat().st_ino, hosts.read_text()) == (before, "127.0.0.1 localhost\n")


def test_many_nodes_share_one_home_without_losing_a_key(tmp_path: Path) -> None:
    file = tmp_path / "authorized_keys"
    file.write_text("ssh-ed25519 MINE me\n")
    threads = [threading.Thread(target=write_block, args=(file, f"node{n}", [f"key{n}"])) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"key{n}\n" in file.read_text() for n in range(16))
    for n in range(16):
        remove_block(file, f"node{n}")
    assert file.read_text() == "ssh-ed25519 MINE me\n"
    assert [path.name for path in tmp_path.iterdir()] == ["authorized_keys"]
