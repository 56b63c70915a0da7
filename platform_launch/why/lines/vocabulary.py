"""The words of failure messages, and which shapes of a log's lines contain one.

A line's shape is its letters, in lower case, and spaces: "step loss psnr db gpu gb stepssec". A known shape
costs a look-up in a set; so does a known word in a new shape. Only new words are searched for the stems of
failure messages. Nothing is lost: the stems consist of letters only, so a line contains one if its shape
does.
"""

from __future__ import annotations

import re
from collections import Counter

_KNOWN_SHAPES = 20_000
_KNOWN_WORDS = 50_000
_DISMISSALS = 20
# After so many passed-on lines in all, fewer are passed on of each shape, and words in many shapes weigh
# less. An irrelevant line counts as several.
_STAGES = (4_000, 12_000, 1 << 62)
_WEIGHT_OF_NOTHING = 3
_LONG_BYTES = 512
_LINES_OF_A_SHAPE = (5000, 200, 10)
_SHAPES_OF_A_WORD = (500, 200, 50)

# Each line that a signature matches contains one of these stems or words (a test checks every example in
# messages/known), and so does each that shows on which host a rank runs.
STEMS = """
    abort addr afinet alloc already amdgpu ancdata apikey argument assert attempt authenticity available
    backoff badzip barrier bootstrapcc broken cancel cannot cause certificate channels child clients closed
    collective communicator completion conflict connect corrupt couldnt crash credential cublas cuda cudnn
    cusparse cxxabi deadline denied deserializ divisible driver dumped duplicate econn edac ehost emptydir
    enet enospc ephemeral epipe errno error etime evict exceed exception exhausted exit expected expir fail
    fatal finite forbidden found gated glibc globalrank hccl heartbeat horovodrun hostfile ibvwc
    identification illegal imagepull imex import inactive incarnation inconsistent initialized
    insufficient interface interrupt invalid jaxworker kernel kill launchopened libibverbs locked lossinf
    lossnan lost lustre mdrun memlimit mismatch missing mklthread mlx mnnvl mountnfs mpid mpiexec mpifinalize
    mpiinit mpirun munge must nbytes netcc neth ninja nodelist nodenotready nonzero noticed nranks
    nvidiacontainer nvml nvrm nvrtc offline ompi oomreaper option ordinal outofme panic permitted pickling
    pluginload pmix populate preempt pressure pullaccess qsub quota ratelimit rdzvendpoint readonly recognized
    reduction refused relaunch remapp requeue reset resolve resource restart resubmit retrieved retrying route
    runlimit segfault segmentation severe shared shutdown shutting sigabrt sigbus sighup sigill sigint signal
    sigquit sigsegv sigterm sigusr slowdown socketcc socketh stalled statedict subset supported symbol taint
    termadmin termination termowner throttl timeout toomany traceback trainerfit trainingfinished truncated
    unable unauthor unbound undefined unhandled unknown unreachable vendor walltime watchdog wexit worldsize
    wtermsig
""".split()  # noqa: SIM905 - a hundred words read best as text
WHOLE_WORDS = """
    activate asked backtrace binbashm bind binshm bound bus cant conda createsession dead deleted detected
    died down ecc ef eh ei ej el ended ending eof err exit extensions ez file find finished flag full gtl
    hello hnp host[a-z]* inf joined link locks lost many mca mce mcw memory minimum module nan nfs npu
    numtasks oom orte outside override pipe pml port progress prte ready registered runid same see slots
    slurmntasks slurmntaskspernode slurmtaskspernode slurmtaskspernodex space stale startup stuck such sxid
    terminate terminated timed unhealthy use using wandb warn worldrank xid
""".split()  # noqa: SIM905
# What is searched for instead of whole words, whose bounds cost GNU grep a quarter of its speed, and instead
# of stems of three letters. Valid for grep -E and Python, without case; none contains a longer stem.
PHRASES = (
    "after mpi_f", "api key", "backtrace [(]tid", "bind to that", "be the same", "before mpi_i",
    "bootstrapping phase", "can't",
    "communication on port", "conda env", "could not find '", "createsession", "could not override", "dead",
    "deleted", "detected", "died", "direct launched", "ended before", "ended with", "extensions root",
    "file lock", "file named", "group finished", "gtl library", "has no attribute", "has no run_id",
    "have permission", "have the same", "in file", "in state", "is down", "is full", "end-asked",
    "launch-opened", "link down", "machine check", "mca parameter", "memory access", "mpi routine",
    "memory limit", "nan values", "nccl warn", "nfs: ", "no module", "no ([a-z]+ )?progress", "no space",
    "no such", "non-zero code", "not active",
    "not logged in", "not ready", "of memory", "off the bus", "on memory", "oom_reaper", "open file",
    "orte daemon", "out_of_me", "process down", "processes registered", "prte daemon", "read-only file",
    "ready twice", "rock module", "same model",
    "same name", "same param", "see '", "selected pml", "sh\\^m: ", "shut down", "stale file", "stale nfs",
    "stuck", "terminate", "timed out", "too many", "training batches",
    "training-finished", "uncorrectable", "unhealthy", "went down", '", line ',
    "xid [(]", "(bootstrap|socket) ?: using", "nan([^a-z]|$)", "inf([^a-z]|$)",
    # Ascend's error codes, EI0006 for instance, and NCCL's trace of an error.
    "e[cfhijlz][0-9]{4}", "(cc|h):[0-9]+ -> [236]", "mlx[0-9]",
)  # fmt: skip
_TELLING = re.compile(f"{'|'.join(STEMS)}|^(?:{'|'.join(WHOLE_WORDS)})$".encode(), re.MULTILINE)

_KEPT = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \r\n"
_DROPPED = bytes(set(range(256)) - set(_KEPT))
_SQUEEZE = bytes.maketrans(b"\rABCDEFGHIJKLMNOPQRSTUVWXYZ", b"\nabcdefghijklmnopqrstuvwxyz")


class Vocabulary:
    """Remembers which shapes and words of a log are irrelevant, and how many lines of each were passed on.

    Its memory is bounded, and so is its output: some thousand lines per shape, none of shapes whose only
    telling word is too frequent, and fewer the more were passed on before. This also bounds the cost of a
    loader that logs millions of errors, each in other words.
    """

    def __init__(self) -> None:
        self._dull_shapes: set[bytes] = set()
        self._dull_words: set[bytes] = set()
        self._telling_words: set[bytes] = set()
        self._dismissed: Counter[bytes] = Counter()
        self._given: Counter[bytes] = Counter()
        self._worn_words: set[bytes] = set()
        self._shapes_with: Counter[bytes] = Counter()
        self._total = 0
        self._stage = 0
        self.exhausted: set[bytes] = set()
        self.skipped = False

    def promising(self, shapes: list[bytes]) -> dict[bytes, frozenset[bytes]]:
        """Return the shapes that contain a telling word, with these words."""
        novel = set(shapes) - self._dull_shapes
        if not novel:
            return {}
        words = set(b" ".join(novel).split(b" ")) - self._dull_words
        fresh = words - self._telling_words
        if fresh and _has_telling_word(fresh):
            self._telling_words |= {word for word in fresh if _TELLING.search(word)}
        telling = words & self._telling_words
        self._dull_words |= words - telling
        found = self._telling_shapes(novel, telling) if telling else {}
        if len(novel) * 2 < len(shapes):  # else nearly each line is new, and remembering them is useless
            self._dull_shapes |= novel - found.keys()
        if len(self._dull_shapes) > _KNOWN_SHAPES:
            self._dull_shapes.clear()
        if len(self._dull_words) > _KNOWN_WORDS:
            self._dull_words.clear()
        if len(self._telling_words) > _KNOWN_WORDS:
            self._telling_words.clear()
            self._worn_words.clear()
            self._shapes_with.clear()
        return found

    def _telling_shapes(self, novel: set[bytes], telling: set[bytes]) -> dict[bytes, frozenset[bytes]]:
        """Return the shapes with a telling word; a word in very many shapes no longer counts."""
        fresh = telling - self._worn_words
        if not fresh:
            self.skipped = True
            return {}
        held = ((shape, frozenset(fresh.intersection(shape.split(b" ")))) for shape in novel)
        return {shape: words for shape, words in held if words}

    def admit(self, shape: bytes, telling: frozenset[bytes] = frozenset()) -> bool:
        """Count a line to pass on; return False if there were enough of its shape or of its words.

        A line without ``telling`` words is passed on because of its neighbours.
        """
        if telling and telling <= self._worn_words:
            self.skipped = True
            return False
        count = self._given[shape] = self._given[shape] + 1
        if count > _LINES_OF_A_SHAPE[self._stage]:
            self._dull_shapes.add(shape)
            self.exhausted.add(shape)
            self.skipped = True
            return False
        if count == 1:
            self._shapes_with.update(dict.fromkeys(telling, _weight(shape)))
            limit = _SHAPES_OF_A_WORD[self._stage]
            self._worn_words.update(word for word in telling if self._shapes_with[word] > limit)
        self._count(_weight(shape))
        if len(self._given) > _KNOWN_SHAPES:
            self._given.clear()
            self.exhausted.clear()
        return True

    def dismiss(self, shape: bytes) -> bool:
        """Record that a line of this shape was irrelevant; return True if there were enough of them."""
        self._count(_WEIGHT_OF_NOTHING * _weight(shape))
        self._dismissed[shape] += 1
        dull = self._dismissed[shape] >= _DISMISSALS
        if dull:
            self._dull_shapes.add(shape)
        if len(self._dismissed) > _KNOWN_SHAPES:
            self._dismissed.clear()
        return dull

    def _count(self, weight: int) -> None:
        self._total += weight
        if self._total > _STAGES[self._stage]:
            self._stage += 1


def _weight(shape: bytes) -> int:
    """Return as how many a line counts: a long one costs more to read."""
    return 1 + len(shape) // _LONG_BYTES


def squeeze(data: bytes) -> bytes:
    """Return the shapes of lines: their letters in lower case, and their spaces."""
    return data.translate(_SQUEEZE, _DROPPED)


def has_telling_word(text: bytes) -> bool:
    """Return whether a text contains a word of failure messages."""
    return _has_telling_word(set(squeeze(text).split()))


def _has_telling_word(words: set[bytes]) -> bool:
    return _TELLING.search(b"\n".join(words)) is not None
