"""Every claim about speed has its script here; `make bench` runs them all and prints one table."""
