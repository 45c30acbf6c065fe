"""PURE. Events about the offsets of an application, and the fold of these events. Knows no broker."""
