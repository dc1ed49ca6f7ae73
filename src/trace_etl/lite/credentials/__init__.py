"""Keys, certificates, passwords and private files of the embedded stack."""
