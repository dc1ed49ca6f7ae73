"""Proving blocks against their headers: hashes, roots, bloom filters, gas."""
