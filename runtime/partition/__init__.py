"""PURE. The records of a source partition on their way through its workers."""
