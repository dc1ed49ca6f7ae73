"""Wake-up and buffer queues. A lost, duplicated or late message changes nothing."""
