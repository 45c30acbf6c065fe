"""The state of keys: memory over RocksDB or the broker's tables, changelogs, copies and restore."""
