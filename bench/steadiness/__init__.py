"""Whether anything grows under a steady load (``steady.py``): lines through the samples."""
