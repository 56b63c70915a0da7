"""What the lines around some others say of these: that they are quoted, or that work went on."""

from __future__ import annotations

import re

from platform_launch.why.lines.line import plain, text_of
from platform_launch.why.lines.prefixes import Prefixes
from platform_launch.why.lines.scan import Scanner
from platform_launch.why.messages.signatures import Signature
from platform_launch.why.messages.tracebacks import Traceback
from platform_launch.why.reading.pods import of_same_pod
from platform_launch.why.reading.quoted import LINES_AROUND, is_doubtful, is_repeated

_LINES_OF_WHAT_PASSED = 40
# A log that fails in every line must not have its neighbours read as often.
_MOST_LOOKS_BELOW = 200

# Python writes a warning's text below the place and the category, and the code that warned below that.
_WARNING = re.compile(r"\S{1,400}\.pyx?:\d{1,6}: \w{0,60}Warning: ")
_CODE_THAT_WARNED = re.compile(r"  \S")
_LINES_OF_A_WARNING = 15


class Surroundings:
    """The lines around the current one of a log."""

    def __init__(self, scanner: Scanner, prefixes: Prefixes) -> None:
        self._scanner = scanner
        self._prefixes = prefixes
        self._looks_below = 0

    def go_on_without(self) -> bool:
        """Tell whether the line below says that what failed is tried again, or done without."""
        if self._looks_below >= _MOST_LOOKS_BELOW:
            return False
        self._looks_below += 1
        return is_repeated(map(self._text, self._scanner.following(1)))

    def show_it_passed(self, signature: Signature, text: str) -> bool:
        """Tell whether lines below say that what one tells of passed, as events of pods and kernels do."""
        following = of_same_pod(text, self._scanner.following(_LINES_OF_WHAT_PASSED))
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

    def _text(self, data: bytes) -> str:
        return text_of(data, self._prefixes)
