"""What would make a task fail on this machine, found out before one is delegated. Nothing here starts or pays."""
