from __future__ import annotations

import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from platform_launch import files, project
from platform_launch.errors import InputError
from tests.lab.needs import requires_root


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_whole_file_replaces_another_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o604)
    files.write_whole(path, "new")
    assert (path.read_text(), mode(path)) == ("new", 0o604)
    files.write_whole(path, b"\xff", mode=files.PRIVATE)
    assert (path.read_bytes(), mode(path)) == (b"\xff", 0o600)
    files.write_whole(tmp_path / "b", "\udcff")
    assert ((tmp_path / "b").read_bytes(), mode(tmp_path / "b")) == (b"\xff", 0o644)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "b"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.mkdir()
    with pytest.raises(OSError):  # noqa: PT011 - a folder cannot be replaced by a file
        files.write_whole(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_new_file_is_never_written_over_another(tmp_path: Path) -> None:
    files.write_new(tmp_path / "a", "one")
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "one"


def test_of_many_that_want_a_name_each_gets_its_own(tmp_path: Path) -> None:
    names = [tmp_path / f"log-{number}" for number in range(16)]

    def create(_: int) -> Path:
        handle, path = files.create_new(names)
        os.close(handle)
        return path

    with ThreadPoolExecutor(16) as pool:
        assert sorted(pool.map(create, range(16))) == sorted(names)
    assert mode(names[0]) == 0o640
    with pytest.raises(FileExistsError):
        files.create_new(names)


def test_a_link_is_not_followed_when_a_file_is_created(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        files.create_new([tmp_path / "log"])
    assert not (tmp_path / "elsewhere").exists()


def test_a_private_folder_is_made_for_its_owner_alone_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "ours" / "keys"
    assert files.private_folder(path, "it will hold keys") == path
    assert mode(path) == 0o700
    path.chmod(0o755)  # others could read, not write: what is inside is ours
    files.private_folder(path, "it will hold keys")
    assert mode(path) == 0o700


def test_a_folder_that_others_may_write_to_is_not_private(tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(InputError, match=r"others may change it \(mode 0777\); it will hold keys") as caught:
        files.private_folder(path, "it will hold keys")
    assert caught.value.hint


def test_a_link_and_a_file_are_no_private_folders(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    assert files.private_problem(tmp_path / "link") == "it is a symbolic link"
    assert files.private_problem(tmp_path / "file") == "it is not a folder"
    with pytest.raises(InputError, match="symbolic link"):
        files.private_folder(tmp_path / "link", "for code")
    with pytest.raises(InputError, match="not a folder"):
        files.private_folder(tmp_path / "file", "for code")


@requires_root
def test_a_strangers_folder_is_not_private(tmp_path: Path) -> None:
    path = tmp_path / "planted"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    assert files.private_problem(path) == "it belongs to user 12345"


def test_a_folder_that_anybody_can_replace_is_not_private(tmp_path: Path) -> None:
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o777)
    assert "anyone can replace it" in files.private_problem(tmp_path / "above" / "x")
    (tmp_path / "above").chmod(0o1777)
    assert files.private_problem(tmp_path / "above" / "x") == ""


def test_what_is_made_of_files_is_made_again_once_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    source, made = tmp_path / "words.py", list[str]()

    def make() -> list[str]:
        made.append(source.read_text())
        return made[-1].split()

    for text in ("one two", "one two", "1  two", "three"):
        source.write_text(text)
        os.utime(source, (0, 0))  # as some installers do
        assert files.made_of(source, [source], make) == text.split()
    assert made == ["one two", "1  two", "three"]
    for kept in (tmp_path / "__pycache__").iterdir():
        kept.write_bytes(kept.read_bytes()[:9])
    assert files.made_of(source, [source], make) == ["three"]
    assert len(made) == 4


def test_nothing_is_kept_where_python_keeps_no_compiled_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = tmp_path / "words.py"
    source.write_text("one")
    assert files.made_of(source, [source], lambda: 1) == 1
    assert not (tmp_path / "__pycache__").exists()


def test_a_yaml_file_of_the_project_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(project, "_PACKAGE", tmp_path / "package")
    parsed = list[bytes]()

    def parse(data: bytes) -> int:
        parsed.append(data)
        return len(parsed)

    monkeypatch.setattr(project, "yaml_values", parse)
    own, other = tmp_path / "configs" / "recipes.yaml", tmp_path.parent / "other.yaml"
    own.parent.mkdir()
    for file in (own, other):
        file.write_text("a: 1")
    assert [project.yaml_of(file) for file in (own, own, other, other)] == [1, 1, 2, 3]
    own.write_text("a: 2")
    assert project.yaml_of(own) == 4
