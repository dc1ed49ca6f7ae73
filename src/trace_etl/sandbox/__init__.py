"""Run untrusted code: namespaces, system call filter, Landlock and limits."""
