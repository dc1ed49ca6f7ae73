"""What every HTTP service of ours shares: problem documents, user tokens, TLS listeners."""
