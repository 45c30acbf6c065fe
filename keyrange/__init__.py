"""PURE. The key-hash space of a partition: points, ranges, cuts of the space, placement of workers."""
