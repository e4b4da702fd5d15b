"""Measurements behind every number that the docs name: `python -m benchmarks.<name>` writes `results/<name>.json`."""
