"""What the Job controller makes of pods that end: a small imitation of an Indexed Job's rules.

Source: kubernetes pkg/controller/job (pod_failure_policy.go, indexed_job_utils.go, backoff_utils.go).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

FIRST_DELAY_S, LONGEST_DELAY_S = 10, 600
CONTAINER = "training"


@dataclass(frozen=True)
class Ended:
    """A failed or succeeded pod. ``sidecar``: the exit code of a second container."""

    code: int
    disrupted: bool = False
    sidecar: int | None = None

    @property
    def failed(self) -> bool:
        return self.disrupted or bool(self.code)

    def matches(self, rule: dict[str, Any]) -> bool:
        if on_codes := rule.get("onExitCodes"):
            codes = {CONTAINER: self.code, "sidecar": self.sidecar}
            named = on_codes.get("containerName")
            asked = [codes.get(named)] if named else list(codes.values())
            return any(code in on_codes["values"] for code in asked if code)
        return self.disrupted


class JobController:
    """Follows one Job. ``ended`` says how: None while it runs."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._failures: Counter[int] = Counter()
        self._ignored: Counter[int] = Counter()
        self._succeeded: set[int] = set()
        self._failed: set[int] = set()
        self.ended: str | None = None

    def verdict(self, pod: Ended) -> str:
        """The first rule that fits, else the pod counts."""
        rules = self._spec["podFailurePolicy"]["rules"]
        return next((str(rule["action"]) for rule in rules if pod.matches(rule)), "Count")

    def end(self, index: int, pod: Ended) -> int | None:
        """Take note of a pod's end; return the seconds to its replacement, None if there is none."""
        if self.ended:
            return None
        if not pod.failed:
            self._succeeded.add(index)
            self._settle()
            return None
        action = self.verdict(pod)
        if action == "FailJob":
            self.ended = "PodFailurePolicy"
            return None
        (self._ignored if action == "Ignore" else self._failures)[index] += 1
        limit = self._spec.get("backoffLimitPerIndex")
        if limit is None:
            if self._failures.total() > self._spec["backoffLimit"]:
                self.ended = "BackoffLimitExceeded"
                return None
            count = self._failures.total() + self._ignored.total()
        else:
            if self._failures[index] > limit:
                self._failed.add(index)
                self._settle()
                return None
            count = self._failures[index] + self._ignored[index]
        return min(FIRST_DELAY_S << (count - 1), LONGEST_DELAY_S)

    def _settle(self) -> None:
        policy = self._spec.get("successPolicy")
        if policy and len(self._succeeded) >= policy["rules"][0]["succeededCount"]:
            self.ended = "Complete"
        elif len(self._failed) > self._spec.get("maxFailedIndexes", self._spec["completions"]):
            self.ended = "MaxFailedIndexesExceeded"
        elif len(self._succeeded) + len(self._failed) == self._spec["completions"]:
            self.ended = "FailedIndexes" if self._failed else "Complete"
