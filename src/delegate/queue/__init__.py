"""What may run next, and who holds it. Every change of state is one transaction that also writes its event."""
