"""keylanes beside its peers (``compare.py``): the workloads, the arms, each kind of run, the bars and the tables."""
