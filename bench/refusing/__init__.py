"""What a batch that the broker refuses does: ``bench/refused.py``."""
