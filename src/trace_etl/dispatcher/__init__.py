"""The Dispatcher: decides what runs and keeps its state in Postgres."""
