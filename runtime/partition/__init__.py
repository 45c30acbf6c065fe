"""PURE. One source partition on its way through its workers."""
