"""What a hand-over costs, and what many members on few partitions do (``handover.py``): its members, logs and parts."""
