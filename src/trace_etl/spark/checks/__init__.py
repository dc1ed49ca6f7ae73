"""Data checks of outputs: rules that rows must meet before they are committed."""
