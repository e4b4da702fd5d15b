"""Exact prefix mode: what was sampled stays in the prompt as the very ids that were sampled. Pure."""
