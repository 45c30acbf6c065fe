"""A process at work, from the application as users write it down to the settings."""
