"""What several test modules lean on. Real parts only."""
