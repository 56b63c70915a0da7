"""``--patch FILE``: a strategic merge into the pod template, for what a job has no key for.

As ``kubectl patch`` merges (Kubernetes, "Update API Objects in Place Using kubectl patch"): mappings merge,
null deletes, lists that have a key merge by it, all other lists are replaced. A container without a name is
the job's own, whose name differs between targets.
"""

from __future__ import annotations

from typing import Any

import yaml

from platform_launch.errors import InputError, shown
from platform_launch.files import not_yaml
from platform_launch.jobs import names
from platform_launch.jobs.manifest import Document
from platform_launch.text import Phrase

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""List of a pod template → the key by which its items merge (patchMergeKey in k8s.io/api/core/v1)."""

_OWN = ("restartPolicy", "subdomain", "hostname", "setHostnameAsFQDN")
"""Fields of a pod that the start and the restarts of the job depend on."""


def read(text: str, source: str) -> Document:
    """Read a patch. Raises InputError if it is not a part of a pod template."""
    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(not_yaml(source, error)) from error
    if not isinstance(loaded, dict) or not loaded or not set(loaded) <= {"metadata", "spec"}:
        raise InputError(
            Phrase("{source} is not a patch: expected metadata: or spec: of a pod template", source=source),
            "for example spec: {terminationGracePeriodSeconds: 300}",
        )
    for part, allowed in (("metadata", {"labels", "annotations"}), ("spec", None)):
        value = loaded.get(part, {})
        if not isinstance(value, dict) or (allowed is not None and not set(value) <= allowed):
            raise InputError(
                Phrase(
                    "{source}: {part} is not a part of a pod template: expected {expected}",
                    source=source,
                    part=part,
                    expected="labels, annotations" if allowed else Phrase("a mapping"),
                )
            )
    _check_plain(loaded, source)
    for field in _OWN:
        if field in loaded.get("spec", {}):
            raise InputError(
                Phrase("{source}: {field} is set by the manifest itself", source=source, field=field),
                "leave it out of the patch",
            )
    return loaded


def apply(template: Document, patch: Document, container: str) -> Document:
    """Return the pod template with the patch merged in, checked; ``container`` runs the launcher."""
    if not patch:
        return template
    named = _named(patch, container)
    for item in named.get("spec", {}).get("containers", []):
        for variable in item.get("env", []) if isinstance(item, dict) else ():
            _check_variable(variable)
    merged: Document = _merge({"metadata": {}, **template}, named, "patch")
    if not merged["metadata"]:
        del merged["metadata"]
    _check(merged, container)
    return merged


def _named(patch: Document, container: str) -> Document:
    spec = patch.get("spec", {})
    if not isinstance(spec.get("containers"), list):
        return patch
    containers = [
        {"name": container, **item} if isinstance(item, dict) else item for item in spec["containers"]
    ]
    return {**patch, "spec": {**spec, "containers": containers}}


def _merge(below: Any, above: Any, path: str) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return _without_nulls(above)
    merged = dict(below)
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
        elif key in _KEYS and isinstance(value, list):
            merged[key] = _merge_list(below.get(key, []), value, _KEYS[key], f"{path}.{key}")
        else:
            merged[key] = _merge(below.get(key), value, f"{path}.{key}")
    return merged


def _merge_list(below: list[Any], above: list[Any], key: str, path: str) -> list[Any]:
    merged = {item[key]: item for item in below}
    for item in above:
        if not isinstance(item, dict) or key not in item:
            raise InputError(
                Phrase("{path}: an item has no {key}: expected one in each", path=path, key=key),
                "items of this list are merged by it",
            )
        rest = {name: value for name, value in item.items() if name != "$patch"}
        if item.get("$patch") == "delete":
            merged.pop(item[key], None)
        elif item.get("$patch") == "replace":
            merged[item[key]] = _without_nulls(rest)
        else:
            merged[item[key]] = _merge(merged.get(item[key], {}), rest, f"{path}[{item[key]}]")
    return list(merged.values())


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _check_variable(variable: Any) -> None:
    name = variable.get("name") if isinstance(variable, dict) else None
    names.check_variable(str(name))
    value = variable.get("value", "")
    if not isinstance(value, str):
        raise InputError(
            Phrase(
                "the patch sets {name} to {value}, which is not a string: quote it",
                name=shown(str(name)),
                value=shown(str(value)),
            )
        )


def _check(template: Document, container: str) -> None:
    """Raise InputError if the merged pod would not run the job."""
    spec = template["spec"]
    own = [item for item in spec["containers"] if item["name"] == container]
    if not own or not own[0].get("command") or not own[0].get("image"):
        raise InputError(
            Phrase("the patch removes container {name}, its image or its command", name=container),
            "it runs the launcher: expected it to stay",
        )
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for item in [*spec["containers"], *spec.get("initContainers", [])]:
        for mount in item.get("volumeMounts", []):
            if mount.get("name") not in volumes:
                raise InputError(
                    Phrase(
                        "container {container} mounts volume {volume}, which the pod does not have",
                        container=item["name"],
                        volume=shown(str(mount.get("name"))),
                    ),
                    "add it to spec.volumes of the patch",
                )


def _check_plain(value: Any, source: str) -> None:
    """Refuse what JSON cannot express, such as a date or a key that is not a string."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InputError(
                    Phrase(
                        "{source}: key {key} is not a string: quote it", source=source, key=shown(str(key))
                    )
                )
            _check_plain(item, source)
    elif isinstance(value, list):
        for item in value:
            _check_plain(item, source)
    elif not (value is None or isinstance(value, str | int | float | bool)):
        raise InputError(
            Phrase("{source}: {value} is not a string: quote it", source=source, value=shown(str(value)))
        )
