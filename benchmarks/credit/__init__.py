"""The credit benchmark: `python -m benchmarks.credit` (simulation), `... figures`, `... chain` (the real thing)."""
