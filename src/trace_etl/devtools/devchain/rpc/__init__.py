"""The JSON-RPC server of the development chain."""
