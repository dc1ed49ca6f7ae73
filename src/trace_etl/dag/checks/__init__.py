"""The rules of a DAG file that its schema cannot express."""
