"""Assigns tasks to runners and ends them. Every state change is one transaction that also writes its event."""
