"""Check datasets against their certificates, their chain and rebuilt samples."""
