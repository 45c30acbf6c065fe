"""A real Apache Kafka, and a Java to run it, for development and tests."""
