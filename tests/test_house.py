"""What DESIGN asks of the house as a whole, read from its source."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import yaml

from platform_launch.events import CATALOGUE
from platform_launch.observe.words import WORDS
from platform_launch.procguard.api.english import ENGLISH as PROCGUARD_ENGLISH
from platform_launch.why.note import ENGLISH as NOTES
from tests.lab.syntax import PACKAGE, trees

# A probe stands for a user's own script, which would open a store as well.
PROBES = "doctor/probes"


def sources() -> list[tuple[str, ast.Module]]:
    return [(path.relative_to(PACKAGE).as_posix(), tree) for path, tree in trees()]


@cache
def nodes() -> list[tuple[str, list[ast.AST]]]:
    """Every node of each file that one of these tests asks about, in one walk."""
    wanted = (ast.Call, ast.Attribute, ast.For, ast.comprehension, ast.Compare, ast.JoinedStr, ast.Raise)
    return [(name, [node for node in ast.walk(tree) if isinstance(node, wanted)]) for name, tree in sources()]


def test_a_name_of_a_class_is_used_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in sources():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_only_probes_open_a_store_of_torch() -> None:
    opening = set()
    for name, found in nodes():
        for node in found:
            called = node.func if isinstance(node, ast.Call) else None
            word = getattr(called, "attr", getattr(called, "id", ""))
            if word == "TCPStore" and not name.startswith(PROBES):
                opening.add(name)
    assert opening == set()


def test_only_their_doors_touch_the_environment() -> None:
    reading = {
        name
        for name, found in nodes()
        for node in found
        if isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    }
    # Processes that a launcher starts, and probes that stand for a script, read what they were given.
    given = (
        *("doctor/probes", "wheels/probes", "observe/hook", "supervise/side_by_side.py"),
        *("procguard", "dist_launch"),
    )
    assert {name for name in reading if not name.startswith(given)} == {"environment.py"}


# What findings, events and errors say to people.
SAID = {"what", "hint", "reason", "reasons", "advice", "detail", "message"}
TAKES_APART = {
    "startswith",
    "endswith",
    "split",
    "partition",
    "find",
    "index",
    "removeprefix",
    "removesuffix",
}


def test_no_code_takes_apart_what_is_said_to_people() -> None:
    places = set()
    for name, found in nodes():
        loops = [node for node in found if isinstance(node, (ast.For, ast.comprehension))]
        said = {loop.target.id for loop in loops if isinstance(loop.target, ast.Name) and is_said(loop.iter)}
        for node in found:
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=word), attr=method)):
                    read = word in said and method in TAKES_APART
                case ast.Call(func=ast.Attribute(value=value, attr=method)):
                    read = is_said(value) and method in TAKES_APART
                case ast.Compare(ops=[ast.In() | ast.NotIn()], left=ast.Constant(), comparators=[value]):
                    read = is_said(value)
                case _:
                    read = False
            if read:
                places.add(name)
    assert places == set()


def is_said(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in SAID


SEARCHES = TAKES_APART | {"compile", "match", "search", "fullmatch", "finditer", "findall", "count", "sub"}


def test_no_pattern_holds_words_of_our_own_sentences() -> None:
    catalogued = [kind.template for kind in CATALOGUE.values()]
    catalogued += [*PROCGUARD_ENGLISH.values(), *NOTES.values(), *WORDS.values()]
    signatures = (
        pattern
        for path in (PACKAGE / "why").rglob("*.yaml")
        for entry in yaml.load(path.read_bytes(), yaml.CSafeLoader)
        for pattern in entry.get("patterns", ())
    )
    assert held(signatures, catalogued) == set()
    ours = [*catalogued, *(text for _, found in nodes() for text in sentences(found))]
    assert held((text for _, found in nodes() for text in searched(found)), ours) == set()
    assert held([r"^training ended with exit code (\d+)"], ours) == {"training ended with exit code"}


def test_no_key_of_a_yaml_file_stands_twice() -> None:
    """Of two, YAML's readers keep the last without a word."""
    twice = [place for path in PACKAGE.rglob("*.yaml") for place in keys_told_again(path)]
    assert twice == []


def keys_told_again(path: Path) -> Iterator[str]:
    def within(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
        if isinstance(node, yaml.MappingNode):
            keys = [key for key, _ in node.value]
            names = [key.value for key in keys]
            yield from (key for at, key in enumerate(keys) if key.value in names[:at])
            for _, value in node.value:
                yield from within(value)
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                yield from within(value)

    root = yaml.compose(path.read_bytes(), yaml.CSafeLoader)
    for key in within(root) if root else ():
        yield f"{path.relative_to(PACKAGE)}:{key.start_mark.line + 1}: {key.value}"


def held(patterns: Iterable[str], sentences: Iterable[str]) -> set[str]:
    """Return the words of patterns that sentences hold, where they are long enough to be part of one."""
    text = "\n".join(sentences).lower()
    parts = {part.strip() for text in patterns for part in re.split(r"\\.|[^\w .,'-]+", text)}
    return {part for part in parts if len(part) > 11 and " " in part and part.lower() in text}


def sentences(found: Iterable[ast.AST]) -> Iterator[str]:
    """Yield what stands in f-strings and errors: the words around the values of a sentence."""
    for node in found:
        if isinstance(node, (ast.JoinedStr, ast.Raise)):
            yield from strings(node)


def searched(found: Iterable[ast.AST]) -> Iterator[str]:
    """Yield what texts are searched for, or compared with."""
    for node in found:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in SEARCHES:
            for argument in node.args:
                yield from strings(argument)
        elif isinstance(node, ast.Compare):
            yield from strings(node)


def strings(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, (str, bytes)):
            yield one.value if isinstance(one.value, str) else one.value.decode(errors="replace")
