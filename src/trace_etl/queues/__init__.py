"""Wake-up and buffer queues behind one interface. A lost, repeated or late message changes nothing."""
