"""Memory that an answer of the broker was in is kept for the next one, where glibc is what allocates it.

glibc gives memory back to the system as soon as some hundred kB at the end of the heap are free, and the next answer
has it mapped and cleared again, page by page. With values of 100 kB that took half of the time. It can't be taken back:
what glibc would have done by itself can't be asked for.
"""

import ctypes
import os
from typing import Final

KEPT_BYTES: Final = 64 * 1024 * 1024
"""So much may be free at the end of the heap: some of the largest answers (4 to 16 MiB), as they came and parsed."""

MAPPED_BYTES: Final = 8 * 1024 * 1024
"""A block from this size on gets pages of its own, which its end gives back at once."""

OWN_WISHES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
"""What a user says here is left as it is, and so is anything about malloc in ``GLIBC_TUNABLES``."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_memory() -> bool:
    """Let the process keep what it frees, up to ``KEPT_BYTES``; False where nothing was changed."""
    if any(name in os.environ for name in OWN_WISHES) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
