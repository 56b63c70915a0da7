"""Tab in bash, zsh and fish: click's own, with values joined to their option (``--script=train.py``)."""

from __future__ import annotations

from typing import Any

from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete


class Bash(BashComplete):
    """Bash takes ``--option=value`` for three words."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Leave out the equals signs after options."""
        words, incomplete = super().get_completion_args()
        before = ["", *words]
        kept = [word for word, left in zip(words, before, strict=False) if word != "=" or left[:2] != "--"]
        return kept, incomplete


class _Joined(ShellComplete):
    """A shell that puts what is offered in the place of the whole word."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """Put the option before its values."""
        option, equals, _ = incomplete.partition("=")
        found = super().get_completions(args, incomplete)
        if not equals or option[:2] != "--":
            return found
        return [CompletionItem(f"{option}={item.value}", type=item.type, help=item.help) for item in found]


class Zsh(_Joined, ZshComplete):
    """Zsh looks for files itself, by the whole word unless told where the value begins."""

    source_template = ZshComplete.source_template.replace(
        "            _path_files",
        "            [[ $words[CURRENT] == --*=* ]] && compset -P 1 '*='\n            _path_files",
    )


class Fish(_Joined, FishComplete):
    """Fish is told where the name ends and the description begins, and completes joined files by itself."""

    source_template = FishComplete.source_template.replace(
        'string split ","', 'string split -m 1 ","'
    ).replace(
        "__fish_complete_path $metadata[2]",
        'complete -C "no-such-command "(string escape -n -- $metadata[2])',
    )


SHELLS: tuple[type[ShellComplete], ...] = (Bash, Zsh, Fish)
