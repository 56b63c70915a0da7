"""Values → YAML that every parser reads alike, below comments that give the reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from platform_launch.console.languages import translate
from platform_launch.text import wrapped

Document = dict[str, Any]
Notes = Iterable[str]
"""Messages that become comments of a file."""

_COMMENT_COLUMNS = 100

# Plain to YAML 1.1 and 1.2 alike. Everything else is quoted: Kubernetes' own parser reads 1e3 and 0o17 as
# numbers and y as true, which PyYAML takes for text.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./=-]*(?: [A-Za-z0-9_./=-]+)*")
_TRUTHS = frozenset({"y", "n"})


class _Dumper(yaml.SafeDumper):
    """Repeats a value that occurs twice instead of pointing at it, and indents lists."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _TRUTHS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)


def dump(document: Any) -> str:
    """Return one YAML document; texts come back as the same texts from any YAML parser."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100_000)


def manifest(notes: Notes, *documents: Document) -> str:
    """Return the documents as one file, with the notes as comments at its head."""
    return comments(notes) + "---\n".join(dump(document) for document in documents)


def pods(text: str) -> str:
    """Return a Pod for each pod template of a manifest, as its controller would create it; none: empty.

    PodSecurity, quotas, limit ranges and webhooks judge pods, not templates.
    """
    found: list[Document] = []
    for document in yaml.safe_load_all(text):
        own = document["metadata"]
        for template in _pod_templates(document):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    **template.get("metadata", {}),
                    "name": f"{own['name']}-check-{len(found)}",
                    **({"namespace": own["namespace"]} if "namespace" in own else {}),
                },
                "spec": {"restartPolicy": "Never", **template["spec"]},
            }
            if all(pod["spec"] != other["spec"] for other in found):
                found.append(pod)
    return "---\n".join(dump(pod) for pod in found)


def _pod_templates(value: Any) -> list[Document]:
    if isinstance(value, list):
        return [template for item in value for template in _pod_templates(item)]
    if not isinstance(value, dict):
        return []
    if "containers" in (value.get("spec") or {}):
        return [value]
    return [template for item in value.values() for template in _pod_templates(item)]


def comments(notes: Notes) -> str:
    """Return the notes as a list in comment lines, in the language of this process.

    Notes are fixed texts, because a value of the job could break out of a comment.
    """
    listed = (wrapped(translate(note), _COMMENT_COLUMNS - len("# - ")) for note in notes)
    return "".join(f"# - {first}\n" + "".join(f"#   {line}\n" for line in rest) for first, *rest in listed)
