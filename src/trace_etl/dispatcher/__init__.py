"""The Dispatcher: decides what runs, and believes only its own database."""
