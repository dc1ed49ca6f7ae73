"""The blocks of the development chain: contents, hashes, forks."""
