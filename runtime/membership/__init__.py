"""How a process takes part in the application."""
