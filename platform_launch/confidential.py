"""What looks like a secret in variables and arguments, so that it is not written where others read.

A guess by name and by form. It is made for warnings and masks, where a wrong guess costs a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Words of a name, so that TOKENIZERS_PARALLELISM, MAX_TOKENS and MONKEY are none.
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
# WANDB_KEY holds a secret and SORT_KEY does not: a value that only a machine writes tells them apart.
_KEY = re.compile(r"[_-]key$", re.IGNORECASE)
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=-]{16,}")
_MASK = "***"
_SHORTEST = 6  # <pad> and yes are values of names that end in TOKEN, too


def looks_secret(name: str, value: str) -> bool:
    """Tell whether a variable or an option of this name and value should not be shown."""
    named = _NAME.search(name) is not None and len(value) >= _SHORTEST and not value.startswith(("/", "<"))
    random = _KEY.search(name) is not None and _RANDOM.fullmatch(value) is not None
    return named or random or _FORM.fullmatch(value) is not None


def masked(name: str, value: str) -> str:
    """Return a value as it may be written down: a secret's is replaced."""
    return _MASK if looks_secret(name, value) else value


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments as they may be written down: what looks like a secret is replaced."""
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
    """Yield how the arguments that look like secrets are called: their option, or their place in the list."""
    before = ""
    for place, argument in enumerate(arguments, start=1):
        option, equals, value = argument.partition("=")
        if argument.startswith("-") and equals:
            if looks_secret(option.lstrip("-"), value):
                yield option
        elif not argument.startswith("-") and looks_secret(before.lstrip("-"), argument):
            yield before or f"argument {place}"
        before = argument if argument.startswith("-") and not equals else ""
