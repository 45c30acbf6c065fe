"""What is kept on the local disk: the one way to open RocksDB, and topics stored in it. It knows no broker."""
