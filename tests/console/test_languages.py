"""What is printed in Chinese: the same ids, levels and fields, other words."""

from __future__ import annotations

import copy
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from platform_launch.cli import main
from platform_launch.console import Console, languages
from platform_launch.console.banner import tagged
from platform_launch.console.languages import translate
from platform_launch.errors import TopologyError, UsageError
from platform_launch.events import Event, event, marked
from platform_launch.launch.cost import RunCost
from platform_launch.observe.words import message
from platform_launch.rendezvous.restarts import NotAgain, NotAgainKind, describe_not_again
from platform_launch.sentences import sentence
from platform_launch.text import Phrase, columns, joined, wrapped
from platform_launch.why.answer.verdict import Code, Consequence, Evidence, Verdict
from platform_launch.why.explaining import explain
from platform_launch.why.lines.line import Location
from platform_launch.why.messages.exception_rules import filled, rules
from platform_launch.why.messages.signatures import catalogue
from platform_launch.why.sources import LogSource
from tests.console.messages import FIELDS, has_words, messages, texts

FILE = languages.LOCALE / "zh_CN" / "LC_MESSAGES" / "platform_launch.po"
_WITH_DEFAULT = re.compile(r"\{(\w+)\|[^{}]*\}")


@pytest.fixture
def in_chinese() -> Iterator[None]:
    languages.choose("zh")
    yield
    languages._chosen.clear()


def entries() -> dict[str, str]:
    """The Chinese of each message."""
    plain = {
        json.loads(f'"{key}"'): json.loads(f'"{text}"') for key, text in languages.catalogue("zh").items()
    }
    assert "Language: zh_CN" in plain.pop("")
    return plain


def test_every_message_has_chinese() -> None:
    missing = sorted({text for text in messages() if has_words(text)} - entries().keys())
    shown = "\n\n".join(f'msgid {json.dumps(text, ensure_ascii=False)}\nmsgstr ""' for text in missing)
    assert not missing, f"add these to {FILE} with a translation:\n\n{shown}"


def test_every_entry_is_used() -> None:
    assert entries().keys() - messages() - texts() == set()


def test_a_translation_has_the_fields_of_its_message() -> None:
    for english, chinese in entries().items():
        fields, theirs = (
            sorted(FIELDS.findall(_WITH_DEFAULT.sub(r"{\1}", text))) for text in (english, chinese)
        )
        assert fields == theirs, english


def test_the_catalogue_is_one_that_the_reader_takes_whole() -> None:
    text = FILE.read_text("utf-8")
    assert not re.findall(r"^(?:#, fuzzy|msgctxt|msgid_plural|#~)", text, re.M)
    written = re.findall(r"^msgid ", text, re.M)
    assert len(written) == len(languages.catalogue("zh"))  # none twice, none that is read in part
    assert all(entries().values())


def test_chinese_is_spaced_and_punctuated_alike() -> None:
    odd = re.compile(
        r"[一-鿿][A-Za-z0-9`]|[A-Za-z0-9`][一-鿿]"  # no space between Chinese and Latin
        r"|[一-鿿] ?[,;?!]|[,;] ?[一-鿿]| [，。；：、）]|[，。；：、（] "
    )
    assert [text for text in entries().values() if odd.search(text)] == []


def test_words_in_place_of_a_missing_value_take_no_spaces_in_chinese() -> None:
    advice = next(text for text in entries() if text.startswith("Look for {path|the path} on the node"))
    assert "查找该路径（`ls -ld`）" in filled(advice, {}, "zh")
    assert "查找 /data/a（`ls -ld`）" in filled(advice, {"path": "/data/a"}, "zh")


def test_english_reads_no_catalogue() -> None:
    code = (
        "from platform_launch.console import languages; languages.choose('en')\n"
        "print(languages.translate('Launch'), languages.catalogue.cache_info().currsize)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "Launch 0\n"


@pytest.mark.usefixtures("in_chinese")
def test_a_name_that_is_also_a_message_stays_what_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert translate("network") == "网络"
    opened = {"version": "1", "node_rank": 0, "nnodes": 1, "host": "command", "launcher": "torchrun"}
    said = event("launch-opened", **opened, gpus="8", program="hosts", master="logs", job="network")
    assert translate(said).startswith("platform_launch 1：节点 0（共 1 个），作业 network：主机 command，")
    row = Phrase("{name}: {value}", name="nodes", value=Phrase("default"))
    assert translate(row) == "nodes：默认值"
    assert translate(joined(["network", "logs", Phrase("default")])) == "network，logs，默认值"
    assert translate(joined(["network", "logs"])) == "network、logs"


@pytest.mark.usefixtures("in_chinese")
def test_an_entry_may_be_broken_over_lines_and_hold_quotes() -> None:
    quoted = next(text for text in entries() if '"' in text and "{" not in text)
    assert translate(quoted) == entries()[quoted]


def test_a_list_can_be_sent_and_copied() -> None:
    parts = joined([Phrase("the training"), "network"], "; ")
    again = Phrase.read(json.loads(json.dumps(parts.document())))
    for one in (again, copy.deepcopy(parts)):
        assert (one, translate(one, "zh")) == ("the training; network", "训练；network")


@pytest.mark.usefixtures("in_chinese")
def test_what_a_run_cost_is_said_in_chinese_with_all_that_english_says() -> None:
    cost = RunCost(
        steps=150,
        lost_steps=20,
        step=None,
        target_step=None,
        first_step_s=30.0,
        waiting_s=10.0,
        starting_s=20.0,
        training_s=150.0,
        hang_s=0.0,
        restart_s=3600.0,
        productive_share=0.62,
        steps_per_s=1.0,
        speed_change=-0.5,
        eta_s=61.0,
        deciding_s=60.0,
    )
    assert translate(event("run-cost", text=cost.describe())) == (
        "小结：150 步（其中 20 步因重启丢失）；30 秒后完成第一步；等待节点 10 秒，启动 20 秒，"
        "训练 2 分 30 秒，重启 1 小时 0 分（判定 1 分 0 秒，重新会合 59 分 0 秒）；"
        "有效时间 62%；1 步/秒（与开始时相比 -50%）；还需 1 分 1 秒"
    )


@pytest.mark.usefixtures("in_chinese")
def test_who_keeps_whom_waiting_is_said_in_chinese() -> None:
    who = sentence("rank-on", rank=1, node=1, host="gn2", pid=7)
    culprit = sentence("culprit", who=who, does=sentence("naps"))
    said = event("no-progress", still_s=300, headline=message(culprit))
    assert translate(said) == "已有 300 秒没有进展：rank 1（节点 1、gn2、pid 7）：在睡眠（sleep）"
    detail = event("no-progress-detail", text=Phrase("  {line}", line=message(sentence("naps"))))
    assert translate(detail) == "  在睡眠（sleep）"


@pytest.mark.usefixtures("in_chinese")
def test_what_is_known_by_value_is_said_in_chinese() -> None:
    why = describe_not_again(NotAgain(NotAgainKind.USED_UP, 3))
    said = event("not-restarted", reason=why, kind="used_up", max_restarts=3)
    assert translate(said) == "不再重启：3 次重启已全部用完"
    said = event("training-finished", exit_code=0, duration_s=150.2)
    assert translate(said) == "训练完成，用时 2 分 30 秒"
    said = event("leftovers-killed", what=Phrase("the training"), processes="sleep (pid 7)")
    assert translate(said) == "强制结束训练遗留的进程：sleep (pid 7)"


@pytest.mark.parametrize(
    ("variables", "language"),
    [
        ({}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "en_US.UTF-8"}, "en"),
        ({"LANG": "C", "PLATFORM_LAUNCH_LANG": "zh"}, "zh"),
        ({"LANG": "zh_TW.UTF-8", "PLATFORM_LAUNCH_LANG": "en"}, "en"),
    ],
)
def test_language_is_chosen_as_programs_choose_it(variables: dict[str, str], language: str) -> None:
    assert languages.current(variables) == language


@pytest.mark.usefixtures("in_chinese")
def test_lines_are_chinese_and_their_marks_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.stage(1, "Environment")
    console.report(event("training-failed", exit_code=3, duration="2 s"))
    console.report(Event("shm-small", "WARN", fields={"what": "0.1 GiB are free", "hint": "more"}))
    console.show_error(TopologyError("RANK='x' is no rank", "set it").known_as("refused-topology"))
    stage, failed, finding, error, hint = capfd.readouterr().err.splitlines()
    assert "== 1/5 环境 ==" in stage
    assert failed.endswith("[ERROR] 训练失败，退出码 3，用时 2 s [training-failed exit_code=3]")
    assert finding.endswith("[WARN] 0.1 GiB are free；more [shm-small]")
    assert error == "错误：RANK='x' is no rank [refused-topology]"
    assert hint == "提示：set it"
    for line in (failed, finding, error):
        assert marked(line) is not None


@pytest.mark.usefixtures("in_chinese")
@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (
            ["run", "--nnodes", "0"],
            "'--nnodes' 的值无效：0 不在范围 x>=1 内",
            "参见 platform-launch run --help",
        ),
        (["run", "--script"], "选项 '--script' 需要一个值", "参见 platform-launch run --help"),
        (["why", "--no-such"], "没有选项 '--no-such'", "参见 platform-launch why --help"),
        (["no-such"], "没有命令 'no-such'", "参见 platform-launch --help"),
    ],
)
def test_an_error_in_the_command_line_is_in_chinese(
    arguments: list[str], error: str, hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == UsageError.exit_code
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith(f"错误：{error}")
    assert second == f"提示：{hint}"


@pytest.mark.usefixtures("in_chinese")
def test_why_reads_a_chinese_log_by_its_marks(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.report(event("training-finished", duration="2 s"))
    text = capfd.readouterr().err
    assert explain([LogSource("a.log", io.BytesIO(text.encode()))]).kind == "finished"


@pytest.mark.usefixtures("in_chinese")
def test_what_has_no_chinese_words_is_said_in_english() -> None:
    assert translate(Event("new-finding", "WARN", fields={"what": "new", "hint": ""})) == "new"
    assert translate(event("verdict", text="cause: x")) == "cause: x"


@pytest.mark.usefixtures("in_chinese")
def test_each_fact_of_an_answer_has_a_chinese_label() -> None:
    verdict = Verdict(
        "consequence",
        "nccl_watchdog",
        "a collective operation timed out",
        meaning="m",
        fix="f",
        where=Location(node=3, rank=9),
        exception=Code("RuntimeError", "x", "/workspace/train.py", 3, "main"),
        evidence=(Evidence("a.log", 7, "text"),),
        consequences=(Consequence("abort", "a process aborted itself (signal 6)", 1),),
        notes=("remark",),
        details={"peer": "10.0.0.1"},
    ).concluded(catalogue())
    lines = verdict.lines()
    assert lines[0] == "最早迹象：  集合通信超时 [nccl_watchdog]（节点 3，rank 9）"
    assert not [line for line in lines if line[:1].isascii()]
    assert any(line.endswith("未知：这些日志里没有原因") for line in lines)
    assert verdict.as_dict()["title"] == "a collective operation timed out"


@pytest.mark.usefixtures("in_chinese")
def test_what_a_launch_told_can_be_said_again_in_chinese() -> None:
    known = next(one for one in catalogue().signatures if one.fix and one.meaning)
    verdict = Verdict("cause", known.id, known.title, meaning=known.meaning, fix=known.fix)
    again = Verdict.from_fields(json.loads(json.dumps(verdict.as_dict())))
    assert again.to_do() == translate(known.fix) != known.fix
    assert (again.to_do("en"), again.short_title("en")) == (known.fix, known.title)
    rule = next(one for one in rules() if "{" in one.fix)
    unknown = Verdict(
        "cause",
        "python_exception",
        "network",
        fix=filled(rule.fix, {}),
        own_advice="Set NAME.",
        templates=(rule.meaning, rule.fix),
    )
    again = Verdict.from_fields(json.loads(json.dumps(unknown.as_dict())))
    assert again.to_do() == f"Set NAME. {filled(rule.fix, {}, 'zh')}"
    assert again.short_title() == "network"


@pytest.mark.usefixtures("in_chinese")
def test_a_finding_is_said_in_chinese_with_its_values() -> None:
    namespace = Phrase(" (the folder {folders} is not the library)", folders="/w/deepspeed")
    what = Phrase(
        "{python} has no {packages}{namespace}", python="/v/python", packages="deepspeed", namespace=namespace
    )
    event = Event("package-missing", "ERROR", "", {"what": what, "hint": ""})
    assert "/v/python 中没有 deepspeed（目录 /w/deepspeed 并不是这个库）" in translate(event)


@pytest.mark.usefixtures("in_chinese")
def test_a_node_and_its_rate_are_said_in_chinese_within_a_finding() -> None:
    node = Phrase("node {rank} ({host}, {address})", rank=1, host="gn7", address="10.0.0.7")
    once = Phrase(" (measured once: it may be the link between them)")
    what = Phrase(
        "{node} reaches only {rate} with node {partners}{once}, other pairs {usual}",
        node=node,
        rate="2.0 Gbit/s",
        partners="0",
        once=once,
        usual="40.0 Gbit/s",
    )
    said = "节点 1（gn7，10.0.0.7）与节点 0 之间只有 2.0 Gbit/s（只测过一次：也可能是两者之间的链路）"
    assert said in translate(Event("node-slow", "WARN", "", {"what": what, "hint": ""}))


def test_a_copy_of_advice_knows_its_words_although_a_value_holds_braces() -> None:
    advice = Phrase("{folder} cannot be written", folder="/scratch/{user}")
    copied = copy.deepcopy(advice)
    assert (copied, copied.template, copied.values) == (advice, advice.template, advice.values)


@pytest.mark.usefixtures("in_chinese")
def test_advice_is_said_in_chinese_with_its_values_and_the_advice_within_it() -> None:
    more = Phrase(
        "give the container more: docker --shm-size={size}g, or in Kubernetes a memory emptyDir there",
        size=16,
    )
    both = Phrase("{more}; or lower num_workers or batch_size in the training config", more=more)
    assert both.startswith("give the container more: docker --shm-size=16g, ")
    assert both.endswith("there; or lower num_workers or batch_size in the training config")
    assert translate(both).startswith("请为容器分配更多共享内存：docker 用 --shm-size=16g，")
    assert translate(both).endswith("；或在训练配置中减小 num_workers 或 batch_size")
    assert translate("{of} unset}") == "{of} unset}"
    finding = Event("shm-small", "WARN", fields={"what": "little", "hint": more})
    assert "little；请为容器分配" in translate(finding)


def test_chinese_is_wrapped_between_characters_and_takes_two_columns_each() -> None:
    assert columns("节点 0") == 6
    assert wrapped("每个节点都会等待 NCCL_SOCKET_IFNAME，然后结束。", 20) == [
        "每个节点都会等待",
        "NCCL_SOCKET_IFNAME，",
        "然后结束。",
    ]
    assert wrapped("no word is broken here", 8) == ["no word", "is", "broken", "here"]


def test_a_line_on_a_terminal_breaks_between_chinese_characters() -> None:
    text = "如果 PyTorch 占用的远少于显存总量，`nvidia-smi` 会显示谁占用了其余部分：上一次运行遗留的进程"
    lines = re.sub(r"\x1b\[[0-9;]*m", "", tagged("", "INFO", text, 60)).splitlines()
    assert [columns(line) <= 60 for line in lines] == [True, True]
    assert lines[1].startswith("       ")
