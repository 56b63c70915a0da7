"""A snapshot of variables: blanks, typed reads with their source, files, own names."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_launch.environment import Environment, Sourced
from platform_launch.errors import TopologyError


def environment(tmp_path: Path, **variables: str) -> Environment:
    return Environment(variables, root=tmp_path, hostname="n1.dom")


def test_a_blank_variable_counts_as_unset_but_is_remembered(tmp_path: Path) -> None:
    read = environment(tmp_path, PET_STANDALONE="", CUDA_VISIBLE_DEVICES="  ", A="1")
    assert list(read) == ["A"]
    assert len(read) == 1
    assert read.text("PET_STANDALONE") is None
    assert read.is_blank("CUDA_VISIBLE_DEVICES")
    assert not read.is_blank("A")


def test_a_value_knows_its_variable(tmp_path: Path) -> None:
    read = environment(tmp_path, A=" 7 ")
    assert read.text("A") == Sourced("7", "A")
    assert read.integer("A") == Sourced(7, "A")
    assert read.port("A") == Sourced(7, "A")
    assert read.integer("B") is None
    assert read.port("B") is None


def test_a_number_below_its_minimum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="out of range: expected 1–"):
        environment(tmp_path, A="0").integer("A", 1)


@pytest.mark.parametrize(
    ("value", "problem"),
    [("-1", "out of range"), ("9999999999", "out of range"), ("two", "not a whole number")],
)
def test_a_number_that_cannot_be_used_is_not_called_no_number(
    tmp_path: Path, value: str, problem: str
) -> None:
    with pytest.raises(TopologyError, match=f"is {problem}"):
        environment(tmp_path, A=value).integer("A")


def test_a_number_of_thousands_of_digits_is_refused_and_cut_short(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="5000 characters") as caught:
        environment(tmp_path, A="9" * 5000).integer("A")
    assert len(caught.value.message) < 300


def test_a_service_link_is_no_port(tmp_path: Path) -> None:
    assert environment(tmp_path, MASTER_PORT="tcp://10.96.3.4:29500").port("MASTER_PORT") is None


def test_a_platforms_file_is_looked_up_under_the_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts.list").write_text("a\n", encoding="utf-8")
    read = environment(tmp_path)
    assert read.read_file("/etc/hosts.list") == "a\n"
    assert read.file_names("/etc") == ("hosts.list",)
    assert read.read_file("/etc/none") is None
    assert read.read_file("/etc") is None
    assert read.file_names("/none") == ()


def test_a_file_that_is_no_text_or_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(9 * 1024 * 1024)
    read = environment(tmp_path)
    assert read.read_file("/binary") is None
    assert read.read_file("/large") is None


def test_own_names_are_long_and_short_and_include_hostname(tmp_path: Path) -> None:
    assert environment(tmp_path, HOSTNAME="pod-1").names_of_this_host() == {"n1.dom", "n1", "pod-1"}


def test_a_given_address_is_not_looked_up() -> None:
    assert Environment({}, hostname="n1", address="10.0.0.7").address == "10.0.0.7"


def test_the_address_is_never_loopback() -> None:
    read = Environment({}, hostname="n1")
    assert read.address == "n1" or not read.address.startswith("127.")


def test_the_environment_of_this_process_is_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLATFORM_LAUNCH_TEST", "before")
    read = Environment.of_this_process()
    monkeypatch.setenv("PLATFORM_LAUNCH_TEST", "after")
    assert read["PLATFORM_LAUNCH_TEST"] == "before"
