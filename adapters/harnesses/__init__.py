"""What is special about each framework: one module, one table each. Lineage gets them as data and works without."""

from adapters.harnesses import (
    autogen,
    claude_code,
    codex,
    generic,
    langchain,
    mem0,
    open_webui,
    opencode,
    openhands,
    qwen_code,
    terminus,
)
from mosaic.lineage import Harness

HARNESSES: tuple[Harness, ...] = (
    claude_code.HARNESS,
    codex.HARNESS,
    opencode.HARNESS,
    openhands.HARNESS,
    qwen_code.HARNESS,
    langchain.HARNESS,
    terminus.HARNESS,
    autogen.HARNESS,
    mem0.HARNESS,
    open_webui.HARNESS,
    generic.HARNESS,
)
"""In the order in which their ids are looked for; the generic one last."""

__all__ = ["HARNESSES"]
