"""A scripted engine: real HTTP, vLLM's wire with token ids, and faults on demand."""

from tests.engine.scripted import Fault, ScriptedEngine, Turn

__all__ = ["Fault", "ScriptedEngine", "Turn"]
