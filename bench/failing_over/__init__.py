"""What a change of the group costs (``failover.py``): its processes, what they note, and figures of that."""
