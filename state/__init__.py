"""What is kept on a disk: where a value lies, the overlay above it, the changelog, the plan of a restore, RocksDB."""
