"""The independent witness: a Spark job that replays the logs and proves, or refutes, exactly once."""
