"""Adapters of the AWS profile. They need the `aws` extra."""
