"""PURE. What happened to the offsets of an application and what follows from it. Knows no broker."""
