"""The picture of what placement costs."""
