"""A small training without torch, healthy unless --mistake names what it does wrong.

    platform-launch drill --launcher python --script tests/lab/forgetful.py -- --mistake saves-in-place

It follows a target with momentum. Each step reads one sample; node 0 saves. SIGTERM makes it save and leave.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

SAVE_EVERY = 5
FOLDER = Path("checkpoints")


def main() -> int:
    """Run one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mistake", default="none")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--step-s", type=float, default=0.06)
    options = parser.parse_args()
    mistake, rank = options.mistake, int(os.environ["RANK"])
    asked: list[int] = []
    if mistake == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif mistake != "dies-of-sigterm":
        signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    state: dict[str, Any] = {"step": 0, "value": 0.0, "speed": 0.0, "read": 0}
    if mistake != "never-resumes":
        state = load(mistake) or state
    if mistake == "resumes-without-optimizer":
        state["speed"] = 0.0
    if mistake == "resumes-without-sampler":
        state["read"] = 0
    samples = random.Random(0)
    for _ in range(state["read"]):
        samples.random()
    while state["step"] < options.steps:
        time.sleep(options.step_s)
        away = 100 + samples.random() - state["value"]
        state["speed"] = 0.9 * state["speed"] + 0.01 * away
        state["value"] += state["speed"]
        state["step"] += 1
        state["read"] += 1
        print(f"step {state['step']} loss {away * away:.4f}", flush=True)
        if rank == 0 and (asked or state["step"] % SAVE_EVERY == 0):
            save(state, mistake)
        if asked:
            return 128 + asked[0]
    return 0


def save(state: dict[str, Any], mistake: str) -> None:
    """Write a checkpoint and keep the last two."""
    if mistake == "saves-with-a-collective":
        while not Path("never").exists():  # the other rank does not come
            time.sleep(0.1)
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(state | {"weights": "0" * 4000, "complete": True})
    if mistake == "saves-in-place":
        (FOLDER / "last.pt").write_text(text)
        return
    unfinished = FOLDER / "unfinished"
    unfinished.write_text(text)
    unfinished.replace(FOLDER / f"step-{state['step']}.pt")
    for old in newest_first()[2:]:
        old.unlink()


def newest_first() -> list[Path]:
    """Return the checkpoints."""
    return sorted(FOLDER.glob("*.pt"), key=lambda path: path.stat().st_mtime_ns, reverse=True)


def load(mistake: str) -> dict[str, Any] | None:
    """Return the state of the newest checkpoint that is whole."""
    for path in newest_first():
        text = path.read_text()
        try:
            return dict(json.loads(text))
        except ValueError:
            if mistake == "loads-what-is-there" and "," in text:
                return dict(json.loads(text[: text.rindex(",")] + "}"))
            print(f"{path} is not complete", file=sys.stderr)
    return None


if __name__ == "__main__":
    sys.exit(main())
