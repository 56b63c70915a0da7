"""The server: agents, the JSON API, security, metrics and the logs on disk."""
