"""What is taken for a secret, and what is not: a wrong warning is read once, a right one never again."""

from __future__ import annotations

import pytest

from platform_launch.confidential import looks_secret, masked, masked_arguments, secret_arguments

LONG = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "anything-at-all"),
        ("WANDB_API_KEY", LONG),
        ("AWS_SECRET_ACCESS_KEY", LONG),
        ("AWS_ACCESS_KEY_ID", LONG),
        ("DB_PASSWORD", "hunter22"),
        ("password", "hunter22"),
        ("PLATFORM_LAUNCH_SECRET", LONG),
        ("hub-token", LONG),
        ("wandb-key", LONG),
        ("WANDB_KEY", "local-" + LONG),
        ("HUB", "hf_" + LONG),
        ("MIRROR", "https://me:hunter2@registry.example/simple"),
        ("CERT", "-----BEGIN PRIVATE KEY-----\nabc\n"),
        ("X", "ghp_" + LONG),
        ("X", "AKIA0123456789ABCDEF"),
    ],
)
def test_secrets_are_noticed_by_name_or_by_form(name: str, value: str) -> None:
    assert looks_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "1000000"),
        ("PAD_TOKEN", "<|padding|>"),
        ("EOS_TOKEN", "</s>"),
        ("USE_TOKEN", "true"),
        ("PLATFORM_LAUNCH_SECRET_FILE", "/run/secrets/launch"),
        ("HF_TOKEN", "/run/secrets/hf"),
        ("SORT_KEY", "length-of-text"),
        ("cache-key", "a-name-without-any-number-in-it"),
        ("MONKEY", "chimpanzee"),
        ("DATA", "s3://bucket/a@b:c"),
        ("HOST", "https://registry.example:443/simple"),
        ("EMPTY_TOKEN", ""),
    ],
)
def test_ordinary_values_are_left_alone(name: str, value: str) -> None:
    assert not looks_secret(name, value)


def test_arguments_are_named_by_their_option_never_by_their_value() -> None:
    arguments = ["--lr", "1e-4", "--api-key", LONG, f"--hf_token={LONG}", "--token", "--strict", "hf_" + LONG]
    found = list(secret_arguments(arguments))
    assert found == ["--api-key", "--hf_token", "--strict"]
    assert list(secret_arguments(["train.py", "hf_" + LONG])) == ["argument 2"]
    assert list(secret_arguments([])) == []


def test_secrets_are_masked_and_all_else_stays() -> None:
    given = ["--lr", "1e-4", "--hub-token", "hf_" + "a" * 20, "--api-key=abcdef1234", "hf_" + "b" * 20, "-v"]
    assert masked_arguments(given) == ["--lr", "1e-4", "--hub-token", "***", "--api-key=***", "***", "-v"]
    assert masked("HF_TOKEN", "hf_abcdef") == "***"
    assert masked("NCCL_DEBUG", "WARN") == "WARN"
