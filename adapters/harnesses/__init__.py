"""What is special about each framework: one module, one table each. Lineage gets them as data and works without."""

from adapters.harnesses import claude_code, codex, generic, langchain, opencode, openhands, qwen_code, terminus
from mosaic.lineage import Harness

HARNESSES: tuple[Harness, ...] = (
    claude_code.HARNESS,
    codex.HARNESS,
    opencode.HARNESS,
    openhands.HARNESS,
    qwen_code.HARNESS,
    langchain.HARNESS,
    terminus.HARNESS,
    generic.HARNESS,
)
"""In the order in which their ids are looked for; the generic one last."""

__all__ = ["HARNESSES"]
