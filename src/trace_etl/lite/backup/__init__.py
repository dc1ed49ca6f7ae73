"""Backups of a stack: one file or directory that a new home can be restored from."""
