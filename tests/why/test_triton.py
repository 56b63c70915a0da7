"""What Triton's compiler says."""

from __future__ import annotations

import pytest

from tests.why.conftest import Explain

REASON = "ValueError(\"type fp8 is not supported by this GPU, which has ('fp16',)\")"
CODE = """def scale(x_ptr, y_ptr, SIZE: tl.constexpr):
    x = tl.load(x_ptr)

    y = tl.sum(x, axis=0)
        ^
"""
HEAD = """Traceback (most recent call last):
  File "/workspace/train.py", line 12, in <module>
    scale[grid](x, y)
  File "/env/lib/python3.11/site-packages/triton/compiler/compiler.py", line 83, in make_ir
    return ast_to_ttir(self.fn, self)
"""


@pytest.mark.parametrize("head", ["", HEAD])
def test_reason_below_the_code_that_triton_shows(explain_text: Explain, head: str) -> None:
    code = CODE if head else CODE.replace("\n\n", "\n")
    verdict = explain_text(f"{head}triton.compiler.errors.CompilationError: at 4:8:\n{code}{REASON}\n")
    assert verdict.cause == "triton_compile"
    assert verdict.exception is not None
    assert "type fp8 is not supported" in verdict.exception.message
