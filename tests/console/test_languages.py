"""What is said in Chinese: the same ids, levels and fields, other words."""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_launch.console import Console, chinese, languages
from platform_launch.doctor.catalogue import CATALOGUE as FINDINGS
from platform_launch.doctor.examination import BETWEEN_NODES
from platform_launch.doctor.quick import NAMES
from platform_launch.errors import LaunchError, TopologyError
from platform_launch.events import CATALOGUE, Event, event, marked
from platform_launch.launch.statistics.cost import RunCost
from platform_launch.rendezvous import rejection
from platform_launch.rendezvous.restarts import NotAgain, NotAgainKind, describe_not_again
from platform_launch.sentences import sentence
from platform_launch.text import Phrase, columns, counted, wrapped
from platform_launch.why.answer.verdict import Code, Consequence, Evidence, Verdict
from platform_launch.why.explaining import explain
from platform_launch.why.lines.line import Location
from platform_launch.why.messages.exception_rules import rules
from platform_launch.why.messages.signatures import SignatureRole, catalogue
from platform_launch.why.sources import LogSource

FIELD = re.compile(r"\{(\w+)")
FIELDS = re.compile(r"\{[^{}]+\}")


@pytest.fixture
def in_chinese() -> Iterator[None]:
    languages.choose("zh")
    yield
    languages._chosen.clear()


def test_every_chinese_line_belongs_to_an_event_and_uses_its_fields_only() -> None:
    assert set(chinese.words("events")) <= set(CATALOGUE)
    for event_id, template in chinese.words("events").items():
        assert set(FIELD.findall(template)) <= set(FIELD.findall(CATALOGUE[event_id].template)), event_id


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
    )
    assert languages.event_line(event("run-cost", text=cost.in_words())) == (
        "开销：150 步（其中 20 步因重启丢失）；30 秒后完成第一步；用时：等待节点 10 秒，启动 20 秒，"
        "训练 2 分 30 秒，重启 1 小时 0 分；有效时间 62%；1 步/秒（与开始时相比 -50%）；还需 1 分 1 秒"
    )


@pytest.mark.usefixtures("in_chinese")
def test_who_keeps_whom_waiting_is_said_in_chinese() -> None:
    who = sentence("rank-on", rank=1, node=1, host="gn2", pid=7)
    culprit = sentence("culprit", who=who, does=sentence("naps"))
    said = event("no-progress", still_s=300, headline="English", headlines=[culprit.document()])
    assert languages.event_line(said) == "已有 300 秒没有进展：rank 1（节点 1、gn2、pid 7）：在睡眠（sleep）"
    detail = event("no-progress-detail", text="  English", sentence=sentence("naps").document())
    assert languages.event_line(detail) == "  在睡眠（sleep）"
    of_another_version = event("no-progress-detail", text="  English", sentence={"code": "unheard-of"})
    assert languages.event_line(of_another_version) == "  English"


@pytest.mark.usefixtures("in_chinese")
def test_what_is_known_by_value_is_said_in_chinese() -> None:
    why = describe_not_again(NotAgain(NotAgainKind.USED_UP, 3))
    said = event("not-restarted", reason=why, kind="used_up", max_restarts=3)
    assert languages.event_line(said) == "不再重启：3 次重启已全部用完"
    said = event("training-finished", exit_code=0, duration_s=150.2)
    assert languages.event_line(said) == "训练完成，用时 2 分 30 秒"
    said = event("leftovers-killed", what=Phrase("the training"), processes="sleep (pid 7)")
    assert languages.event_line(said) == "强制结束训练的残留进程：sleep (pid 7)"


def test_every_title_belongs_to_a_finding_or_a_refusal_and_every_refusal_has_one() -> None:
    refusals = {family.event for family in LaunchError.__subclasses__()} - {"launch-refused"}
    others = {"nodes-misplaced", "other-node-refused"}
    assert set(chinese.words("titles")) <= FINDINGS | refusals | others
    assert refusals <= set(chinese.words("titles"))
    assert sorted(chinese.words("stages")) == ["1", "2", "3", "4", "5"]


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
    console.tell(event("training-failed", exit_code=3, duration="2 s"))
    console.tell(Event("shm-small", "WARN", fields={"what": "0.1 GiB are free", "hint": "more"}))
    console.show_error(TopologyError("RANK='x' is no rank", "set it").known_as("refused-topology"))
    stage, failed, finding, error, hint = capfd.readouterr().err.splitlines()
    assert "== 1/5 环境 ==" in stage
    assert failed.endswith("[ERROR] 训练失败，退出码 3，用时 2 s [training-failed exit_code=3]")
    assert finding.endswith("[WARN] 共享内存太小：0.1 GiB are free; more [shm-small]")
    assert error == "error: 无法确定本节点在作业中的位置：RANK='x' is no rank [refused-topology]"
    assert hint == "hint:  set it"
    for line in (failed, finding, error):
        assert marked(line) is not None


@pytest.mark.usefixtures("in_chinese")
def test_why_reads_a_chinese_log_by_its_marks(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.tell(event("training-finished", duration="2 s"))
    text = capfd.readouterr().err
    assert explain([LogSource("a.log", [line.encode() for line in text.splitlines()])]).kind == "finished"


@pytest.mark.usefixtures("in_chinese")
def test_what_has_no_chinese_words_is_said_in_english() -> None:
    assert languages.event_line(Event("new-finding", "WARN", fields={"what": "new", "hint": ""})) == "new"
    assert languages.event_line(event("verdict", text="cause: x")) == "cause: x"


def test_every_chinese_cause_is_a_signature() -> None:
    assert set(chinese.causes()) <= {signature.id for signature in catalogue().signatures}


def test_causes_are_told_in_chinese_by_what_is_said_in_english() -> None:
    signatures = {one.id: one for one in catalogue().signatures if one.role is not SignatureRole.NOISE}
    for cause, words in chinese.causes().items():
        one = signatures[cause]
        # The title of these is the program's or the exception's own message.
        title = "" if cause in ("caught_exception", "program_error", "python_exception") else one.title
        said = {"title": title, "means": one.meaning, "fix": one.fix, "then": one.folded}
        said |= {"because": one.because, "everywhere": one.everywhere}
        said |= {"fix_others_hold": one.fix_others_hold}
        assert words.keys() == {name for name, text in said.items() if text}, cause
        for text in words.values():
            assert re.search(r"[\u4e00-\u9fff]", re.sub("`[^`]*`", "", text)), cause
    missing = signatures.keys() - chinese.causes().keys()
    assert len(missing) < 25, "new causes are told in English for a while, not all"


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
        consequences=(Consequence("abort", "others aborted (1 line)", 1),),
        notes=("remark",),
        details={"peer": "10.0.0.1"},
    ).concluded(catalogue())
    lines = verdict.lines()
    assert lines[0] == "最早的迹象： 集合通信超时 [nccl_watchdog]（节点 3，rank 9）"
    assert not [line for line in lines if line[:1].isascii()]
    assert any(line.endswith("未知：这些日志里没有原因") for line in lines)
    assert verdict.as_dict()["title"] == "a collective operation timed out"


@pytest.mark.usefixtures("in_chinese")
def test_what_a_launch_told_can_be_said_again_in_chinese() -> None:
    known = next(one for one in catalogue().signatures if chinese.causes().get(one.id, {}).get("fix"))
    verdict = Verdict("cause", known.id, known.title, meaning=known.meaning, fix=known.fix)
    again = Verdict.told(json.loads(json.dumps(verdict.as_dict())))
    assert again.to_do() == chinese.causes()[known.id]["fix"]
    assert (again.to_do("en"), again.short_title("en")) == (known.fix, known.title)
    rule = rules()[0]
    unknown = Verdict("cause", "python_exception", "T", fix=rule.fix, advice=rule.id, details={"name": "x"})
    assert Verdict.told(unknown.as_dict()).to_do() == unknown.to_do()
    assert re.search(r"[\u4e00-\u9fff]", unknown.to_do())


PACKAGE = Path(languages.__file__).parents[1]
# Where everything that a person reads is a phrase.
ROOMS = (
    *("cli", "dist_launch", "doctor", "hardware", "health", "jobs"),
    *("log_view", "observe", "plan", "platforms", "supervise", "wheels"),
)
# Programs for another Python, and ProcGuard's command line.
LEFT_OUT = ("probes", "procguard", "ctl")
LAUNCH = (
    *("attempt.py", "fitness.py", "health_watch.py", "job.py", "ranks_from.py", "simulate.py"),
    *("stages.py", "statistics/cost.py", "statistics/run_report.py"),
)
ROLL_CALL = (
    *("authentication", "connecting", "ending", "listening", "loop", "participant", "ranks"),
    *("reach", "rejection", "verdict"),
    *("coordinator", "run/arriving", "run/gathering", "run/leading", "run/task"),
    *("run/settlement", "run/silence", "run/staying", "run/taking_part"),
)
FILES = [
    *(
        file
        for room in ROOMS
        for file in sorted(PACKAGE.glob(f"{room}/**/*.py"))
        if file.parent.name not in LEFT_OUT
    ),
    *(PACKAGE / name for name in ("environment.py", "files.py", "hostlist.py", "topology.py", "errors.py")),
    *(PACKAGE / "launch" / name for name in LAUNCH),
    *(PACKAGE / "rendezvous" / f"{name}.py" for name in ROLL_CALL),
    *(
        PACKAGE / "why" / name
        for name in ("__init__.py", "hang_records.py", "sources.py", "lines/opening.py")
    ),
]
REFUSALS = {"LaunchError", *(family.__name__ for family in LaunchError.__subclasses__())}
# Which arguments of a call are read by a person.
SPOKEN = {
    **dict.fromkeys(("error", "warning", "level", "info"), (1, 3)),
    **dict.fromkeys(REFUSALS, (0, 1)),
    "ConsoleLine": (1,),
    **dict.fromkeys(("NoPlaceError", "NoRendezvousError", "NeverReachedError"), (0,)),
    "DeviceFinding": (3, 4),
    "Finding": (2, 4),
    "EnvVar": (3,),
    "offer": (2,),
    "_variable": (2,),
    "Phrase": (0,),
    "PlanWarning": (2,),
    "RunRefusal": (1, 2),
    "Requirement": (0, 1, 2, 4),
    "Removal": (1,),
    **dict.fromkeys((f"console.{level}" for level in ("info", "warn", "success", "error")), (0,)),
    "Console().info": (0,),
    "Console().warn": (0,),
    "Console().success": (0,),
    "console.stage": (),
    "output.say": (1,),
    "phrase_words": (0,),
    "say": (1,),
    "self._output.say": (1,),
    "self._say": (1,),
    "self._warn": (1,),
    "reading.mark_process": (0, 1),
    "reading.refuse": (1, 2),
    "reading.warnings.append": (0,),
    "warnings.append": (0,),
}


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    yield from _counted(tree)


def _counted(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "counted":
            noun = ast.literal_eval(node.args[1])
            yield from (counted(number, noun).template for number in (1, 2))


def _spoken(tree: ast.AST) -> Iterator[str]:
    """Yield what a person may read: the words of phrases, and texts without values where a person reads."""
    yield from _counted(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("hint", "address_hint", "mend"):
            assert not isinstance(node.value, ast.JoinedStr), f"{ast.unparse(node)}: expected a Phrase"
            if isinstance(node.value, ast.Constant):
                yield str(node.value.value)
        places = SPOKEN.get(ast.unparse(node.func), ()) if isinstance(node, ast.Call) else ()
        for text in (node.args[place] for place in places if place < len(node.args)):  # type: ignore[attr-defined]
            parts = (text.body, text.orelse) if isinstance(text, ast.IfExp) else (text,)
            for part in parts:
                assert not isinstance(part, ast.JoinedStr | ast.BinOp), (
                    f"{ast.unparse(text)}: expected a Phrase"
                )
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_all_that_is_found_refused_or_planned_is_known_in_chinese_by_its_words_and_values() -> None:
    known = chinese.phrases()
    spoken = {text for file in FILES for text in _spoken(ast.parse(file.read_text()))}
    missing = {text for text in spoken - known.keys() if re.search(r"[a-z]{2}", FIELDS.sub("", text))}
    assert not missing
    assert {text for _, *texts in rejection._KINDS.values() for text in texts} <= known.keys()
    checked = {
        part for name in (*NAMES, *BETWEEN_NODES, "in a process of its own") for part in name.split(": ")
    }
    assert checked <= known.keys()
    everywhere = {text for file in PACKAGE.glob("**/*.py") for text in _texts(ast.parse(file.read_text()))}
    assert known.keys() <= everywhere | checked
    for english, words in known.items():
        assert sorted(FIELDS.findall(words)) == sorted(FIELDS.findall(english)), english


@pytest.mark.usefixtures("in_chinese")
def test_a_finding_is_said_in_chinese_with_its_values() -> None:
    beside = Phrase(" (the folder {folders} is not the library)", folders="/w/deepspeed")
    what = Phrase(
        "{python} has no {packages}{beside}", python="/v/python", packages="deepspeed", beside=beside
    )
    event = Event("package-missing", "ERROR", "", {"what": what, "hint": ""})
    assert "/v/python 中没有 deepspeed（目录 /w/deepspeed 并不是这个库）" in languages.event_line(event)


@pytest.mark.usefixtures("in_chinese")
def test_a_node_and_its_rate_are_said_in_chinese_within_a_finding() -> None:
    node = Phrase("node {rank} ({host}, {address})", rank=1, host="gn7", address="10.0.0.7")
    once = Phrase(" (measured once: it may be the link between them)")
    what = Phrase(
        "{node} reaches {rate} with node {partners}{once}, other pairs {usual}",
        node=node,
        rate="2.0 Gbit/s",
        partners="0",
        once=once,
        usual="40.0 Gbit/s",
    )
    said = "节点 1（gn7，10.0.0.7）与节点 0 之间只有 2.0 Gbit/s（只测过一次：也可能是两者之间的链路）"
    assert said in languages.event_line(Event("node-slow", "WARN", "", {"what": what, "hint": ""}))


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
    assert languages.phrase_words(both).startswith("请为容器分配更多共享内存：docker 用 --shm-size=16g，")
    assert languages.phrase_words(both).endswith("；或在训练配置中减小 num_workers 或 batch_size")
    assert languages.phrase_words("{of} unset}") == "{of} unset}"
    finding = Event("shm-small", "WARN", fields={"what": "little", "hint": more})
    assert "little; 请为容器分配" in languages.event_line(finding)


@pytest.mark.usefixtures("in_chinese")
def test_a_value_that_happens_to_be_a_word_of_this_program_stays_what_it_is() -> None:
    said = Phrase("{name!r}: {nodes}; {state}", name="default", nodes="nodes", state=Phrase("default"))
    assert languages.phrase_words(said) == "'default'：nodes；默认值"


def test_chinese_is_wrapped_between_characters_and_takes_two_columns_each() -> None:
    assert columns("节点 0") == 6
    assert wrapped("每个节点都会等待 NCCL_SOCKET_IFNAME，然后结束。", 20) == [
        "每个节点都会等待",
        "NCCL_SOCKET_IFNAME，",
        "然后结束。",
    ]
    assert wrapped("no word is broken here", 8) == ["no word", "is", "broken", "here"]
