"""What several processes of one machine make of a load: see ``cores.py``."""
