"""PURE. Declarations of users, the arguments of a handler, and the way of its results to written records."""
