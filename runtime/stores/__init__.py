"""The storage of the handlers' state: restored at the start, written after each commit, read by queries."""
