"""Tests of the benchmarks that are more than a stopwatch."""
