"""Limits of the bundles of user-defined functions."""

MAX_ZIP_BYTES = 50 * 1024 * 1024
MAX_UNPACKED_BYTES = 250 * 1024 * 1024
MAX_FILES = 10_000
