"""Names that Kubernetes and Slurm accept, and texts that any file can hold.

What cannot be quoted is rejected with the rule and, if possible, a name that fits. The rules are those of
the servers, so that nothing passes here and fails there, or shows up only as an event after submission:

- names, labels, keys: k8s.io/apimachinery pkg/util/validation (IsDNS1123Label, IsDNS1123Subdomain,
  IsQualifiedName, IsValidLabelValue, IsConfigMapKey)
- resources, hostPath: kubernetes pkg/apis/core/validation (validatePathNoBacksteps, IsExtendedResourceName)
- queues: kueue pkg/controller/jobframework (ValidateQueueName)
- images: github.com/distribution/reference, as the kubelet reads them
"""

from __future__ import annotations

import re
import unicodedata

from platform_launch.errors import InputError, shown
from platform_launch.text import Phrase

LONGEST_NAME = 45
"""Leaves room for what controllers append, at most ``-node-0-9999-abcde``, in the 63 characters of DNS."""

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SECRET_KEY = re.compile(r"(?!\.$|\.\.)[A-Za-z0-9._-]+")
_PART = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(\[[0-9A-Fa-f:]+\]|{_PART}(\.{_PART})*)"
_REPOSITORY = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_DIGEST = r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}"
_IMAGE = re.compile(
    rf"({_HOST}(:[0-9]+)?/)?{_REPOSITORY}(/{_REPOSITORY})*"
    rf"(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@({_DIGEST}))?"
)
_HUGEPAGES = re.compile(r"hugepages-[1-9][0-9]*[KMG]i")
_QUANTITY = re.compile(r"[1-9][0-9]*([KMGTP]i?|k)?")
_PATH = re.compile(r"/[^:]*")
_DIRECTIVE = re.compile(r"[A-Za-z0-9_%][A-Za-z0-9_.,:@%+=/-]*")

_LONGEST_LABEL = 63
_LONGEST_SUBDOMAIN = 253
_QUOTA_PREFIX = "requests."  # a quota puts it before the resource's name, and that must be a name as well
_NATIVE = "kubernetes.io/"  # resources of Kubernetes itself

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
        Phrase(
            "name {name} cannot be part of host names: expected at most {longest} of a–z, 0–9 and -, "
            "a letter first and no - last",
            name=shown(name),
            longest=LONGEST_NAME,
        ),
        Phrase("for example {name}", name=suggest_name(name)),
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
    """Return the name of an existing object: a claim, a Secret (DNS-1123 subdomain)."""
    return _match(
        name, what, _SUBDOMAIN, _LONGEST_SUBDOMAIN, Phrase("a–z, 0–9, - and ., as kubectl lists it")
    )


def check_namespace(name: str) -> str:
    """Return a namespace (DNS-1123 label)."""
    return _match(
        name, "namespace", _DNS_LABEL, _LONGEST_LABEL, Phrase("at most 63 of a–z, 0–9 and -, no dot")
    )


def check_queue(name: str) -> str:
    """Return the name of a LocalQueue, which becomes the value of a label, or of a Volcano queue."""
    return _match(name, "queue", _SUBDOMAIN, _LONGEST_LABEL, Phrase("at most 63 of a–z, 0–9, - and ."))


def check_secret_key(key: str) -> str:
    """Return a key of a Secret."""
    return _match(
        key,
        Phrase("key of the Secret"),
        _SECRET_KEY,
        _LONGEST_SUBDOMAIN,
        Phrase("letters, digits, -, _ and ., not .. first"),
    )


def check_variable(name: str) -> str:
    """Return the name of an environment variable that the job may set itself."""
    _match(
        name,
        Phrase("environment variable"),
        _VARIABLE,
        253,
        Phrase("letters, digits and _, no digit first"),
    )
    if name in _TOPOLOGY_NAMES or name.startswith(_TOPOLOGY_PREFIXES):
        raise InputError(
            Phrase(
                "{name} is set by the scheduler or by this manifest: expected another variable", name=name
            ),
            "leave it out; nodes and gpus_per_node set the topology",
        )
    return name


def check_qualified(name: str, what: str) -> str:
    """Return a label's key or a taint's, with or without ``domain/``."""
    domain, slash, plain = name.rpartition("/")
    fits = len(plain) <= _LONGEST_LABEL and _LABEL_VALUE.fullmatch(plain)
    if fits and (not slash or (len(domain) <= _LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(domain))):
        return name
    raise InputError(
        Phrase(
            "{what} {name}: expected a form like nvidia.com/gpu.product, with at most 63 characters after "
            "the /",
            what=what,
            name=shown(name),
        )
    )


def check_label_value(value: str, what: str) -> str:
    """Return the value of a label, which may be empty."""
    return check_plain(value, what) if value else value


def check_plain(name: str, what: str) -> str:
    """Return the name of a job or the value of a label, as every scheduler writes it."""
    expected = Phrase("at most 63 letters, digits, -, _ and ., a letter or digit at both ends")
    return _match(name, what, _LABEL_VALUE, _LONGEST_LABEL, expected)


def check_node(name: str) -> str:
    """Return the name of a node: Kubernetes allows a whole subdomain of 253 characters."""
    expected = Phrase("at most 253 letters, digits, -, _ and ., a letter or digit at both ends")
    return _match(name, Phrase("node"), _LABEL_VALUE, _LONGEST_SUBDOMAIN, expected)


def check_quantity(name: str, quantity: str) -> None:
    """Check one more resource of a container: a device plugin's, hugepages or ephemeral-storage."""
    if name in ("cpu", "memory"):
        raise InputError(
            Phrase("resource {name}: expected another resource", name=name),
            "CPUs and memory have their own keys, cpus and memory_gib",
        )
    if not (_HUGEPAGES.fullmatch(name) or name == "ephemeral-storage"):
        check_resource(name, Phrase("resource"))
    _match(
        quantity,
        Phrase("quantity of {name}", name=name),
        _QUANTITY,
        20,
        Phrase("a quantity such as 1, 512Mi or 2Gi"),
    )


def check_resource(name: str, what: str) -> str:
    """Return the name of a resource that a device plugin offers."""
    domain, slash, _plain = name.partition("/")
    quota = f"{_QUOTA_PREFIX}{domain}"
    if not slash or name.startswith(_QUOTA_PREFIX) or len(quota) > _LONGEST_SUBDOMAIN or _NATIVE in name:
        raise InputError(
            Phrase(
                "{what} {name}: expected a device plugin's resource, as in rdma/hca_shared_devices_a",
                what=what,
                name=shown(name),
            ),
            "kubectl describe node lists them under Allocatable",
        )
    return check_qualified(name, what)


def check_image(image: str) -> str:
    """Return an image reference."""
    return _match(
        image, "image", _IMAGE, 500, Phrase("a form like registry.example/team/image:tag, in lower case")
    )


def check_path(path: str, what: str) -> str:
    """Return an absolute path without colons, which separate the parts of a volume."""
    check_text(path, what)
    return _match(path, what, _PATH, 4096, Phrase("an absolute path that does not contain ':'"))


def check_folder(path: str, what: str) -> str:
    """Return the path of a folder to mount, or to mount at."""
    check_path(path, what)
    if ".." in path.split("/"):
        raise InputError(
            Phrase("{what} {path} contains '..': expected a path without it", what=what, path=shown(path))
        )
    return path


def check_directive(value: str, what: str) -> str:
    """Return a value for an ``#SBATCH`` line: no shell reads that line, so nothing in it can be quoted."""
    return _match(
        value,
        what,
        _DIRECTIVE,
        256,
        Phrase("letters, digits and _ . , : @ % + = / -, as a #SBATCH line cannot quote"),
    )


def check_text(text: str, what: str) -> str:
    """Return a text that YAML and shell files carry unchanged: no control characters, valid Unicode."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n":
            raise InputError(
                Phrase(
                    "{what} {text} contains {character!r}: expected text without control characters",
                    what=what,
                    text=shown(text),
                    character=character,
                ),
                "remove it; line feeds and tabs are allowed",
            )
    return text


def _match(value: str, what: str, pattern: re.Pattern[str], longest: int, expected: str) -> str:
    if len(value) <= longest and pattern.fullmatch(value):
        return value
    raise InputError(
        Phrase("{what} {value}: expected {expected}", what=what, value=shown(value), expected=expected)
    )
