"""Proofs of stored data: hashes of rows and files, checks, manifests."""
