"""DeepSpeed wheels: built once with their ops compiled, installed and compared on every node.

DeepSpeed compiles an op when a job first uses it, on every node, for minutes, if the node can compile at all.
A wheel with compiled ops needs this once, on one machine. torch and DeepSpeed are only imported in child
processes (``probes/``).
"""

from __future__ import annotations
