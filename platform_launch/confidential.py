"""Detects secrets in variables and arguments, so that they are not written where others can read them.

A guess by name and form, for warnings and masks, where a wrong guess costs little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Matches whole words, so TOKENIZERS_PARALLELISM, MAX_TOKENS and MONKEY do not match.
_NAME = re.compile(
    r"(^|[_-])(token|secret|password|passwd|passphrase|credentials?|api[_-]?key|access[_-]?key|private[_-]?key)"
    r"([_-]?id)?$",
    re.IGNORECASE,
)
_FORM = re.compile(
    r"hf_[A-Za-z0-9]{16,}|gh[opsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
    r"|A[KS]IA[A-Z0-9]{16}|xox[abprs]-[\w-]{10,}|[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@.*|.*-----BEGIN .*",
    re.DOTALL,
)
# WANDB_KEY holds a secret and SORT_KEY does not: only a secret's value looks machine-made.
_KEY = re.compile(r"[_-]key$", re.IGNORECASE)
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=-]{16,}")
_MASK = "***"
_SHORTEST = 6  # names that end in TOKEN also have values such as <pad> and yes


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable or option of this name and value looks like a secret."""
    named = _NAME.search(name) is not None and len(value) >= _SHORTEST and not value.startswith(("/", "<"))
    random = _KEY.search(name) is not None and _RANDOM.fullmatch(value) is not None
    return named or random or _FORM.fullmatch(value) is not None


def masked(name: str, value: str) -> str:
    """Return a value for records: a secret is replaced."""
    return _MASK if looks_secret(name, value) else value


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments for records: whatever looks like a secret is replaced."""
    shown, before = [], ""
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if argument.startswith("-") and equals:
            shown.append(f"{option}={masked(option.lstrip('-'), value)}")
        else:
            shown.append(argument if argument.startswith("-") else masked(before.lstrip("-"), argument))
        before = argument if argument.startswith("-") and not equals else ""
    return shown


def secret_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """Yield a name for each argument that looks like a secret: its option, or its position."""
    before = ""
    for place, argument in enumerate(arguments, start=1):
        option, equals, value = argument.partition("=")
        if argument.startswith("-") and equals:
            if looks_secret(option.lstrip("-"), value):
                yield option
        elif not argument.startswith("-") and looks_secret(before.lstrip("-"), argument):
            yield before or f"argument {place}"
        before = argument if argument.startswith("-") and not equals else ""
