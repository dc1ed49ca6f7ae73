"""Commands that sum up several resources."""
