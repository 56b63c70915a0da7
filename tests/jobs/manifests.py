"""Jobs as tests want them, and the way from a rendered file back to what a container gets."""

from __future__ import annotations

from typing import Any

import yaml

from platform_launch.jobs import TARGETS, Job

IMAGE = "registry.example/team/taehv:1"
ENTRYPOINT = "/workspace/start_multinode_platform.sh"


KUBERNETES_TARGETS = [target for target in TARGETS if target != "slurm"]


def a_job(**values: Any) -> Job:
    """A job of two nodes with eight GPUs, but for what the test says."""
    return Job(**{"name": "demo", "entrypoint": ENTRYPOINT, "image": IMAGE, "nodes": 2, **values})


def documents(text: str) -> list[dict[str, Any]]:
    """The documents of a file, by libyaml: the same parser in Python takes ten times as long."""
    return list(yaml.load_all(text, yaml.CSafeLoader))


def job_specs(document: Any) -> list[dict[str, Any]]:
    """The specs of all Jobs in a manifest, child Jobs of other kinds included."""
    if isinstance(document, list):
        return [spec for item in document for spec in job_specs(item)]
    if not isinstance(document, dict):
        return []
    if "completions" in document.get("spec", {}):
        return [document["spec"]]
    return [spec for value in document.values() for spec in job_specs(value)]


def pod_templates(document: Any) -> list[dict[str, Any]]:
    """All pod templates of a manifest, wherever its kind keeps them."""
    if isinstance(document, list):
        return [template for item in document for template in pod_templates(item)]
    if not isinstance(document, dict):
        return []
    if "containers" in document.get("spec", {}):
        return [document]
    return [template for value in document.values() for template in pod_templates(value)]


def expand(text: str, variables: dict[str, str]) -> str:
    """What the kubelet makes of an argument (kubernetes third_party/forked/golang/expansion).

    ``$$`` is a dollar, ``$(NAME)`` the value when there is one, all else stays.
    """
    out, position = "", 0
    while position < len(text):
        character = text[position]
        following = text[position + 1 : position + 2]
        if character == "$" and following == "$":
            out, position = out + "$", position + 2
        elif character == "$" and following == "(" and ")" in text[position:]:
            end = text.index(")", position)
            name = text[position + 2 : end]
            out, position = out + variables.get(name, text[position : end + 1]), end + 1
        else:
            out, position = out + character, position + 1
    return out
