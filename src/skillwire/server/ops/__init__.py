"""Observability of the server: metrics, the access log, health endpoints, traces.

These layers wrap the application. They do not change responses, except for the
header with the request ID, and do not record content: no body, token or query
is counted or logged. Every label has a fixed set of values, because clients
choose the input.
"""
