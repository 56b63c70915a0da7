"""Python tracebacks, reassembled from the lines of a log, in which writers may alternate."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from platform_launch.why.lines.clock import LineTime
from platform_launch.why.lines.line import Line, Location, shown
from platform_launch.why.messages.exceptions import Raised, TracebackFrame

_SPAWNERS = ("Exception", "torch.multiprocessing.spawn.ProcessRaisedException")
# The first frame of an uncaught exception.
_ENTRIES = {"<module>", "_wrap", "_bootstrap", "_run_module_as_main", "_worker_loop", "spawn_main"}
_OPENING = re.compile(r"(?P<prefix>.*?)(?P<inner>Original )?Traceback \(most recent call last\)")
# The prefix of docker, pdsh or a logger; anything else is a progress bar that did not end its line.
_REPEATED = re.compile(r"[\w.@/-]+ *[:|] *|.*\] +")
_FRAME = re.compile(r'\s*File "?([^"]+?)"?, line (\d+)(?:, in(?: (.+)|\s*$))?')
# A notebook's, as nbconvert prints them: the surrounding code follows with line numbers, the line that ran
# after an arrow.
_NOTEBOOK_FRAME = re.compile(
    r"(?:File|Cell) (?=\S)((?:In ?\[\d{1,6}\](?=, line ))|[^\s:\"]+)(?::|, line )(\d+)(?:, in ([\w.]+)|\s*$)"
)
_CELL = re.compile(r"In ?\[")
_NOTEBOOK_CODE = re.compile(r"-{1,8}> *(\d{1,7}) +(?=\S)|\s+\d{1,7}(?:\s|$)")
_FRAMES = (_FRAME, _NOTEBOOK_FRAME)
_WHOLE_FRAME = re.compile(r'\s*File "[^"]+", line \d+, in \S')
_RICH_FRAME = re.compile(r"[│|]\s*(/\S+):(\d+) ?in (\S+)")
_RICH_CODE = re.compile(r"\s*│( +❱?| ❱) *\d* │")
_ENDING = re.compile(
    r"(?!self\.|cls\.)((?:[A-Za-z_]\w*\.)*(?:(?:[A-Za-z_]\w*)?(?:Error|Exception|Exit|Interrupt|Iteration|Warning|Group)"
    r"|[A-Z][a-z0-9]+[A-Z]\w*)|(?:[A-Za-z_]\w*\.)+(?:[A-Z]\w*|\w+(?=:))|[A-Za-z_]\w*\.(?:[a-z]\w*error|error|timeout))"
    r"(?::(?: |$)(.*)|[ \t]*$)"
)
# Code that raises an exception with its message on the same line, perhaps an f-string.
_LINK = re.compile(r"The above exception was the direct cause of|During handling of the above exception")
_INNER_LINK = re.compile(r"[-\u2013\u2014]{1,2} Process (\d{1,5}) terminated with the following error")
# What torch.distributed's hook puts before each line; if many other lines have it, too, something else did.
_HOOK = re.compile(r"\[rank\d{1,7}\]: $")
# Above the traceback that Ray quotes from a task, or from an actor that did not start; it says where that
# ran.
_QUOTES_TASK = re.compile(
    r"ray\.exceptions\.(?:RayTaskError(?:\((?P<raised>[\w.]+)\))?:"
    r"|\w+: The actor died because of an error raised in its creation task).*\bip=(?P<host>[\w.:-]+)"
)
# What jax puts before an exception whose full traceback it prints.
_UNFILTERED = "jax._src.traceback_util.UnfilteredStackTrace: "
# What TensorFlow puts before the error of an operation: first the places that created it.
_IN_GRAPH = "Graph execution error:"
_OF_OPERATION = re.compile(
    r"(?:  \(\d\) )?(?!\s|Detected at node|Node: |\d+ root error|\w+: error: )(?P<message>\S.{0,2000})"
)
_LONGEST_LINES = 5000
_LINES_TO_LINK = 30
_MOST_MESSAGE_LINES = 12
_MOST_PLACES = 100
# The head of a traceback that torch.distributed.checkpoint prints below its own exception, for each rank that
# failed.
_OF_RANK = re.compile(r".*Traceback \(most recent call last\): \(RANK (\d{1,7})\)")
# The end of a line whose message continues on the next.
_GOES_ON = (":", "...", ",", "(", "[", "{", "\\")
_OF_AN_EXCERPT = 4
# What inference engines put before an exception that they log without its traceback.
_LOGGED = re.compile(r"(?:ERROR|CRITICAL|FATAL) (?:\d\d-\d\d \d\d:\d\d:\d\d )?\[?[\w./-]+\.py:\d+\]? ")
# What torch writes below many exceptions.
_ADVICE = re.compile(
    r"(?:CUDA|HIP) kernel errors might|For debugging|Compile with|Search for `|You can suppress|Set TORCH"
)
# Bars of progress, Java's stack, lines of Python's loggers, and code of a twin's traceback.
_NO_MESSAGE = re.compile(
    r"\d%\||^\s+at [\w.$<>]{3,200}\(|^\s*(?:INFO|WARNING|ERROR|CRITICAL):[\w.]+:|^\s+raise [\w.]+\($"
)
# What torch adds to NCCL's errors and torch_npu to CANN's, and DDP's lines on unused parameters.
_ADDED = re.compile(
    r"nccl[A-Z]\w{0,40}: |Last error:|\[ERROR\] [\d-]{10}-[\d:]{8} \(PID:(?!.*\bERR99999 UNKNOWN)|\[Error\]: "
    r"|making sure all `forward`|If you already have done the above|Parameter(?:s| ind\w+) which did not"
)
# A place in compiled code; below it, the code's macros say what failed there.
_COMPILED_PLACE = re.compile(r"\.(?:cuh?|cc|cpp|cxx|hpp|h)[: ]\d{1,6}:?$")


class Traceback:
    """One writer's traceback while it is read: a chain of exceptions (``links``).

    It takes lines until :attr:`done`; :attr:`end` is the last. ``root`` is the index of the root cause,
    ``frames`` what was printed before the first exception. ``fatal``: its writer says that it ended the
    process. ``hooked``: torch.distributed's hook for uncaught exceptions printed it. ``mild``: a logger
    printed it, as a warning or less. ``begun``: the first function of the last traceback, whose own end may
    be cut off. ``lead``: what precedes it on its first line. ``quoted``: the type of the exception of the
    Ray task whose traceback stands in it. ``twins`` began amid its lines.
    """

    def __init__(self, line: Line, opening: re.Match[str] | None, moment: LineTime) -> None:
        """Begin with its opening line; without ``opening``, with a frame, because its head is missing."""
        self.start = self.end = line.number
        self.where = line.where
        self.moment = moment
        self.opened_by = self.last_line = line
        self.links: list[Raised] = []
        self.root = 0
        self.frames: list[TracebackFrame] = []
        self.headless = opening is None
        self.mild = line.mild
        self.hooked = _HOOK.search(line.whole[: len(line.whole) - len(line.text)]) is not None
        self.harmless = self.fatal = self.done = False
        self.begun = self.quoted = ""
        self.lead = opening["prefix"] if opening else ""
        self.prefix = self.lead if _REPEATED.fullmatch(self.lead) or self.lead.isspace() else ""
        self.twins = 0
        # None between an exception and a possible next one
        self._frames: list[TracebackFrame] | None = []
        self._box = _Box()
        self._linked = self._handling = False
        self._indented = 0  # the extra indentation of its lines, in an excerpt
        self._awaits_operation = False
        self._idle_lines = 0
        self._of_rank = False  # true once a head named the rank that raised it
        if opening and (of_rank := _OF_RANK.match(line.text)):
            self._set_rank(int(of_rank[1]))
            self.fatal = True  # the exception that it belongs to is above

    @property
    def is_wrapper(self) -> bool:
        """Return whether it only says that a spawned process failed, without the reason below."""
        return bool(self.links) and self.root >= len(self.links) and self.links[-1].text in _SPAWNERS

    @property
    def was_caught(self) -> bool:
        """Return whether the code that caught it printed it, so that the process may have continued."""
        entries = [entry for entry in (*(link.entry for link in self.links), self.begun) if entry]
        uncaught = self.headless or self.fatal or self.hooked
        if self.mild and not uncaught:
            return True
        return bool(entries) and not uncaught and not _ENTRIES.intersection(entries)

    @property
    def script(self) -> str:
        """The program's main file, "" if no traceback shows it."""
        return next((link.script for link in self.links if link.script), "")

    @property
    def place(self) -> TracebackFrame | None:
        """The innermost place in the user's own code, as far as it was printed before the first exception."""
        own = [frame for frame in self.frames if not frame.is_library]
        return own[-1] if own else self.frames[-1] if self.frames else None

    def read(self, line: Line) -> bool:
        """Read a line; return False if the line is not part of it."""
        text = line.text.removeprefix(self.prefix)
        if line.number - self.start > _LONGEST_LINES:
            self.done = True
            return False
        frames = self._frames
        taken = self._between(text, line) if frames is None else self._within(text, line, frames)
        self._seen = line.number
        return taken

    def _within(self, text: str, line: Line, frames: list[TracebackFrame]) -> bool:
        if frame := next(filter(None, (form.match(text) for form in _FRAMES)), None) or self._box.frame(text):
            frames.append(_frame(frame))
            self._indented = max(0, len(text) - len(text.lstrip(" ")) - 2)
            self.last_line = line
            self.begun = frames[0].function
            if not self.links or self.is_wrapper:
                self.frames = frames
        elif quoted := quotes_task(text):
            self.quoted = quoted["raised"] or ""
            self.where = Location(host=quoted["host"]).filled(self.where)
            return False
        elif ending := _ENDING.match(text, self._name_at(text)):
            self._end(_raised(ending, line, frames, handling=self._handling))
        else:
            numbered = _NOTEBOOK_CODE.match(text) if frames and not frames[-1].source else None
            if numbered and text.startswith("-"):
                line_of_it = frames[-1].line or int(numbered[1])
                frames[-1] = replace(frames[-1], line=line_of_it, source=shown(text[numbered.end() :]))
            elif frames and not frames[-1].source and not numbered and text.startswith((" ", "\t")):
                frames[-1] = replace(frames[-1], source=shown(text))
            # Source lines and marks, and the opening of a twin that writes to the same pipe.
            of_code = text.startswith((" ", "\t")) or _RICH_CODE.match(text) is not None
            twin = opens(text) is not None
            self.twins += twin
            return twin or of_code or not text.strip()
        return True

    def _name_at(self, text: str) -> int:
        """Return the position of an exception's name in a line, if it has one."""
        at = self._indented if text[: self._indented].isspace() else 0
        return at + len(_UNFILTERED) * text.startswith(_UNFILTERED, at)

    def _end(self, raised: Raised) -> None:
        self.links.append(raised)
        self._frames, self._linked, self._handling, self._idle_lines = None, False, False, 0
        self._awaits_operation = raised.message == _IN_GRAPH

    def _between(self, text: str, line: Line) -> bool:
        if opening := opens(text):
            if opening["inner"]:
                self.root = len(self.links)
            elif of_rank := _OF_RANK.match(text):
                self._set_rank(int(of_rank[1]))
            elif not self._linked:
                self.done = True
                return False
            self._frames = []
        elif link := _LINK.search(text):
            self._linked, self._handling = True, link[0].startswith("During")
        elif spawned := _INNER_LINK.search(text):
            self._linked, self.root = True, len(self.links)
            if self.where.rank is None:
                self.where = self.where.filled(Location(local_rank=int(spawned[1])))
        elif self._awaits_operation:
            self._await_operation(text, line)
        elif text.strip():
            self._extend_message(text, line)
            self._idle_lines += 1
            self.done = self._idle_lines > _LINES_TO_LINK
            return False
        return True

    def _set_rank(self, rank: int) -> None:
        """Begin with the exception of a rank that a collective operation names; of several the first
        counts.
        """
        if not self._of_rank and not self.root:
            self._of_rank, self.root = True, len(self.links)
            if self.where.rank != rank:
                self.where = Location(rank=rank)

    def _await_operation(self, text: str, line: Line) -> None:
        """Read a line below TensorFlow's report on a graph; the message is the error of an operation."""
        if found := _OF_OPERATION.match(text):
            raised = self.links[-1]
            message = shown(f"{raised.message} {found['message']}")
            self.links[-1] = replace(raised, message=message, line=line)
            self._awaits_operation = False

    def _extend_message(self, text: str, line: Line) -> None:
        """Take the line right below an exception as part of its message, if that had not ended."""
        raised = self.links[-1]
        last = raised.more[-1] if raised.more else raised.line
        if shown(text) in {raised.text, *(frame.source for frame in self.frames)}:
            return  # of a twin that writes to the same pipe
        if line.mild and not self.mild:
            return  # of a logger
        in_turn = bool(line.writer) and last.number == self._seen
        at_once = line.number == last.number + 1
        if at_once or in_turn:
            extend_message(raised, text, line, whole=self.hooked and not text.startswith("["))


def extend_message(raised: Raised, text: str, line: Line, *, whole: bool = False) -> bool:
    """Take the next line as part of the message if that had not ended; return False if it had.

    ``whole``: all further lines of this writer belong to the message.
    """
    ended = (raised.more[-1] if raised.more else raised.line).text.rstrip()
    continues = (
        (whole and not _ADVICE.match(text))
        or ended.endswith(_GOES_ON)
        or text.startswith((" ", "\t"))
        or _ADDED.match(text) is not None
        or _COMPILED_PLACE.search(ended) is not None
    )
    if (
        not continues
        or not text.strip()
        or _NO_MESSAGE.search(text)
        or len(raised.more) >= _MOST_MESSAGE_LINES
    ):
        return False
    if not raised.more and is_frame(text):
        return False
    raised.more.append(line)
    return True


def _frame(found: re.Match[str]) -> TracebackFrame:
    lost = found[3] is None and found.re is _NOTEBOOK_FRAME
    return TracebackFrame(found[1], int(found[2] or 0), "<module>" if lost else (found[3] or "").strip())


def _raised(ending: re.Match[str], line: Line, frames: list[TracebackFrame], *, handling: bool) -> Raised:
    own = [frame for frame in frames if not frame.is_library]
    scripts = (frame.file for frame in own if frame.function == "<module>" and not _CELL.match(frame.file))
    return Raised(
        ending[1],
        shown(ending[2] or ""),
        line,
        own[-1] if own else None,
        (*frames[:1], *frames[1:][1 - _MOST_PLACES :]),
        handling=handling,
        script=next(scripts, ""),
    )


class _Box:
    """Reads the entries of a traceback in rich's box, which wraps long lines."""

    def __init__(self) -> None:
        self._broken = ""

    def frame(self, text: str) -> re.Match[str] | None:
        """Return the entry that a line contains or ends."""
        inside = text.strip(" │|") if text.startswith(("│", "|")) else ""
        broken, self._broken = self._broken, inside if inside.startswith("/") else ""
        self._broken += " " * self._broken.endswith(" in")
        return _RICH_FRAME.match(text) or (_RICH_FRAME.match(f"│ {broken}{inside}") if broken else None)


def quotes_task(text: str) -> re.Match[str] | None:
    """Return the match if a line begins to quote the traceback of a Ray task, else None."""
    return _QUOTES_TASK.match(text)


def is_frame(text: str) -> bool:
    """Return whether a line is an entry of a traceback."""
    return _WHOLE_FRAME.match(text) is not None


def opens(text: str) -> re.Match[str] | None:
    """Return the match if a line opens a traceback."""
    return _OPENING.match(text) if "Traceback (" in text else None


def _indentation(text: str) -> int:
    """Return the indentation of a line; 0 if it is deeper than that of an excerpt."""
    further = len(text) - len(text.lstrip(" "))
    return further if further <= _OF_AN_EXCERPT else 0


def lone(line: Line, preceding: Iterable[Line] = ()) -> Raised | None:
    """Return the exception that a line names without a traceback (as Python does for syntax errors).

    ``preceding`` are the lines above it, nearest first: if the head of rich's box is not in the log, they
    contain the frames.
    """
    logged = _LOGGED.match(line.text)
    ending = _ENDING.match(line.text, logged.end() if logged else _indentation(line.text))
    if ending is None or not ending[1].endswith(("Error", "Exception")):
        return None
    if ending[1] == "Error" or (ending[1] == "Exception" and not ending[2]):
        return None  # programs of all kinds begin in this way
    frame = None
    if ending[1] in ("SyntaxError", "IndentationError", "TabError"):
        named = [found for before in preceding if (found := _FRAME.match(before.text))]
        frame = TracebackFrame(named[0][1], int(named[0][2]), named[0][3] or "") if named else None
    return Raised(ending[1], shown(ending[2] or ""), line, frame)
