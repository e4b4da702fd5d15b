"""The core: domain values, lineage, credit, store, settings and the command line."""
