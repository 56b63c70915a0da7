"""Play faults and write docs/reference/faults.md: ``python -m tests.faults [NAME…]``."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from dataclasses import replace

from tests.faults import table
from tests.faults.fault import Fault
from tests.faults.faults import ALL, BY_NAME
from tests.faults.launchers import LAUNCHERS, Launcher
from tests.faults.stage import Observed, play


def main() -> int:
    """Return 1 where a job did not end as it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to play (default: all)")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="platform-launch")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--missing", action="store_true", help="only those that no run has kept a result of")
    parser.add_argument("--for", dest="limit_s", type=float, metavar="SECONDS", help="then begin no more")
    parser.add_argument("--soak", type=int, metavar="N", help="play N faults by chance, with three nodes")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--show", action="store_true", help="print the output of what went wrong")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BY_NAME]:
        parser.error(f"no fault is called {', '.join(unknown)}; --list prints the names")
    launcher = LAUNCHERS[options.launcher]
    # A shell's background job and nohup ignore them, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if options.list:
        print("\n".join(f"{fault.name:24}{fault.what}" for fault in ALL))
        return 0
    if options.soak:
        return soak(launcher, options.soak, options.seed, options.limit_s, show=options.show)
    known = table.load().get(launcher.name, {}) if options.missing else {}
    chosen = [BY_NAME[name] for name in options.names] or list(ALL)
    began, wrong = time.monotonic(), 0
    for fault in chosen:
        if fault.name in known or (fault.own and not launcher.own_options):
            continue
        if options.limit_s is not None and time.monotonic() - began > options.limit_s:
            break
        seen = attempt(fault, launcher, show=options.show)
        table.keep(launcher.name, fault, table.as_result(fault, seen))
        wrong += bool(seen.problems(fault))
    table.PAGE.write_text(table.page(table.load()), encoding="utf-8")
    return int(wrong > 0)


def attempt(fault: Fault, launcher: Launcher, *, show: bool) -> Observed:
    """Play one fault, and print a line."""
    try:
        seen = play(fault, launcher)
    except (AssertionError, OSError) as error:  # the rest of the list is played all the same
        nobody = frozenset[int]()
        seen = Observed(
            (None,) * fault.nnodes, None, (nobody,) * fault.nnodes, ("it never trained",), str(error)
        )
    problems = seen.problems(fault)
    took = "    –" if seen.seconds is None else f"{seen.seconds:5.1f}"
    print(f"{fault.name:24}{took} s  {seen.codes!s:16} {'; '.join(problems) or 'right'}", flush=True)
    if show and problems:
        print(seen.output, flush=True)
    return seen


def soak(launcher: Launcher, number: int, seed: int, limit_s: float | None, *, show: bool) -> int:
    """Play faults by chance, one after the other; the seed repeats them."""
    chance, began = random.Random(seed), time.monotonic()
    print(f"seed {seed}", flush=True)
    cheap = [fault for fault in ALL if fault.nproc == 1 and (launcher.own_options or not fault.own)]
    played = wrong = 0
    while played < number and (limit_s is None or time.monotonic() - began < limit_s):
        fault = chance.choice(cheap)
        if fault.starts:
            fault = replace(fault, nnodes=3)
        played += 1
        print(f"{played:4} ", end="")
        wrong += bool(attempt(fault, launcher, show=show).problems(fault))
    print(f"{played} faults, seed {seed}: {wrong} wrong", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
