"""Tests of `mosaic.credit`: one file per source file, and the invariants of the rule in `test_invariants`."""
