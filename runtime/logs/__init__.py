"""Our own logs: their topics, reading them to their ends, trimming them, and what they say of this process."""
