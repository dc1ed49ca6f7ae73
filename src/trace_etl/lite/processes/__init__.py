"""Starting, supervising, observing and stopping the processes of the embedded stack."""
