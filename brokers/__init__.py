"""The room of brokers: one protocol, three adapters, and ways to wait for a broker."""
