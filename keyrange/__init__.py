"""PURE. The key-hash space of a partition: points, ranges, cuts of the space, when workers are split and merged."""
