"""A job description in a YAML file or as flags, and its conversion to a :class:`Job`.

Both have one form: strings, lists and mappings of strings. The YAML is read without types, so ``yes``,
``012`` and ``1:30`` stay strings, and a value is checked as a number only if a number is needed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Union

import yaml

from platform_launch.errors import InputError, shown
from platform_launch.files import not_yaml
from platform_launch.jobs.job import (
    GANGS,
    SECURITY,
    Job,
    Rdma,
    RunAs,
    Runtime,
    SecretVariable,
    Toleration,
    Volume,
)
from platform_launch.jobs.manifest import Document, dump
from platform_launch.text import Phrase, joined

Value = Union[str, "list[str]", "dict[str, str]"]
Description = Mapping[str, Value]

LISTS = ("volumes", "rdma", "tolerations", "exclude", "image_pull_secrets", "options", "arguments")
MAPPINGS = ("env", "secret_env", "resources", "labels", "annotations", "node_selector")
NUMBERS = (
    *("nodes", "spares", "min_nodes", "gpus_per_node"),
    *("cpus", "memory_gib", "shm_gib", "retries", "notice"),
)

_DAYS = re.compile(r"([0-9]{1,4})-([0-9]{1,2})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")
_TIME = re.compile(r"([0-9]{1,6})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")


def read(text: str, source: str) -> dict[str, Value]:
    """Read a job file. Raises InputError for unknown keys and values of another shape."""
    try:
        loaded = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  BaseLoader makes nothing but texts
    except (yaml.YAMLError, RecursionError) as error:  # of the latter: a thousand brackets
        raise InputError(not_yaml(source, error)) from error
    if not isinstance(loaded, dict):
        raise InputError(
            Phrase("{source} is not a job file: expected keys such as name, nodes and image", source=source)
        )
    for key, value in loaded.items():
        _check_shape(key, value, source)
    return loaded


def merge(below: Description, above: Description) -> dict[str, Value]:
    """Merge flags into a file: strings and lists replace; mappings and launcher options are combined."""
    merged = {**below, **above}
    if "options" in below and "options" in above:
        merged["options"] = [*below["options"], *above["options"]]
    for name in MAPPINGS:
        lower, upper = below.get(name), above.get(name)
        if isinstance(lower, dict) and isinstance(upper, dict):
            merged[name] = {**lower, **upper}
    return merged


def write(description: Description) -> str:
    """Return the job file for a description: keys in their usual order, numbers as numbers."""
    ordered = {key: description[key] for key in _FIELDS if key in description}
    return dump({key: int(str(value)) if key in NUMBERS else value for key, value in ordered.items()})


def to_job(description: Description, grace_s: int, patch: Document | None = None) -> Job:
    """Return the job. ``grace_s``: see :class:`Job`; ``patch``: what the key ``patch`` names, read.

    Raises InputError naming the key that cannot be used.
    """
    if not description.get("name"):
        raise InputError("the job has no name", "add --name, or name: to the job file")
    values: dict[str, Any] = {}
    for key, value in description.items():
        field, convert = _FIELDS[key]
        values[field] = convert(key, value)
    return Job(**{**values, "patch": patch or {}}, grace_s=grace_s)


def check(key: str, value: Value) -> None:
    """Raise InputError if no job could have this value, whatever its other values are."""
    field, convert = _FIELDS[key]
    Job(**{"name": "any", field: convert(key, value)})


def seconds(text: str, key: str = "time") -> int:
    """Read a time as sbatch does: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s."""
    if days := _DAYS.fullmatch(text.strip()):
        d, h, m, s = (int(part or 0) for part in days.groups())
        total = ((d * 24 + h) * 60 + m) * 60 + s
    elif parts := _TIME.fullmatch(text.strip()):
        first, second, third = parts.groups()
        if third is not None:
            total = (int(first) * 60 + int(second)) * 60 + int(third)
        else:
            total = int(first) * 60 + int(second or 0)
    else:
        total = 0
    if total < 1:
        raise InputError(
            Phrase(
                "{key} {text} is not a time: expected hours:minutes:seconds, as in 20:00:00",
                key=key,
                text=shown(text),
            )
        )
    return total


def volume(text: str) -> Volume:
    """Read ``source:path`` or ``source:path:ro``; the source of an NFS export contains a colon."""
    rest, separator, last = text.rpartition(":")
    mode = last if separator and last in ("ro", "rw") else ""
    source, separator, path = (rest if mode else text).rpartition(":")
    if not separator or source.count(":") > 1:
        raise InputError(
            Phrase(
                "volume {text}: expected claim:/path, /folder/of/node:/path, secret/NAME:/path, "
                "configmap/NAME:/path or SERVER:/export:/path, and :ro if read-only",
                text=shown(text),
            )
        )
    return Volume(source, path, mode == "ro")


def toleration(text: str) -> Toleration:
    """Read a taint as ``kubectl taint`` writes it: ``key``, ``key=value``, and ``:effect`` after either."""
    taint, _, effect = text.partition(":")
    key, _, value = taint.partition("=")
    return Toleration(key, value, effect)


def _check_shape(key: object, value: object, source: str) -> None:
    if not isinstance(key, str) or key not in _FIELDS:
        near = difflib.get_close_matches(str(key), _FIELDS, n=1)
        raise InputError(
            Phrase("{source}: unknown key {key}", source=source, key=shown(str(key))),
            Phrase("did you mean {near}?", near=near[0])
            if near
            else Phrase("known: {keys}", keys=joined(_FIELDS)),
        )
    if key in LISTS:
        fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
        expected = Phrase("a list of strings")
    elif key in MAPPINGS:
        fits = isinstance(value, dict) and all(
            isinstance(item, str) for pair in value.items() for item in pair
        )
        expected = Phrase("a mapping of strings")
    else:
        fits, expected = isinstance(value, str), Phrase("one string or number")
    if not fits:
        of_many = Phrase("a list" if isinstance(value, list) else "a mapping")
        found = shown(value) if isinstance(value, str) else of_many
        raise InputError(
            Phrase(
                "{source}: {key} is {found}: expected {expected}",
                source=source,
                key=key,
                found=found,
                expected=expected,
            )
        )


def _text(key: str, value: Value) -> str:  # noqa: ARG001
    return str(value)


def _number(minimum: int, maximum: int) -> Callable[[str, Value], int]:
    def convert(key: str, value: Value) -> int:
        text = str(value).strip()
        if text.isascii() and text.isdigit() and len(text) <= 9 and minimum <= int(text) <= maximum:
            return int(text)
        raise InputError(
            Phrase(
                "{key} {text}: expected a whole number from {minimum} to {maximum}",
                key=key,
                text=shown(text),
                minimum=minimum,
                maximum=maximum,
            )
        )

    return convert


def _truth(key: str, value: Value) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "yes", "on", "false", "no", "off"):
        raise InputError(Phrase("{key} {value}: expected true or false", key=key, value=shown(str(value))))
    return text in ("true", "yes", "on")


def _rdma(key: str, text: str) -> Rdma:
    resource, separator, count = text.partition("=")
    return Rdma(resource, _number(1, 64)(key, count) if separator else 1)


def _run_as(key: str, value: Value) -> RunAs:
    user, separator, group = str(value).partition(":")
    number = _number(0, 999_999_999)
    return RunAs(number(key, user), number(key, group if separator else user))


def _runtime(key: str, value: Value) -> Runtime:
    kind, separator, name = str(value).rpartition("/")
    kinds = ("ClusterTrainingRuntime", "TrainingRuntime")
    if separator and kind not in kinds:
        raise InputError(
            Phrase(
                "{key} {value}: expected NAME of a ClusterTrainingRuntime, or TrainingRuntime/NAME",
                key=key,
                value=shown(str(value)),
            )
        )
    return Runtime(kind or kinds[0], name)


def _one_of(*allowed: str) -> Callable[[str, Value], str]:
    def convert(key: str, value: Value) -> str:
        if value not in allowed:
            raise InputError(
                Phrase(
                    "{key} {value}: expected one of {allowed}",
                    key=key,
                    value=shown(str(value)),
                    allowed=joined(allowed),
                )
            )
        return str(value)

    return convert


def _secrets(key: str, value: Value) -> tuple[SecretVariable, ...]:
    found = []
    for name, reference in _mapping(value).items():
        secret, separator, entry = reference.partition(":")
        if not separator:
            # Not the value itself: it may be the secret.
            raise InputError(
                Phrase(
                    "{key} of {name}: expected secret:key, the place of the value in a Secret",
                    key=key,
                    name=shown(name),
                )
            )
        found.append(SecretVariable(name, secret, entry))
    return tuple(found)


def _mapping(value: Value) -> dict[str, str]:
    assert isinstance(value, dict), "read() and the flags see to it"
    return value


def _pairs(key: str, value: Value) -> tuple[tuple[str, str], ...]:  # noqa: ARG001
    return tuple(_mapping(value).items())


def _texts(key: str, value: Value) -> tuple[str, ...]:  # noqa: ARG001
    return tuple(value)


_FIELDS: dict[str, tuple[str, Callable[[str, Value], Any]]] = {
    "name": ("name", _text),
    "nodes": ("nodes", _number(1, 9999)),
    "spares": ("spares", _number(0, 999)),
    "min_nodes": ("min_nodes", _number(1, 9999)),
    "gpus_per_node": ("gpus_per_node", _number(0, 64)),
    "image": ("image", _text),
    "entrypoint": ("entrypoint", _text),
    "volumes": ("volumes", lambda _key, value: tuple(volume(item) for item in value)),
    "time": ("time_limit_s", lambda key, value: seconds(str(value), key)),
    "cpus": ("cpus", _number(1, 4096)),
    "memory_gib": ("memory_gib", _number(1, 65536)),
    "shm_gib": ("shm_gib", _number(1, 65536)),
    "gpu_resource": ("gpu_resource", _text),
    "rdma": ("rdma", lambda key, value: tuple(_rdma(key, item) for item in value)),
    "resources": ("resources", _pairs),
    "env": ("env", _pairs),
    "secret_env": ("secret_env", _secrets),
    "labels": ("labels", _pairs),
    "annotations": ("annotations", _pairs),
    "node_selector": ("node_selector", _pairs),
    "tolerations": ("tolerations", lambda _key, value: tuple(toleration(item) for item in value)),
    "exclude": ("exclude", _texts),
    "quarantine": ("quarantine", _text),
    "namespace": ("namespace", _text),
    "queue": ("queue", _text),
    "account": ("account", _text),
    "image_pull_secrets": ("image_pull_secrets", _texts),
    "service_account": ("service_account", _text),
    "security": ("security", _one_of(*SECURITY)),
    "run_as": ("run_as", _run_as),
    "priority_class": ("priority_class", _text),
    "scheduler": ("scheduler", _text),
    "gang": ("gang", _one_of(*GANGS)),
    "host_network": ("host_network", _truth),
    "runtime": ("runtime", _runtime),
    "patch": ("patch", _text),
    "ttl": ("ttl_s", lambda key, value: seconds(str(value), key)),
    "retries": ("retries", _number(0, 1000)),
    "requeue": ("requeue", _truth),
    "notice": ("notice", _number(1, 65535)),
    "script": ("script", _text),
    "module": ("module", _text),
    "options": ("options", _texts),
    "arguments": ("arguments", _texts),
}
KEYS = {field: key for key, (field, _convert) in _FIELDS.items()}
"""Field of :class:`Job` → the key of the job file."""
