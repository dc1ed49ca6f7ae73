"""Reading inputs and writing outputs of operators."""
