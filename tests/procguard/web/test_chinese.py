"""Pages in Chinese, with failures, verdicts, refusals and all kinds of events: no English is left."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from html.parser import HTMLParser

import pytest

from platform_launch.hardware.gpu_health import Xid
from platform_launch.health.faults import of_xids
from platform_launch.health.finding import DeviceFinding, Grade, node_health
from platform_launch.observe.words import WORDS
from platform_launch.procguard.api.english import ENGLISH, english
from platform_launch.procguard.api.shapes import Problem
from platform_launch.procguard.api.shapes.people import UserRole
from platform_launch.procguard.web.language import Words
from platform_launch.sentences import Sentence, Value, sentence
from platform_launch.text import Phrase
from platform_launch.why.explaining import explain
from platform_launch.why.sources import LogSource
from tests.lab.waiting import until
from tests.procguard.serving import FakeAgent, Served, served

LOG = [
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "/job/train.py", line 7, in <module>',
    "[rank0]:     model(batch)",
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
]
LOG += [line.replace("rank0", "rank1") for line in LOG]
PAGES = (
    *("/", "/nodes", "/nodes/gn6", "/nodes/gn7", "/events", "/users", "/account", "/nowhere", "/login"),
    *("/workers/gn6-0/log", "/workers/gn7-0/log"),
    *(
        f"/groups/{name}"
        for name in ("train", "train/settings", "train/runs", "train/runs/1", "train/charts")
    ),
    *(f"/groups/{name}" for name in ("train/log", "train/events", "train/compare?run=1&run=2", "refused")),
)
SEEN_ATTRIBUTES = ("title", "aria-label", "placeholder", "hx-confirm", "data-ok", "data-done")
SENTENCE = re.compile(r"[A-Za-z][a-z']+(?:[ ,;:]+[A-Za-z][a-z']+){2,}")
"""Three words in a row."""

KEPT = (
    "CUDA out of memory",
    "Tried to allocate",
    "procguard user passwd",
)
"""Lines of the training's own log, and a command."""


LOST = DeviceFinding(
    "gpu-lost", Grade.BAD, "GPU 4", Phrase("no longer answers ({problem})", problem="NVML: Unknown Error")
)


class Text(HTMLParser):
    """What a page shows and reads out."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style", "code")
        self.found += [text for name, text in attrs if name in SEEN_ATTRIBUTES and text]
        self.found += json.loads(dict(attrs).get("data-words") or "{}").values()

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style", "code")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.found.append(data)


def english_on(page: str) -> list[str]:
    """Return the English sentences of a page."""
    text = Text()
    text.feed(page)
    shown = "\n".join(text.found)
    for kept in KEPT:
        shown = shown.replace(kept, "")
    return [match.group() for match in SENTENCE.finditer(shown)]


def every_sentence() -> list[Sentence]:
    """Return a sentence of each code, as an event's details could be; each value is short."""
    inner: dict[str, Value] = {
        "what": sentence("silent", seconds=9),
        "why": sentence("no-answer"),
        "limit": sentence("unset"),
    }
    inner |= {
        "failure": sentence("exit", exit_code=3),
        "joined": sentence("any-command"),
        "reason": sentence("lost"),
    }
    inner |= {"changes": [sentence("change", setting="command", before=sentence("unset"), after='"x"')]}
    inner |= {
        "state": "running",
        "role": "viewer",
        "field": ["command", "workers"],
        "holders": sentence("unseen-process"),
    }
    found = []
    for code, words in ENGLISH.items():
        names = re.findall(r"\{(\w+)\}", words)
        values = {name: inner.get(name, "x1") for name in names}
        found.append(Sentence(code, values))
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server")) as found:
        found.parts.accounts.add("ada", UserRole.ADMIN, "no password")
        people, good, bad = found.person(), FakeAgent(found, "gn6", 2), FakeAgent(found, "gn7")
        for name, workers in (("train", ["gn6-0", "gn6-1"]), ("refused", ["gn7-0"])):
            settings = {"master_addr": workers[0].partition("-")[0], "command": "train"}
            assert people.post("/api/v1/groups", json={"name": name, "settings": settings}).is_success
            assert people.post("/api/v1/move", json={"workers": workers, "group": name}).is_success

        def reach(name: str, phase: str) -> None:
            def reached() -> bool:
                good.beat()
                bad.beat()
                return bool(people.get(f"/api/v1/groups/{name}").json()["phase"] == phase)

            until(reached)

        for _ in range(2):
            assert people.post("/api/v1/groups/train/start").is_success
            reach("train", "running")
            verdict = explain([LogSource("output.log", io.BytesIO("\n".join(LOG).encode()))])
            good.end(0, 1)
            killed = sentence("killed", signal="SIGABRT")
            good.reports[0] |= {"reason_sentence": killed.document(), "reason": english(killed)}
            good.reports[0] |= {
                "verdict": "\n".join(verdict.lines("en")),
                "why": asdict(verdict),
                "cause_line": 4,
            }
            reach("train", "failed")
        assert people.post("/api/v1/groups/refused/start").is_success
        why = sentence("program-not-in-path", program="'train'", path="/usr/bin")
        refused = {
            "state": "refused",
            "generation": 1,
            "reason_sentence": why.document(),
            "reason": english(why),
        }
        bad.reports[0] |= refused
        reach("refused", "failed")
        health = node_health([*of_xids([Xid(3, 79, 0.0), Xid(5, 63, 0.0)]), LOST])
        bad.quarantine = {
            "name": "gn7",
            "since": 5,
            "reason": "; ".join(health.reasons),
            "reason_sentence": health.sentence().document(),
        }
        bad.beat()
        assert english(health.sentence()) == bad.quarantine["reason"]
        until(lambda: "quarantined" in people.get("/api/v1/events").text)
        for one in every_sentence():
            found.parts.control.record("op", "settings", "train", one)
        yield found


@pytest.mark.parametrize("path", PAGES)
def test_no_english_sentence_is_left(server: Served, path: str) -> None:
    people = server.person("ada")
    page = people.get(path, headers={"Accept-Language": "zh-CN", "Accept": "text/html"})
    assert 'lang="zh-CN"' in page.text
    assert (path, english_on(page.text)) == (path, [])


def test_english_is_found_where_it_is(server: Served) -> None:
    page = server.person().get("/groups/train", headers={"Accept-Language": "en"})
    assert any("smaller batch per" in one for one in english_on(page.text))


def test_a_failure_and_its_verdict_are_told(server: Served) -> None:
    headers = {"Accept-Language": "zh"}
    page = server.person().get("/groups/train", headers=headers).text
    for words in (
        "gn6-0 最先失败",
        "已结束，退出码 1：被信号 SIGABRT 杀死",
        "CUDA 显存不足 [cuda_out_of_memory]（rank 0）",
        "同样出现在：rank 1",
    ):
        assert words in page
    assert "请减小每块 GPU 的批大小" in page
    assert (
        "无法启动：在 agent 的 PATH（/usr/bin）中找不到"
        in server.person().get("/groups/refused", headers=headers).text
    )
    events = server.person().get("/groups/train/events", headers=headers).text
    assert "第 1 次运行：gn6-0：已结束，退出码 1：被信号 SIGABRT 杀死" in events


def test_what_is_seen_of_ranks_is_told() -> None:
    left = [words for code in WORDS if (words := Words("zh").render(seen(code))) and SENTENCE.search(words)]
    assert left == []
    at = sentence("at", what=sentence("halted", pid=103), frame="/job/train.py:88 in validate")
    culprit = sentence("culprit", who=sentence("rank-on", rank=3, node=1, host="gn7", pid=103), does=at)
    assert Words("zh").render(culprit) == (
        "rank 3（节点 1、gn7、pid 103）：已被信号暂停（kill -CONT 103 可让它继续），"
        "位于 /job/train.py:88 in validate"
    )


def seen(code: str) -> Sentence:
    """Return a sentence of what is seen of ranks, with short values."""
    values: dict[str, Value] = dict.fromkeys(re.findall(r"\{(\w+)\}", WORDS[code]), "x1")
    return Sentence(code, values)


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"master_port": None}, "input-number", "master_port：不是数字。 请输入数字。"),
        ({"master_port": 70_000}, "input-high", "master_port：太大。 不超过 65535。"),
        ({"grace_s": -1}, "input-low", "grace_s：太小。 至少为 0。"),
        ({"max_restarts": 1.5}, "input-whole", "max_restarts：不是整数。 请输入整数。"),
        ({"command": "x" * 5_000}, "input-long", "command：太长。 最多 4000 个字符。"),
        ({"owners": ["ann"] * 70}, "input-many", "owners：条目太多。 不超过 64。"),
        ({"colour": "red"}, "input-unknown", "colour：服务端没有这个字段。 请刷新：页面可能来自另一个版本。"),
        ({"backend": "mpi"}, "input-form", "backend：值无效。 请按该字段的说明更正。"),
        (
            {"environment": {"RANK": "1"}},
            "input-own-variable",
            "environment.RANK.[key]：由 ProcGuard 设置。 请去掉它。",
        ),
    ],
)
def test_what_is_wrong_with_an_input_is_told(
    server: Served, settings: dict[str, object], code: str, words: str
) -> None:
    answer = server.person().put("/api/v1/groups/train/settings", json=settings)
    problems = [Problem(**one) for one in answer.json()["problems"]]
    assert (answer.status_code, [one.code for one in problems]) == (422, [code])
    assert " ".join(Words("zh").problem(problems[0])) == words
    assert english_on(words) == []
    missing = server.person("ada").post("/api/v1/users", json={"name": "eve", "role": "viewer"}).json()
    assert [one["code"] for one in missing["problems"]] == ["input-missing"]


def test_why_a_node_is_in_quarantine_is_told(server: Served) -> None:
    people, headers = server.person(), {"Accept-Language": "zh"}
    told = "GPU 4：不再应答（NVML: Unknown Error） [gpu-lost]"
    for path in ("/nodes", "/nodes/gn7", "/groups/refused", "/events?on=gn7"):
        assert told in people.get(path, headers=headers).text, path
    (node,) = (node for node in people.get("/api/v1/nodes").json() if node["node"] == "gn7")
    assert "no longer answers (NVML: Unknown Error) [gpu-lost]" in node["quarantine"]["reason"]
