"""What is said in Chinese: ``chinese.yaml``, causes and their advice ``chinese_advice.yaml``, costs here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from platform_launch.files import yaml_values

_FOLDER = Path(__file__).parent


@cache
def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml_values((_FOLDER / name).read_bytes())
    return found


def words(section: str) -> Mapping[str, str]:
    """Return a section of the words."""
    section_words: Mapping[str, str] = _read("chinese.yaml")[section]
    return section_words


def causes() -> Mapping[str, Mapping[str, str]]:
    """Return for each signature of ``why`` its title, what it means, what to do and more."""
    return _read("chinese_advice.yaml")


_SPENT = {
    "waiting_s": "等待节点",
    "starting_s": "启动",
    "training_s": "训练",
    "hang_s": "卡死",
    "restart_s": "重启",
}


def cost_in_chinese(fields: Mapping[str, object]) -> str:
    """Return it as one line, as ``platform_launch.launch.cost.RunCost`` does in English."""
    known = {name: float(value) for name, value in fields.items() if isinstance(value, int | float)}
    parts = []
    if "steps" in known:
        lost = known.get("lost_steps", 0.0)
        parts.append(f"{known['steps']:.0f} 步" + (f"（其中 {lost:.0f} 步因重启丢失）" if lost else ""))
    if "first_step_s" in known:
        parts.append(f"{duration(known['first_step_s'])}后完成第一步")
    shown = [f"{name} {duration(known[key])}" for key, name in _SPENT.items() if known.get(key, 0.0) >= 0.5]
    parts.append(f"用时：{'，'.join(shown) or '0 秒'}")
    if "productive_share" in known:
        parts.append(f"有效时间 {known['productive_share']:.0%}")
    if known.get("steps_per_s"):
        change = f"（与开始时相比 {known['speed_change']:+.0%}）" if "speed_change" in known else ""
        parts.append(f"{known['steps_per_s']:.3g} 步/秒{change}")
    if known.get("eta_s"):
        parts.append(f"还需 {duration(known['eta_s'])}")
    return "；".join(parts)


def duration(value: float) -> str:
    """Return a time as a person says it, as ``platform_launch.events.seconds`` does in English."""
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} 小时 {minutes} 分"
    return f"{minutes} 分 {rest} 秒" if minutes else f"{rest} 秒"
