"""Connections: configuration, endpoints, transports, sign-in and web sites."""
