"""Notices that this node will be taken away: spot reclaims of AWS, GCP and Azure, and Slurm's end time.

A cloud's metadata service is queried only on a machine of that cloud, according to its firmware. Sources:
docs.aws.amazon.com, AWSEC2 "Spot Instance interruption notices" (two minutes) and "IMDSv2";
cloud.google.com, compute "Spot VMs" and "Query metadata" (30 s); learn.microsoft.com, Azure
"Scheduled Events" (30 s); slurm.schedmd.com, sbatch "OUTPUT ENVIRONMENT VARIABLES" (SLURM_JOB_END_TIME).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from threading import Event, Thread

from platform_launch.environment import Environment
from platform_launch.values import dataclass

_METADATA = "169.254.169.254"
_ANSWER_S = 2.0
_LOOK_S = 5.0
_MOST_BYTES = 256 * 1024
_VENDOR = "/sys/class/dmi/id/sys_vendor"
# Later than the signal that ``job slurm`` requests by default: two minutes, or half of a short time limit.
_BEFORE_END_S, _PART_OF_A_SHORT_TIME = 60.0, 0.25
_TAKEN_AWAY = ("Preempt", "Terminate")


@dataclass(frozen=True)
class ReclaimNotice:
    """This node will be reclaimed at ``at`` (time.time()), None if the source gives no time."""

    source: str
    at: float | None


Source = Callable[[], ReclaimNotice | None]


class MetadataService:
    """A cloud's metadata service, queried without a proxy, for two seconds at most."""

    def __init__(self, host: str = _METADATA) -> None:
        self._host = host

    def get(self, path: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
        """Return the text at a path, None if there is none. Raises OSError."""
        # imported here, because other launches do not need it and it takes 20 ms
        from http.client import HTTPConnection, HTTPException

        connection = HTTPConnection(self._host, timeout=_ANSWER_S)
        try:
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            text = response.read(_MOST_BYTES).decode(errors="replace")
        except HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()
        return text if response.status == 200 else None


def aws(service: MetadataService) -> Source:
    """Return a check for the interruption of a spot instance."""

    def check() -> ReclaimNotice | None:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = service.get("/latest/api/token", lifetime, "PUT")
        headers = {"X-aws-ec2-metadata-token": token} if token else {}
        text = service.get("/latest/meta-data/spot/instance-action", headers)
        if text is None:
            return None
        action = json.loads(text)
        return ReclaimNotice("AWS", _moment(action["time"])) if action["action"] != "none" else None

    return check


def gcp(service: MetadataService) -> Source:
    """Return a check for the preemption of a spot VM."""

    def check() -> ReclaimNotice | None:
        path = "/computeMetadata/v1/instance/preempted"
        text = service.get(path, {"Metadata-Flavor": "Google"})
        return ReclaimNotice("GCP", time.time() + 30) if text is not None and text.strip() == "TRUE" else None

    return check


def azure(service: MetadataService) -> Source:
    """Return a check for scheduled events of this VM; those of its neighbours are listed too."""
    name: list[str] = []
    headers = {"Metadata": "true"}

    def check() -> ReclaimNotice | None:
        if not name:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            name.append((service.get(path, headers) or "").strip())
        text = service.get("/metadata/scheduledevents?api-version=2020-07-01", headers)
        for one in json.loads(text)["Events"] if text is not None else ():
            if one["EventType"] in _TAKEN_AWAY and (not name[0] or name[0] in one["Resources"]):
                return ReclaimNotice("Azure", _moment(one["NotBefore"]))
        return None

    return check


def slurm(end_at: float) -> Source:
    """Return a check for the end of a job's time, a minute ahead, or less if the time is short."""
    before_s = min(_BEFORE_END_S, (end_at - time.time()) * _PART_OF_A_SHORT_TIME)

    def check() -> ReclaimNotice | None:
        return ReclaimNotice("Slurm", end_at) if time.time() >= end_at - before_s else None

    return check


def sources(env: Environment, service: MetadataService) -> list[Source]:
    """Return the checks that apply to this machine and this job."""
    vendor = (env.read_file(_VENDOR) or "").strip()
    found: list[Source] = []
    if vendor == "Amazon EC2":
        found.append(aws(service))
    elif vendor == "Google":
        found.append(gcp(service))
    elif vendor == "Microsoft Corporation":
        found.append(azure(service))
    end_at = env.get("SLURM_JOB_END_TIME", "")
    if end_at.isdecimal() and len(end_at) < 12:
        found.append(slurm(float(end_at)))
    return found


class NoticeWatch:
    """Checks sources every few seconds, in a thread. ``given(notice)`` receives a notice at every check.

    The repetition is for ranks that are still starting and handle no signal yet.
    """

    def __init__(self, sources: list[Source], given: Callable[[ReclaimNotice], None]) -> None:
        self._sources = sources
        self._given = given
        self._ended = Event()

    def start(self) -> None:
        """Start, if there are sources. Raises RuntimeError if no thread can be started."""
        if self._sources:
            Thread(target=self._work, name="notices", daemon=True).start()

    def stop(self) -> None:
        """Stop checking."""
        self._ended.set()

    def _work(self) -> None:
        while not self._ended.is_set():
            for source in self._sources:
                # A service that fails or returns something unexpected gives no notice.
                with suppress(OSError, ValueError, KeyError, TypeError):
                    notice = source()
                    if notice is not None:
                        self._given(notice)
            self._ended.wait(_LOOK_S)


def _moment(text: str) -> float | None:
    """Read ``2017-09-18T08:22:00Z`` or ``Mon, 19 Sep 2016 18:29:47 GMT``; an empty text is now."""
    for pattern in ("%Y-%m-%dT%H:%M:%SZ", "%a, %d %b %Y %H:%M:%S GMT"):
        with suppress(ValueError):
            return datetime.strptime(text, pattern).replace(tzinfo=timezone.utc).timestamp()
    return None
