"""What reads records, runs handlers and commits what is done."""
