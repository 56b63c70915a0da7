"""The form of message that each kind of receiver takes, and how it says that it did not take one. Pure."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from platform_launch.errors import shown

# WeCom takes 2,048 bytes of text, the page's address among them.
_LONGEST_BYTES = 1500
# Feishu, DingTalk and WeCom answer a message that they refuse with HTTP 200 and a number in the body.
REFUSAL_KEYS: Mapping[str, tuple[str, str]] = {
    "feishu": ("code", "msg"),
    "dingtalk": ("errcode", "errmsg"),
    "wecom": ("errcode", "errmsg"),
}


@dataclass(frozen=True)
class Notice:
    """What a message says."""

    group: str
    action: str
    detail: str
    at: str
    url: str
    code: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Return it in one line."""
        line = _cut(f"ProcGuard: {self.group} {self.action}: {self.detail}")
        return f"{line} {self.url}" if self.url else line


def body(kind: str, notice: Notice) -> dict[str, Any]:
    """Return the JSON document that a kind of receiver takes."""
    if kind == "slack":
        # Else a detail could hold <!channel>, which calls everybody.
        return {"text": html.escape(notice.text, quote=False)}
    if kind == "feishu":
        # <at user_id="all"> does the same there, and nothing is said of how to escape it.
        return {
            "msg_type": "text",
            "content": {"text": re.sub(r"<(?=/?at\b)", "< ", notice.text, flags=re.I)},
        }
    if kind in ("dingtalk", "wecom"):
        return {"msgtype": "text", "text": {"content": notice.text}}
    return {
        "group": notice.group,
        "event": notice.action,
        "detail": _cut(notice.detail),
        "code": notice.code,
        "values": notice.values,
        "at": notice.at,
        "url": notice.url,
        "text": notice.text,
    }


def refusal(kind: str, status: int, content: bytes) -> str:
    """Return why a receiver that answered so did not take a message, empty where it did."""
    if not 200 <= status < 300:
        return f"HTTP {status}"
    if kind not in REFUSAL_KEYS:
        return ""
    number, reason = REFUSAL_KEYS[kind]
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):  # the second for lists in lists in lists
        return "its answer is not JSON"
    if not isinstance(answer, dict) or answer.get(number, 0) == 0:
        return ""
    return f"{number}={shown(str(answer[number]), 20)}: {shown(str(answer.get(reason, '')), 200)}"


def _cut(text: str) -> str:
    return text.encode()[:_LONGEST_BYTES].decode(errors="ignore")
