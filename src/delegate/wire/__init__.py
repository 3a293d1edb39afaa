"""The bodies of HTTP requests and responses, validated once by the relay and parsed by the runner."""
