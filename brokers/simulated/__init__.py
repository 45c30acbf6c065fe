"""A cluster in memory, in virtual time, with delays and faults from a seed."""
