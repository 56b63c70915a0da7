"""The same log gets the same answer, whatever stands before its lines and around it.

Each change below is made to a part of the corpus, chosen by the names of log and change.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from functools import cache

import pytest

from platform_launch.why import LogSource, Verdict, explain
from platform_launch.why.messages.signatures import catalogue
from tests.why.corpus import Case, cases

pytestmark = [pytest.mark.long, pytest.mark.nightly]
Change = Callable[[str], str | bytes]
Tear = Callable[[str], str]
_EVERY = 8  # logs of the corpus, one is read with a change
_MOST_OTHERWISE = 0.08  # of the answers may say less


def each(before: Callable[[int], str], after: str = "") -> Change:
    """Put something around each line."""
    return lambda text: "".join(
        f"{before(n)}{line}{after}\n" for n, line in enumerate(text.rstrip("\n").split("\n"))
    )


def clock(line: int) -> str:
    return f"03:{line // 60 % 60:02d}:{line % 60:02d}"


def before_traceback(glued: str) -> Change:
    return lambda text: re.sub(r"(?m)^(?=Traceback|\w+Error: )", glued, text)


def after_message(glued: str) -> Change:
    return lambda text: re.sub(r"(?m)^(\w+Error: .*\w)$", lambda found: found[1] + glued, text)


BAR = " 37%|███▋      | 370/1000 [05:11<08:49,  1.19it/s]"
STEPS = "".join(
    f"Step {n}/100000 | Loss: {2.5 - n / 1000:.3f} | lr 1.0e-04 | 12.3 samples/s\n" for n in range(500)
)
LINES_OF_CHATTER = [
    "/env/lib/python3.11/site-packages/transformers/hub.py:127: FutureWarning: `CACHE` is deprecated.\n",
    "  warnings.warn(\n",
    "[WARNING]  async_io requires the dev libaio .so object and headers but these were not found.\n",
    "gpu7:4:4 [0] NCCL INFO dlerror=libnccl-net.so: cannot open shared object file: No such file\n",
    "Running this sequence through the model will result in indexing errors\n",
    "2026-11-21 03:04:06.123456: E external/cuda_fft.cc:485] Unable to register cuFFT factory: Attempting\n",
    "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 97 - Address fam\n",
]
CHATTER = "".join(LINES_OF_CHATTER)
KILL = (
    "[3242.11] Memory cgroup out of memory: Killed process 991 (java) total-vm:1048576kB, anon-rss:524288kB\n"
)
COMMAND = "(env) ada@gpu01:~/proj$ torchrun --nproc_per_node=8 train.py --max-errors 3 --timeout 1800\n"

# What stands before each line says nothing of what went wrong.
PREFIXES: dict[str, Change] = {
    "torchrun --tee": each(lambda n: "[default0]:"),
    "kubectl --timestamps": each(lambda n: f"2026-11-21T{clock(n)}.123456789Z "),
    "CRI": each(lambda n: f"2026-11-21T{clock(n)}.123456789Z stderr F "),
    "journald": each(lambda n: f"2026-11-21T{clock(n)}+0000 gpu-07 train[4217]: "),
    "stern": each(lambda n: "train-0-x7k2p main "),
    "docker compose": each(lambda n: "trainer  | "),
    "docker build": each(lambda n: f"#12 {3 + n / 10:.1f} "),
    "pdsh": each(lambda n: "gpu-07: "),
    "Ray": each(lambda n: "(main_task pid=4217) "),
    "SkyPilot": each(lambda n: "(task, pid=4217) "),
    "Kaggle": each(lambda n: f"{704.7 + n / 10:.1f}s\t{1290 + n}\t"),
    "Kaggle, blanks": each(lambda n: f"{704.7 + n / 10:.1f}s {1290 + n} "),
    "GitHub Actions": each(lambda n: f"train\tRun training\t2026-11-21T{clock(n)}.1234567Z "),
    "Airflow": each(lambda n: f"[2026-11-21, {clock(n)} UTC] {{subprocess.py:93}} INFO - "),
    "DeepSpeed's pump": each(lambda n: f"[2026-11-21 {clock(n)},123] [INFO] [launch.py:42:pump] "),
    "Hydra": each(lambda n: f"[2026-11-21 {clock(n)},123][__main__][ERROR] - "),
    "time and date": each(lambda n: f"2026-11-21 {clock(n)} "),
    "time": each(lambda n: f"{clock(n)} "),
    "milliseconds": each(lambda n: f"{1763694245123 + n * 10}\t"),
    "stream": each(lambda n: "[stderr] "),
}
# What an editor or a terminal makes of a log.
CLOTHES: dict[str, Change] = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "red": each(lambda n: "\x1b[31m", "\x1b[0m"),
    "words in colour": lambda text: re.sub(r"(\w*(?:Error|ERROR|Traceback))\b", "\x1b[1;31m\\1\x1b[0m", text),
    "no empty lines": lambda text: re.sub(r"\n\n+", "\n", text),
    "no last line end": lambda text: text.rstrip("\n"),
}
# What stands around it.
SURROUNDINGS: dict[str, Change] = {
    "bar": lambda text: f"\r{BAR}" * 40 + text,
    "bar before the traceback": before_traceback(BAR),
    "bar behind the message": after_message(BAR),
    "wandb behind the message": after_message("wandb: Waiting for W&B process to finish... (failed 1)."),
    "steps": lambda text: STEPS + text,
    "chatter": lambda text: CHATTER + text,
    "chatter in between": lambda text: "".join(
        line + (LINES_OF_CHATTER[n // 6 % 7] if n % 6 == 5 else "")
        for n, line in enumerate(text.splitlines(keepends=True))
    ),
    "another program killed": lambda text: KILL + text,
    "command": lambda text: COMMAND + text,
    "shell's trace": lambda text: f"+ srun --kill-on-bad-exit=1 python train.py --timeout 60\n{text}",
    "eight ranks": lambda text: text * 8,
    "its task's end": lambda text: f"{text}srun: error: gpu07: task 0: Exited with exit code 1\n",
}
# The lines of ranks that take turns, and logs that are cut: what is lost may be the place or the cause.
TORN: dict[str, Tear] = {
    "two tasks in turn": lambda text: "".join(f"0: {line}\n1: {line}\n" for line in text.splitlines()),
    "end of the log": lambda text: "\n".join(text.splitlines()[-15:]) + "\n",
    "first line cut": lambda text: text.partition("\n")[2],
    "without quotes": lambda text: text.replace("'", ""),
}


def told(text: str | bytes) -> Verdict:
    data = text if isinstance(text, bytes) else text.encode()
    return explain([LogSource("log", io.BytesIO(data))])


@cache
def plain_answer(case: Case) -> Verdict:
    return told(case.log.read_text())


def chosen(change: str) -> list[Case]:
    return [case for case in cases() if zlib.crc32(f"{change} {case.name}".encode()) % _EVERY == 0]


def letters(text: str) -> str:
    return re.sub(r"\W+", "", text)


def says_the_same(plain: Verdict, dressed: Verdict) -> bool:
    if plain.cause != dressed.cause:
        return False
    if plain.cause != "python_exception" or plain.exception is None or dressed.exception is None:
        return True
    return letters(plain.exception.message)[:60] == letters(dressed.exception.message)[:60]


def is_wrong(plain: Verdict, dressed: Verdict) -> bool:
    """Tell whether something else is told as certain, which is not only a wider reading of the same line.

    What the lost cause explains is told rightly: an extension did not compile, whatever it lacked.
    """
    if dressed.kind != "cause" or says_the_same(plain, dressed):
        return False
    if plain.cause is not None and dressed.cause in catalogue()[plain.cause].explains:
        return False
    kinds = [one.exception.type for one in (plain, dressed) if one.exception is not None]
    if dressed.cause == "python_exception" and len(kinds) == 2 and kinds[0] == kinds[1]:
        return False
    seen, now = (letters(one.evidence[0].text) if one.evidence else "" for one in (plain, dressed))
    return not seen or (now[-40:] not in seen and seen[:40] not in now)


@pytest.mark.parametrize("name", [*PREFIXES, *CLOTHES, *SURROUNDINGS])
def test_the_answer_does_not_depend_on_a_logs_clothes(name: str) -> None:
    change = {**PREFIXES, **CLOTHES, **SURROUNDINGS}[name]
    wrong, otherwise, read = [], [], chosen(name)
    for case in read:
        plain, dressed = plain_answer(case), told(change(case.log.read_text()))
        if is_wrong(plain, dressed):
            wrong.append((case.name, dressed.cause, dressed.title))
        elif plain.kind != "unknown" and not says_the_same(plain, dressed):
            otherwise.append((case.name, dressed.kind, dressed.cause))
    assert wrong == []
    assert len(otherwise) <= len(read) * _MOST_OTHERWISE, otherwise


@pytest.mark.parametrize("name", TORN)
def test_a_torn_log_gets_no_other_cause(name: str) -> None:
    wrong = []
    for case in chosen(name):
        text, plain = TORN[name](case.log.read_text()), plain_answer(case)
        whole = all(one.text.strip("…")[:60].strip() in text for one in plain.evidence)
        dressed = told(text)
        if whole and plain.kind == "cause" and is_wrong(plain, dressed):
            wrong.append((case.name, dressed.cause, dressed.title))
    assert wrong == []
