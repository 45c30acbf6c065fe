"""The views of a run for people and machines."""
