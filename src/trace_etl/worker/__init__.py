"""The worker: claims what it is woken for, runs it, and says how it went."""
