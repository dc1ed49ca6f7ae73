"""Pure types. Standard library only."""
