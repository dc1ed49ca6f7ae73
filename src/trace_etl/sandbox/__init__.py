"""Run code that nobody trusts: namespaces, system call filter, Landlock and limits."""
