"""HTTP: the application, its endpoint, limits on connections, and worker processes."""
