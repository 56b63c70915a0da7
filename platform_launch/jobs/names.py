"""Which texts may stand where: names that Kubernetes and Slurm accept, and texts that any file can carry.

What cannot be quoted is refused, with the rule and, where there is one, a name that would do.
"""

from __future__ import annotations

import re
import unicodedata

from platform_launch.errors import InputError, shown

LONGEST_NAME = 45
"""Leaves room for what controllers append, at most ``-node-0-9999-abcde``, in the 63 characters of DNS."""

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUALIFIED = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_PATH = re.compile(r"/[^:]*")
_DIRECTIVE = re.compile(r"[A-Za-z0-9_%][A-Za-z0-9_.,:@%+=/-]*")

_TOPOLOGY_NAMES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK"}
    | {"JOB_COMPLETION_INDEX", "JOB_INDEX", "REPLICATED_JOB_NAME", "DISTRIBUTED_JOB"}
)
_TOPOLOGY_PREFIXES = ("PET_", "LWS_", "JOBSET_", "VC_", "KUBEBRAIN_", "SLURM_", "KUBERNETES_")


def check_name(name: str) -> str:
    """Return a name that can be a Service, and with what controllers append, a host (DNS-1035 label)."""
    if len(name) <= LONGEST_NAME and _NAME.fullmatch(name):
        return name
    raise InputError(
        f"name {shown(name)} cannot name hosts: expected at most {LONGEST_NAME} of a–z, 0–9 and -, "
        "a letter first and no - last",
        f"for example {suggest_name(name)}",
    )


def suggest_name(text: str) -> str:
    """Return a usable name that resembles ``text``."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if not slug:
        return "training"
    named = slug if slug[0].isalpha() else f"job-{slug}"
    return named[:LONGEST_NAME].rstrip("-")


def check_object_name(name: str, what: str) -> str:
    """Return the name of an existing object: a claim, a Secret, a namespace (DNS-1123 subdomain)."""
    return _match(
        name, what, _SUBDOMAIN, 253, "a–z, 0–9, - and ., a letter or digit at both ends, as kubectl lists it"
    )


def check_variable(name: str) -> str:
    """Return the name of an environment variable that the job may set itself."""
    _match(name, "environment variable", _VARIABLE, 253, "letters, digits and _, no digit first")
    if name in _TOPOLOGY_NAMES or name.startswith(_TOPOLOGY_PREFIXES):
        raise InputError(
            f"{name} is set by the scheduler or by this manifest: expected another variable",
            "leave it out; nodes and GPUs are said by nodes and gpus_per_node",
        )
    return name


def check_qualified(name: str, what: str) -> str:
    """Return a label key, Secret key or resource name, with or without ``domain/``."""
    return _match(name, what, _QUALIFIED, 253, "a form like nvidia.com/gpu.product or rdma/hca_shared")


def check_image(image: str) -> str:
    """Return an image reference."""
    return _match(image, "image", _IMAGE, 500, "a form like registry.example/team/image:tag")


def check_path(path: str, what: str) -> str:
    """Return an absolute path without colons, which separate the parts of a volume."""
    check_text(path, what)
    return _match(path, what, _PATH, 4096, "an absolute path without :")


def check_directive(value: str, what: str) -> str:
    """Return a value for an ``#SBATCH`` line: no shell reads that line, so nothing in it can be quoted."""
    return _match(
        value,
        what,
        _DIRECTIVE,
        256,
        "letters, digits and _ . , : @ % + = / -, as a #SBATCH line cannot quote",
    )


def check_text(text: str, what: str) -> str:
    """Return a text that YAML and shell files carry unchanged: no control characters, valid Unicode."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n":
            raise InputError(
                f"{what} {shown(text)} holds {character!r}: expected text without control characters",
                "remove it; line feeds and tabs are allowed",
            )
    return text


def _match(value: str, what: str, pattern: re.Pattern[str], longest: int, expected: str) -> str:
    if len(value) <= longest and pattern.fullmatch(value):
        return value
    raise InputError(f"{what} {shown(value)}: expected {expected}")
