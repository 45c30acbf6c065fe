"""The adapter for Apache Kafka, on aiokafka: nothing else in keylanes knows aiokafka."""
