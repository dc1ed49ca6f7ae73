"""Wake-up queues. A message is a hint: lost, doubled or late, it changes nothing."""
