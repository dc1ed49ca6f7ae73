"""Records of what occupies object storage, and of what may be deleted."""
