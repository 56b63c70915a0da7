"""What was seen, kept between runs (``results.json``), and the reference page that is made of it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path

from tests.faults.fault import Fault
from tests.faults.faults import ALL
from tests.faults.stage import LIMIT_S, Observed

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "reference" / "faults.md"

_HEAD = """# Faults

What happens to a job on two nodes when something goes wrong. Each fault was injected on hosts simulated
with network namespaces. `platform-launch` handled {good} of {ours} faults correctly. Plain `torchrun` was
given {peer} of them, with the same script on the same hosts, and handled {peer_good}; ✗ marks the others.

Times are from the fault to the end of the last node, on two busy cores: compare them with each other, and
expect less on an idle machine. The exit codes of the nodes follow. *Reported* is the node that the output
of each remaining node names as the cause.

```bash
python -m tests.faults                                   # injects all faults, and writes this page
python -m tests.faults --launcher torchrun exit-3 cut    # some faults, with another launcher
python -m tests.faults --soak 200 --seed 7               # 200 random faults in a row, on three nodes
```

Another launcher needs an adapter of a few lines, which starts a node and reads its output
(`tests/faults/launchers.py`). After each fault nothing may be left: no process, no file of the launcher
in `TMPDIR` or `/dev/shm`, and no listening port. Faults of GPUs and their drivers, and file systems that
freeze, cannot be injected in this way and are not in this list.

In most rows the ranks do not communicate. Such a job continues when another node is lost, as
[decided](../decisions/0019-silence-and-progress.md). If the ranks communicate (`…-gloo`), the job ends.

| fault | what happens | the job should | platform-launch | reported | torchrun | reported |
|---|---|---|---|---|---|---|
"""

Results = dict[str, dict[str, dict[str, object]]]  # launcher → fault → what was seen


def as_result(fault: Fault, seen: Observed) -> dict[str, object]:
    """Return what is kept of a fault that was played."""
    return {
        "seconds": None if seen.seconds is None else round(seen.seconds, 1),
        "codes": list(seen.codes),
        "told": seen.told(fault),
        "problems": seen.problems(fault),
    }


def load() -> Results:
    """Return what earlier runs saw."""
    found: Results = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def keep(launcher: str, fault: Fault, result: dict[str, object]) -> None:
    """Keep a result, in the order of the faults."""
    with RESULTS.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several runs may play side by side
        results: Results = json.load(file)
        mine = {**results.get(launcher, {}), fault.name: result}
        results[launcher] = {one.name: mine[one.name] for one in ALL if one.name in mine}
        file.seek(0)
        file.truncate()
        file.write(json.dumps(results, indent=1) + "\n")


def page(results: Results) -> str:
    """Return the reference page."""
    ours, peer = results.get("platform-launch", {}), results.get("torchrun", {})
    good = sum(not result["problems"] for result in ours.values())
    peer_good = sum(not result["problems"] for result in peer.values())
    head = _HEAD.format(good=good, ours=len(ours), peer=len(peer), peer_good=peer_good)
    lines = head.splitlines()
    for fault in ALL:
        cells = [*_cells(ours.get(fault.name)), *_cells(peer.get(fault.name), own=fault.own)]
        lines.append(f"| `{fault.name}` | {fault.what} | {_owed(fault)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _owed(fault: Fault) -> str:
    return (
        "be refused"
        if fault.owed.value == "is refused"
        else {
            "goes on and finishes": "finish",
            "ends on all nodes": "end",
            "ends in good order": "end cleanly",
        }[fault.owed.value]
    )


def _cells(result: Mapping[str, object] | None, *, own: bool = False) -> tuple[str, str]:
    if result is None:
        return ("not applicable" if own else "not tested"), ""
    seconds = result["seconds"]
    codes = result["codes"]
    assert isinstance(codes, list)
    shown = "/".join("–" if code is None else str(code) for code in codes)
    took = f"not ended in {LIMIT_S:.0f} s" if seconds is None else f"{seconds} s, {shown}"
    problems = result["problems"]
    assert isinstance(problems, list)
    # What has not ended is still there: this counts only if the job has.
    left = [str(one) for one in problems if "left behind" in str(one) and seconds is not None]
    mark = "" if not problems else " ✗"
    return f"{took}{mark}" + (f" ({left[0]})" if left else ""), str(result["told"])
