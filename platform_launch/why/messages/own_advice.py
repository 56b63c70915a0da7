"""A message's own advice or reason, which comes before this project's advice.

The author of the message knew the case. So these sentences are shown in full, and advice of this project to
the contrary (raise what the message says to lower) is left out.
"""

from __future__ import annotations

import re

_MOST_CHARACTERS = 600
_SENTENCE = re.compile(r"(?<=[.!?;])\s+(?=[A-Z`'\"(])|\n+")
# What precedes the words of a message without an exception's name.
_HEAD = re.compile(r".{0,200}\b(?:WARN(?:ING)?|ERROR|FATAL|INFO)\b[\]:]?\s+")
_DO = (
    "add|decrease|disable|downgrade|enable|ensure|export|increase|install|log in|login|lower|make sure|pass"
    "|provide|raise|reduce|remove|rerun|run|set|specify|switch|try|unset|update|upgrade|use"
)
_DOING = (
    "adding|decreasing|disabling|downgrading|enabling|increasing|installing|lowering|passing|raising|reducing"
    "|removing|running|setting|specifying|switching|updating|upgrading|using"
)
_ADVISES = re.compile(
    r"(?i)"
    rf"^\W*(?:[\w ]{{1,40}}, )?(?:(?:{_DO}) |(?:please|consider|instead,?) \S)"
    r"|\b(?:please|consider|you (?:can|could|have to|may|must|need to|should)|need to) \S"
    rf"|\b(?:try|consider|by|or) (?:{_DOING}) |\b(?:or|and|then|it to) (?:{_DO}) [\w`'\"-]"
    r"|^\W*to (?:avoid|disable|enable|fix|resolve|solve|work around)\b"
    r"|\b(?:may|might) have (?:exceeded|run out|been killed)\b"
)
# How to look for a fault; that is not a remedy.
_HOW_TO_LOOK = re.compile(
    r"(?i)CUDA_LAUNCH_BLOCKING|TORCH_USE_CUDA_DSA|kernel errors might|for debugging|to enable traceback"
    r"|TORCHDYNAMO_VERBOSE|suppress_errors|(?:for|more|further) (?:details|information)\b"
    r"|(?:stack|full) ?traces?|report (?:a|this|the) (?:bug|issue)|file an issue"
    r"|NCCL_DEBUG|TORCH_LOGS|HYDRA_FULL_ERROR|RUST_BACKTRACE"
    r"|\b(?:check|see) .{0,40}\blogs?\b|check the reason"
)
_UP = re.compile(r"rais|increas|enlarg|enabl|larger|higher|more|提高|增大|增加|启用")
_DOWN = re.compile(r"lower|decreas|reduc|shrink|disabl|smaller|fewer|less|unset|降低|减小|减少|禁用|关闭")
_NAME = re.compile(r"[A-Za-z]\w*[_-][\w-]*\w|\b[A-Z][A-Z\d_]{3,}\b")
_LINE_OF_SIGHT = 40


def own_advice(message: str) -> str:
    """Return the sentences of a message that say what to do or give the reason."""
    sentences = [one.strip() for one in _SENTENCE.split(_HEAD.sub("", message, count=1)) if one.strip()]
    advice = [one for one in sentences if _ADVISES.search(one) and not _HOW_TO_LOOK.search(one)]
    text = " ".join(one if one.endswith((".", "!", "?", ";", ":")) else f"{one}." for one in advice)
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def led_by(advice: str, fix: str) -> str:
    """Return a message's own advice, followed by what is added to it."""
    return f"{advice} {without_contradiction(fix, advice)}".strip() if advice else fix


def without_contradiction(fix: str, advice: str) -> str:
    """Return a text without the sentences that the message contradicts or contains.

    The former would change a setting in the other direction; the latter name no other setting.
    """
    turned, named = _directions(advice), set(_NAME.findall(advice))
    kept = []
    for one in re.split(r"(?<=[.;])(?=\s)|(?<=[。；])", fix):
        names = set(_NAME.findall(one))
        if not _contradicts(_directions(one), turned) and not (names and names <= named):
            kept.append(one)
    return "".join(kept).strip()


def _contradicts(one: dict[str, int], other: dict[str, int]) -> bool:
    return any(direction * other.get(name, direction) < 0 for name, direction in one.items())


def _directions(text: str) -> dict[str, int]:
    """Return which named settings a text says to raise (1) or lower (-1)."""
    directions: dict[str, int] = {}
    for found in _NAME.finditer(text):
        before = text[max(0, found.start() - _LINE_OF_SIGHT) : found.start()].lower()
        up, down = (max((m.start() for m in way.finditer(before)), default=-1) for way in (_UP, _DOWN))
        if up != down:
            directions[found[0].lower().replace("-", "_")] = 1 if up > down else -1
    return directions
