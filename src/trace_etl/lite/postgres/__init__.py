"""The embedded Postgres server: binaries, account, server process, databases and roles."""
