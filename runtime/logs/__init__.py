"""The logs of the application: topics, reading to the ends, trimming, and the identity of this process in the logs."""
