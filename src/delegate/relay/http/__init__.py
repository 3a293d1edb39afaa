"""Who may reach the relay, and how: connections, names, proxies, certificates, and limits before any endpoint."""
