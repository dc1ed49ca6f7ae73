"""Wake-up and buffer queues behind one interface. Lost, repeated and late messages do no harm."""
