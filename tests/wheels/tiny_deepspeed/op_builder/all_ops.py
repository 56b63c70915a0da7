"""The ops of the backend that DS_ACCELERATOR names."""

from __future__ import annotations

import os

from setuptools import Extension


class Builder:
    """One op, compiled from ``csrc/NAME.cpp``."""

    def __init__(self, name: str, variable: str) -> None:
        self.name = name
        self.BUILD_VAR = variable

    def warning(self, message: str) -> None:
        print("[WARNING]", message)

    def is_compatible(self, verbose: bool = False) -> bool:
        if os.environ.get("TINY_LACKS") == self.name:
            self.warning(f"{self.name} requires libtiny")
            return False
        return True

    def builder(self) -> Extension:
        source = f"csrc/{self.name}.cpp"
        flags: dict[str, list[str]] = {"cxx": []}
        return Extension(f"deepspeed.{self.name}_op", [source], language="c++", extra_compile_args=flags)


accelerator_name = os.environ["DS_ACCELERATOR"]
ALL_OPS = {
    "cpu_adam": Builder("cpu_adam", "DS_BUILD_CPU_ADAM"),
    "async_io": Builder("async_io", "DS_BUILD_AIO"),
}
if accelerator_name == "cuda":
    ALL_OPS["utils"] = Builder("utils", "DS_BUILD_UTILS")
