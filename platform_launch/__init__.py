"""platform_launch: run the same command on every node to start a training job.

``detect`` reads the platform's variables into a :class:`Topology`, ``build_plan`` decides a whole launch as a
frozen :class:`LaunchPlan`. Both are functions of values; nothing starts before ``supervise``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from platform_launch.plan.launch_plan import LaunchPlan, build_plan
    from platform_launch.platforms import detect
    from platform_launch.topology import Topology

__version__ = "0.1.0"
__all__ = ["LaunchPlan", "Topology", "__version__", "build_plan", "detect"]

_HOME = {
    "LaunchPlan": "plan.launch_plan",
    "Topology": "topology",
    "build_plan": "plan.launch_plan",
    "detect": "platforms",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use: commands that need none of them start faster."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
