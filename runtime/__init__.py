"""A process at work: from the application in users' code down to the settings."""
