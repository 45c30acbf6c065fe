"""How cost grows (``growth.py``): the points of each axis, their runs, where a curve bends."""
