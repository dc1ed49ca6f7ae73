"""Routes that sum up several resources."""
