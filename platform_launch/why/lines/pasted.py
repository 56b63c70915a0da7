"""Takes off what a page, a mail, a notebook or an editor put around a log and before its lines.

What a log says must not depend on where it was copied from. No line changes its number: what is taken away
leaves an empty line, and what stood on one line and becomes several is parted by carriage returns.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise

_MARK = "\N{BYTE ORDER MARK}".encode()
_SIGNS = {
    **dict.fromkeys(("&#39;", "&#x27;", "&apos;", "‘", "’"), "'"),
    **dict.fromkeys(("&quot;", "&#34;", "&#x22;", "“", "”"), '"'),
    **dict.fromkeys(("&nbsp;", "\xa0", "\u202f"), " "),
    **dict.fromkeys(("\u200b", "\u200c", "\u2060"), ""),
    "&lt;": "<",
    "&#60;": "<",
    "&gt;": ">",
    "&#62;": ">",
    "&amp;": "&",
}
_OF_SIGNS = {sign.encode(): plain.encode() for sign, plain in _SIGNS.items()}
_SIGN = re.compile(b"|".join(map(re.escape, sorted(_OF_SIGNS, reverse=True))))
# Colours as terminals read them and as editors show them, and those that lost their first sign.
_CODE = rb"\[(?:\d{1,3}(?:;\d{1,3}){0,5})?[mK]"
_COLOURED = re.compile(rb"(?:\x1b|\^\[|\\x1[bB]|\\u001[bB]|\\033|\\e|\xe2\x90\x9b)" + _CODE)
_BARE = re.compile(
    rb"(?<!\x1b)\[(?:[0-24]|22|24|3[0-79]|4[0-79]|9[0-7]|[34]8;5;\d{1,3})(?:;(?:[1-4]|\d\d)){0,3}m"
)
_BARE_END = re.compile(rb"(?<!\x1b)\[(?:0|39)m")
_FENCE = re.compile(rb"^[ >]*(?:```|~~~)[\w-]{0,20}[ \t]*$", re.MULTILINE)
_OPENING = re.compile(rb"^[ ]{0,8}```(?=[^\s`])", re.MULTILINE)
_TAG = rb"</?(?:blockquote|code|details|div|p|pre|span|summary)\b[^<>\n]{0,80}>"
_TAGS = re.compile(rb"^(?:" + _TAG + rb")+|(?:<br ?/?>|" + _TAG + rb")+$", re.MULTILINE)
# What a tracker's form puts before the title of an issue.
_TRACKED = re.compile(
    rb"\s*(?:#{1,3} )?"
    rb"(?:\[(?:bug|doc|feature|help|installation|issue|performance|question|support|usage)\]:?\s*)+(?=\S)",
    re.IGNORECASE,
)
_ESCAPED = re.compile(rb"\\([_*<>#~`\[\]])")
# A list in which each item is a line of a log.
_LISTED = re.compile(rb"^[ ]{0,8}[-*+] `([^`\n]+)`[ \t]*$", re.MULTILINE)
_FEW = 3
# What mail, Markdown, comments and pytest put before each line.
_DRESS = (b">", b"#", b"//", b"-", b"*", b"E  ", b"%")
_MOST_DRESSES = 4
_QUOTED = re.compile(rb'\s*("(?:[^"\\]|\\.)*\\n"),?\s*')


# Not "3: ", as srun labels the lines of its tasks.
_NUMBERED = re.compile(rb"[ ]{0,8}(\d{1,6})(?:[-:](?! )|[.)]? |[.)]?\t| {2,4}\xe2\x94\x82 |$)")
# In brackets stand ranks as well, of which as many seldom say one line each in turn.
_IN_BRACKETS = re.compile(rb"\[(\d{1,7})\](?: |$)")
_MANY = 9


def undressed(data: bytes) -> bytes:
    """Return a log as it was before it was pasted somewhere."""
    data = data.removeprefix(_MARK).replace(b"\r\r\n", b"\n").replace(b"\r\n", b"\n")
    data = _SIGN.sub(lambda found: _OF_SIGNS[found[0]], data)
    data = _TRACKED.sub(b"", data, count=1) if _TRACKED.match(data) else data
    data = _COLOURED.sub(b"", data)
    if _BARE_END.search(data):
        data = _BARE.sub(b"", data)
    if b"```" in data or b"~~~" in data:
        data = _OPENING.sub(b"", _FENCE.sub(b"", data))
    if b"</" in data or b"<br" in data:
        data = _TAGS.sub(b"", data)
    if sum(map(data.count, (b"\\_", b"\\[", b"\\<"))) >= _FEW:
        data = _ESCAPED.sub(rb"\1", data)
    if b" `" in data and len(_LISTED.findall(data)) >= _FEW:
        data = _LISTED.sub(rb"\1", data)
    lines = _plain(data.split(b"\n"))
    while len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    lines[0] = _unticked(lines[0])
    lines[-1] = _unticked(lines[-1])
    return b"\n".join(lines) + b"\n" * data.endswith((b"\n", b"`"))


def _plain(lines: list[bytes]) -> list[bytes]:
    """Return lines without what all of them have around them."""
    for _ in range(_MOST_DRESSES):
        full = [line for line in lines if line.strip()]
        if sum(_QUOTED.fullmatch(line) is not None for line in full) >= _FEW:
            lines = [_unquoted(line) for line in lines]
        elif len(full) >= _FEW and all(line[:1] == b"`" == line.rstrip()[-1:] for line in full):
            lines = [line.strip().strip(b"`") for line in lines]
        elif len(full) > 1 and (dress := next((d for d in _DRESS if _all_begin(full, d)), b"")):
            lines = [line.removeprefix(dress) for line in lines]
        elif len(full) >= _FEW and all(line.endswith((b"  ", b"\\")) for line in full):
            lines = [line.rstrip(b" \\") for line in lines]
        elif len(lines) > _FEW and (bare := _unnumbered(lines)):
            lines = bare
        elif inset := min((len(line) - len(line.lstrip(b" \t")) for line in full), default=0):
            lines = [line[inset:] if line.strip() else b"" for line in lines]
        else:
            break
    return lines


def _unticked(line: bytes) -> bytes:
    """Return a line without a backtick that belongs to the whole text, not to a word of it."""
    around = line.startswith(b"`") and line.endswith(b"`") and line.count(b"`") == 2
    return line.strip(b"`") if line.count(b"`") % 2 or around else line


def _all_begin(lines: list[bytes], dress: bytes) -> bool:
    return all(line.startswith(dress) for line in lines)


def _unnumbered(lines: list[bytes]) -> list[bytes]:
    """Return lines without the numbers that editors, pagers and lists count them by, none if they do not."""
    full = [line for line in lines if line.strip()]
    for counter in (_NUMBERED, _IN_BRACKETS) if len(full) >= _MANY else (_NUMBERED,):
        numbers = [int(found[1]) for line in full if (found := counter.match(line))]
        if len(numbers) == len(full) and all(b - a == 1 for a, b in pairwise(numbers)):
            return [counter.sub(b"", line, count=1) for line in lines]
    return []


def _unquoted(line: bytes) -> bytes:
    """Return the text of a string, as lists of lines in notebooks hold it."""
    if (found := _QUOTED.fullmatch(line)) is None:
        return line
    try:
        text = json.loads(found[1])
    except ValueError:
        return line
    return text.rstrip("\n").replace("\n", "\r").encode(errors="replace") if isinstance(text, str) else line
