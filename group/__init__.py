"""PURE. Membership, assignment, and the next decision of the coordinator. See the README in this room."""
