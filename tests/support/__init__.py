"""Code that several test modules share: real services, databases and chains."""
