from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from platform_launch.why.answer.verdict import Verdict
from platform_launch.why.explaining import explain
from platform_launch.why.lines.line import Location
from platform_launch.why.sources import LogSource, node_of

LOGS = Path(__file__).parent / "logs"

Explain = Callable[..., Verdict]


@pytest.fixture
def logs() -> Path:
    """Recordings of real failures; machine paths replaced."""
    return LOGS


@pytest.fixture
def explain_text() -> Explain:
    """Explain texts: one, or several by name (``train_x_node1_….log`` is node 1's)."""

    def run(
        *texts: str | bytes,
        oom_kills: int | None = None,
        offsets: dict[str, float] | None = None,
        **named: str,
    ) -> Verdict:
        every = {**{f"log{index}": text for index, text in enumerate(texts)}, **named}
        return explain(
            [
                LogSource(
                    name,
                    io.BytesIO(text if isinstance(text, bytes) else text.encode()),
                    Location(node=node_of(name)),
                    (offsets or {}).get(name, 0.0),
                )
                for name, text in every.items()
            ],
            oom_kills,
        )

    return run


def uncaught(message: str, prefix: str = "", file: str = "/workspace/train.py", line: int = 88) -> str:
    """A traceback as Python prints it when nobody catches."""
    return "".join(
        f"{prefix}{text}\n"
        for text in (
            "Traceback (most recent call last):",
            '  File "/workspace/train.py", line 120, in <module>',
            "    main()",
            f'  File "{file}", line {line}, in forward',
            "    x = self.conv(x)",
            '  File "/env/lib/python3.11/site-packages/torch/nn/module.py", line 1, in _call_impl',
            "    return forward_call(*args)",
            message,
        )
    )


def progress(lines: int, prefix: str = "") -> str:
    return "".join(f"{prefix}Step {n}/100000 | Loss: 0.15 | PSNR: 18.5 dB\n" for n in range(lines))
