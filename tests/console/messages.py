"""Every message that the code can print, collected from the code and its tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from pathlib import Path

import click
from click import exceptions, parser, types

from platform_launch.cli import group
from platform_launch.cli.launch_options import GROUPS
from platform_launch.cli.program import Commands
from platform_launch.doctor.examination import BETWEEN_NODES
from platform_launch.doctor.quick import NAMES
from platform_launch.errors import LaunchError
from platform_launch.events import CATALOGUE
from platform_launch.procguard.api.english import TEMPLATES as SENTENCES
from platform_launch.procguard.api.refused import problem_templates
from platform_launch.procguard.web.language import templates as page_templates
from platform_launch.rendezvous import rejection
from platform_launch.text import counted
from platform_launch.why.answer.retry import retry_table
from platform_launch.why.messages.exception_rules import rules
from platform_launch.why.messages.signatures import _DETAIL_NAMES, _PLACES, SignatureRole, catalogue
from platform_launch.why.note import ENGLISH as NOTES
from tests.lab.syntax import PACKAGE, trees

FIELDS = re.compile(r"\{[^{}]+\}")
_GROUP = re.compile(r"\(\?P<(\w+)>")

# Arguments that are messages, by call: a plain text there is a message without values.
_REFUSALS = {"LaunchError", *(family.__name__ for family in LaunchError.__subclasses__())}
_MESSAGES = {
    **dict.fromkeys(("error", "warning", "level", "info"), (1, 3)),
    **dict.fromkeys(_REFUSALS, (0, 1)),
    "ConsoleLine": (1,),
    **dict.fromkeys(("NoRankError", "NoRendezvousError", "NeverReachedError"), (0,)),
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
    **dict.fromkeys((f"Console().{level}" for level in ("info", "warn", "success")), (0,)),
    "console.stage": (1,),
    "output.print": (1,),
    "translate": (0,),
    "print_line": (1,),
    "self._output.print": (1,),
    "self._print_line": (1,),
    "self._warn": (1,),
    "reading.mark_process": (0, 1),
    "reading.refuse": (1, 2),
    "reading.warnings.append": (0,),
    "warnings.append": (0,),
}
_NAMED_ARGUMENTS = ("hint", "address_hint", "mend")
# Programs for another Python.
_ENGLISH_ONLY = {"probes"}


def _of_code(path: Path, tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in _NAMED_ARGUMENTS:
            yield from _literals(node.value, path)
        if not isinstance(node, ast.Call):
            continue
        name = _dotted(node.func)
        if name == "counted":
            noun = ast.literal_eval(node.args[1])
            yield from (counted(number, noun).template for number in (1, 2))
        for place in _MESSAGES.get(name, ()):
            if place < len(node.args):
                yield from _literals(node.args[place], path)


def _dotted(node: ast.expr) -> str:
    """Return a called name as the code has it: ``console.info``, ``Console().info``; empty for all else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
        case ast.Call(func=function, args=[], keywords=[]):
            return f"{_dotted(function)}()"
    return ""


def _literals(node: ast.expr, path: Path) -> Iterator[str]:
    for part in (node.body, node.orelse) if isinstance(node, ast.IfExp) else (node,):
        # A text that is put together here can be looked up in no catalogue; `counted` in text.py is followed.
        assert path.name == "text.py" or not isinstance(part, ast.JoinedStr | ast.BinOp), (
            f"{path}: {ast.unparse(node)}: use a Phrase"
        )
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _of_why() -> Iterator[str]:
    for one in catalogue().signatures:
        names = {
            name for pattern in (*one.patterns, *one.beside, *one.below) for name in _GROUP.findall(pattern)
        }
        yield from (_DETAIL_NAMES.get(name, name) for name in names - _PLACES.keys())
        if one.role is not SignatureRole.NOISE:
            yield from (one.title, one.meaning, one.fix, one.fix_others_hold)
    for rule in rules():
        yield from (rule.meaning, rule.fix, rule.because)
    yield from (text for reason in retry_table() for text in (reason.because, reason.on_several_nodes))
    yield from NOTES.values()


def _of_help(command: click.Command) -> Iterator[str]:
    """Yield what --help shows of a command and of those below it."""
    yield from (cleandoc(text) for text in (command.help, command.epilog) if text)
    for option in command.params:
        if isinstance(option, click.Option) and option.help and not option.hidden:
            yield cleandoc(option.help)
    if isinstance(command, Commands):
        yield from (line for _, line in command._modules.values())
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _of_help(below)


def _of_entrypoint() -> Iterator[str]:
    """Yield the messages and hints with which the shell entrypoint refuses."""
    script = (PACKAGE.parent / "start_multinode_platform.sh").read_text("utf-8")
    for both in re.findall(r'fail "([^"]+)"[\s\\]+"([^"]+)"', script):
        yield from both


@cache
def messages() -> frozenset[str]:
    """Return them, and what is shown under the names that a log gave it."""
    found = {
        text
        for path, tree in trees()
        if _ENGLISH_ONLY.isdisjoint(path.relative_to(PACKAGE).parts)
        for text in _of_code(path, tree)
    }
    found |= {kind.template for kind in CATALOGUE.values()} | {
        *SENTENCES.values(),
        *page_templates().values(),
        *problem_templates().values(),
    }
    found |= {*_of_help(group), *GROUPS, "Usage: ", "Commands", "Options", "Show this message and exit."}
    found |= {*_of_entrypoint(), *_of_why()}
    found |= {text for _, *texts in rejection._KINDS.values() for text in texts}
    checks = (*NAMES, *BETWEEN_NODES, "in a child process")
    return frozenset(found | {part for name in checks for part in name.split(": ")})


def has_words(message: str) -> bool:
    """Tell whether a message needs a translation: others hold names and values only."""
    return re.search(r"[a-z]{2}|[,;:] |\(", FIELDS.sub("", message)) is not None


@cache
def texts() -> frozenset[str]:
    """Return every text in the code and in click: some are looked up in ways that nothing here follows."""
    of_click = (
        ast.parse(Path(str(module.__file__)).read_text("utf-8"))
        for module in (click.core, exceptions, parser, types)
    )
    return frozenset(
        node.value
        for tree in (*(tree for _, tree in trees()), *of_click)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
