"""HTTP parts that the services share: problem documents, user tokens, TLS listeners."""
