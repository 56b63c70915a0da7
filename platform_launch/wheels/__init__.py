"""DeepSpeed wheels: built once with their ops compiled, installed and compared on every node.

DeepSpeed compiles an op the first time a training uses it, on every node, for minutes, if that node can at
all. A wheel that carries the ops moves this to one machine and one moment. torch and DeepSpeed are only ever
asked in child processes (``probes/``).
"""

from __future__ import annotations
