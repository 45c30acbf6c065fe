"""The engine of one process: read records, run handlers, commit finished records."""
