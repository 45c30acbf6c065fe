"""What a hand-over costs, without state and with it (``handover.py``): its members, logs and parts."""
