"""As much of a Kubernetes API server as a real kubectl needs for ``apply --dry-run=server``.

It knows Services, Jobs and Pods, which it checks by Kubernetes' own schemas as a server does (unknown fields
included), and Trainer's kinds with Trainer's webhook. It keeps the requests: a test can see that nothing was
asked for in earnest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

_GROUPS = {
    "/api/v1": ("", {"Service": "services", "Pod": "pods"}),
    "/apis/batch/v1": ("batch", {"Job": "jobs"}),
    "/apis/trainer.kubeflow.org/v1alpha1": (
        "trainer.kubeflow.org",
        {"TrainingRuntime": "trainingruntimes", "TrainJob": "trainjobs"},
    ),
}


@dataclass
class ApiServer:
    """A running one. ``writes``: method, path and query of every request that could change something.

    ``denies``: what an admission webhook answers to every object; None: there is none. ``pod_security``: what
    the namespace enforces on pods, and warns about for templates: a level of the Pod Security Standards.
    ``runtimes``: names of the TrainingRuntimes that exist.
    """

    port: int
    denies: str | None = None
    pod_security: str | None = None
    runtimes: tuple[str, ...] = ()
    writes: list[tuple[str, str, dict[str, list[str]]]] = field(default_factory=list)

    def kubeconfig(self, folder: Path, context: str) -> Path:
        """A file for KUBECONFIG whose current context leads here."""
        file = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "contexts": [
                {"name": context, "context": {"cluster": "here", "user": "", "namespace": "default"}}
            ],
        }
        file.write_text(json.dumps(config), encoding="utf-8")
        return file


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """Run one on a free port of this machine."""
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server = ApiServer(listening.server_port)
    listening.server = server  # type: ignore[attr-defined]
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        answer = _DISCOVERY.get(path)
        if answer is None:
            answer = self._runtime(path)
        if answer is not None:
            self._answer(200, answer)
        else:
            self._answer(404, _status(404, "NotFound", f"{path} not found"))

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server: ApiServer = self.server.server  # type: ignore[attr-defined]
        server.writes.append(("POST", url.path, parse_qs(url.query)))
        if server.denies is not None:
            self._answer(403, _status(403, "Forbidden", server.denies))
            return
        if body["apiVersion"].startswith("trainer."):
            # kubeflow/trainer pkg/runtime/core/trainingruntime.go
            if body["kind"] == "TrainJob" and body["spec"]["runtimeRef"]["name"] not in server.runtimes:
                refusal = "specified trainingRuntime must be created before the TrainJob is created"
                self._answer(422, _status(422, "Invalid", refusal))
            else:
                self._answer(201, body)
            return
        violation = pod_security_violation(body, server.pod_security)
        if violation and body["kind"] == "Pod":
            self._answer(403, _status(403, "Forbidden", violation))
            return
        try:
            kubernetes_validate.validate(body, kubernetes_validate.latest_version(), strict=True)
        except kubernetes_validate.ValidationError as error:
            name = body["metadata"]["name"]
            self._answer(422, _status(422, "Invalid", f"{body['kind']} {name!r} is invalid: {error.message}"))
        else:
            self._answer(201, body, warning=violation)

    def do_PATCH(self) -> None:
        url = urlsplit(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        server: ApiServer = self.server.server  # type: ignore[attr-defined]
        server.writes.append(("PATCH", url.path, parse_qs(url.query)))
        if (runtime := self._runtime(url.path)) is not None:
            self._answer(200, runtime)
        else:
            self._answer(405, _status(405, "MethodNotAllowed", "nothing exists here to be changed"))

    def _runtime(self, path: str) -> dict[str, Any] | None:
        """The TrainingRuntime at ``path``, if it exists."""
        folder, _, name = path.rpartition("/")
        server: ApiServer = self.server.server  # type: ignore[attr-defined]
        if not folder.endswith("/trainingruntimes") or name not in server.runtimes:
            return None
        applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
        return {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainingRuntime",
            "metadata": {"name": name, "namespace": "default", "annotations": applied},
        }

    def _answer(self, code: int, document: dict[str, Any], warning: str | None = None) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        if warning:
            self.send_header("Warning", f'299 - "{warning}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def pod_security_violation(body: dict[str, Any], level: str | None) -> str | None:
    """What the Pod Security Standards forbid in a pod or a Job's template, of what manifests here hold."""
    if level is None or body["kind"] not in ("Pod", "Job"):
        return None
    spec = body["spec"] if body["kind"] == "Pod" else body["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    pod_security, security = spec.get("securityContext", {}), container.get("securityContext", {})
    capabilities = security.get("capabilities", {})
    faults = []
    if spec.get("hostNetwork"):
        faults.append("host namespaces")
    if any("hostPath" in volume for volume in spec.get("volumes", [])):
        faults.append("hostPath volumes")
    if capabilities.get("add"):
        faults.append("non-default capabilities")
    if level == "restricted":
        allowed = ("configMap", "emptyDir", "persistentVolumeClaim", "secret")
        if any(not set(volume) & set(allowed) for volume in spec.get("volumes", [])):
            faults.append("restricted volume types")
        if security.get("allowPrivilegeEscalation") is not False:
            faults.append("allowPrivilegeEscalation != false")
        if "ALL" not in capabilities.get("drop", []):
            faults.append("unrestricted capabilities")
        if pod_security.get("runAsNonRoot") is not True:
            faults.append("runAsNonRoot != true")
        if pod_security.get("runAsUser") == 0:
            faults.append("runAsUser=0")
        if pod_security.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            faults.append("seccompProfile")
    return f"violates PodSecurity {level}:latest: {', '.join(faults)}" if faults else None


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason} | {
        "message": message
    }


def _version(path: str) -> dict[str, str]:
    return {
        "groupVersion": path.removeprefix("/apis/").removeprefix("/api/"),
        "version": path.rpartition("/")[2],
    }


def _discovery() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {
                    "name": group,
                    "versions": [_version(path)],
                    "preferredVersion": _version(path),
                }
                for path, (group, _) in _GROUPS.items()
                if group
            ],
        },
        "/openapi/v3": {
            "paths": {path[1:]: {"serverRelativeURL": f"/openapi/v3{path}?hash=1"} for path in _GROUPS}
        },
    }
    for path, (group, kinds) in _GROUPS.items():
        found[path] = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": _version(path)["groupVersion"],
            "resources": [
                {
                    "name": plural,
                    "singularName": kind.lower(),
                    "namespaced": True,
                    "kind": kind,
                    "verbs": ["create", "get", "patch"],
                }
                for kind, plural in kinds.items()
            ],
        }
        parameters = [{"name": name, "in": "query"} for name in ("dryRun", "fieldValidation")]
        paths = {}
        for kind, plural in kinds.items():
            identity = {"group": group, "version": _version(path)["version"], "kind": kind}
            patch = {"x-kubernetes-group-version-kind": identity, "parameters": parameters}
            paths[f"{path}/namespaces/{{namespace}}/{plural}/{{name}}"] = {"patch": patch}
        found[f"/openapi/v3{path}"] = {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": "v1.36.0"},
            "paths": paths,
        }
    return found


_DISCOVERY = _discovery()
