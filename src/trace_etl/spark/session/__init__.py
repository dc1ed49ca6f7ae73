"""The Spark session of a worker: its JVM, configuration, warm-up and errors."""
