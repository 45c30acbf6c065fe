"""keylanes: Kafka parallelism beyond partitions, exactly once, for Python."""

__version__ = "0.1.0"
