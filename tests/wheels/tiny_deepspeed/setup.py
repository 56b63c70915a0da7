"""What DeepSpeed's setup.py does, as far as a build can see it: two ops of a few lines each."""

import os
import sys
import time
from pathlib import Path

from op_builder.all_ops import ALL_OPS, accelerator_name
from setuptools import setup

installed = {}
extensions = []
for name, builder in ALL_OPS.items():
    wanted = os.environ.get(builder.BUILD_VAR) == "1"
    installed[name] = wanted and os.environ.get("TINY_LEAVES_OUT") != name
    if installed[name]:
        extensions.append(builder.builder())
time.sleep(float(os.environ.get("TINY_SLEEPS_S", "0")))
version = Path("version.txt").read_text().strip() + os.environ.get("DS_BUILD_STRING", "")
Path("deepspeed/git_version_info_installed.py").write_text(
    f"version={version!r}\n"
    f"installed_ops={installed}\n"
    f"accelerator_name={accelerator_name!r}\n"
    "torch_info={'version': '0.0'}\n"
)
commands = {}
if "bdist_wheel" in sys.argv:  # to say what a wheel will hold needs no torch
    from torch.utils.cpp_extension import BuildExtension

    commands["build_ext"] = BuildExtension.with_options(use_ninja="DS_ENABLE_NINJA" in os.environ)
setup(
    name="deepspeed",
    version=version,
    packages=["deepspeed"],
    ext_modules=extensions,
    cmdclass=commands,
)
