"""Linear's own language: signatures, payloads, operations and the client of its API. Knows nothing of the queue."""
