"""The embedded stack: Postgres, keys, certificates, and one supervised process per service."""
