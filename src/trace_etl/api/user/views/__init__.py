"""Bodies of the calls that sum up several resources."""
