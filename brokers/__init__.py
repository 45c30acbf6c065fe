"""Everything about a broker: one protocol, its three adapters, and how to wait for one."""
