"""Pairs of runs (``pairs.py``): the package of another revision, the order of the runs, and what their ratios say."""
