"""The one way to open RocksDB."""
