"""What the lines around some others say of these: that they are quoted, got over, or a program's text."""

from __future__ import annotations

import re

from platform_launch.why.lines.line import plain, text_of
from platform_launch.why.lines.prefixes import Prefixes
from platform_launch.why.lines.scan import Scanner
from platform_launch.why.messages.signatures import Signature
from platform_launch.why.messages.tracebacks import Traceback
from platform_launch.why.reading.code import are_of_a_program
from platform_launch.why.reading.pods import of_same_pod, was_placed
from platform_launch.why.reading.prompts import LINES_OF_OUTPUT, host_of_prompt, host_of_shell
from platform_launch.why.reading.quoted import LINES_AROUND, is_doubtful, is_repeated

_LINES_OF_CODE = 8
_LINES_TO_PROMPT = 2
_LINES_OF_WHAT_PASSED = 40
# A log that fails in every line must not have its neighbours read as often.
_MOST_LOOKS_AT_CODE = 500
_MOST_LOOKS_BELOW = 200
_MOST_LOOKS_ABOVE = 200
# Python writes a warning's text below the place and the category, and the code that warned below that.
_WARNING = re.compile(r"\S{1,400}\.pyx?:\d{1,6}: \w{0,60}Warning: ")
_CODE_THAT_WARNED = re.compile(r"  \S")
_LINES_OF_A_WARNING = 15


class Surroundings:
    """The lines around the current one of a log."""

    def __init__(self, scanner: Scanner, prefixes: Prefixes) -> None:
        self._scanner = scanner
        self._prefixes = prefixes
        self._looks_at_code = 0
        self._looks_below = 0
        self._looks_above = 0

    def go_on_without(self) -> bool:
        """Tell whether the line below says that what failed is tried again, or done without."""
        if self._looks_below >= _MOST_LOOKS_BELOW:
            return False
        self._looks_below += 1
        return is_repeated(map(self._text, self._scanner.following(1)))

    def are_code(self, start: int, end: int) -> bool:
        """Tell whether the lines around those from ``start`` to ``end`` are a program's text."""
        if self._looks_at_code >= _MOST_LOOKS_AT_CODE:
            return False
        self._looks_at_code += 1
        behind = self._scanner.number - start
        above = self._scanner.preceding(behind + _LINES_OF_CODE)[behind:]
        below = self._scanner.following(_LINES_OF_CODE) if end >= self._scanner.number else []
        return are_of_a_program([*above, *below])

    def show_it_passed(self, signature: Signature, text: str) -> bool:
        """Tell whether lines below say that what one tells of passed, as events of pods and kernels do."""
        following = of_same_pod(text, self._scanner.following(_LINES_OF_WHAT_PASSED))
        if signature.id == "pod_unschedulable":
            return was_placed(text, following)
        below = b"\n".join(following).decode(errors="replace") if signature.passed else ""
        return any(re.search(pattern, f"{text}\n{below}") for pattern in signature.passed)

    def make_doubtful(self, traceback: Traceback) -> bool:
        """Tell whether the lines around a traceback quote it, or say that its code goes on."""
        number, current = self._scanner.number, self._scanner.current
        behind = max(0, number - traceback.chain.start)
        above = self._scanner.preceding(behind + LINES_AROUND)
        opening = above[behind - 1] if 0 < behind <= len(above) else current
        between = above[: max(0, number - 1 - traceback.end)]
        below = [*reversed(between), *([current] if traceback.end < number else [])]
        below += self._scanner.following(LINES_AROUND)
        said = ([*map(self._text, lines)] for lines in (above[behind:], below[:LINES_AROUND]))
        return is_doubtful(next(said), plain(opening), next(said))

    def is_of_a_warning(self) -> bool:
        """Tell whether the current line is of the text of a warning that Python printed above it."""
        for text in map(self._text, self._scanner.preceding(_LINES_OF_A_WARNING)):
            if _WARNING.match(text):
                return True
            if _CODE_THAT_WARNED.match(text):
                return False
        return False

    def host_of_prompt(self, text: str) -> str | None:
        """Return the host on which a command was asked for, of whose output the current line is."""
        if host := host_of_shell(text, self._scanner.following(_LINES_TO_PROMPT)):
            return host
        if self._looks_above >= _MOST_LOOKS_ABOVE:
            return None
        self._looks_above += 1
        return host_of_prompt(self._scanner.preceding(LINES_OF_OUTPUT))

    def _text(self, data: bytes) -> str:
        return text_of(data, self._prefixes)
