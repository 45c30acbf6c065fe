"""PURE. What users declare, what a handler is given, and what becomes of what it returns."""
