"""Brokers behind one protocol: a real Kafka, an embedded one on RocksDB, a simulated one in virtual time."""
