"""`trace query`: SQL over published datasets."""
