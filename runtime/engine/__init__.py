"""The engine of a process: read records, run handlers, commit finished records."""
