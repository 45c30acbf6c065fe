"""The command keylanes."""
