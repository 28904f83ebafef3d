"""How the server does, for those who run it: metrics, the access log, health, traces.

What is here stands around the application and looks on. It never changes an
answer beyond the header that names the request, and it never learns what a
skill contains: no body, token or query is counted by its content or written
down. Every label has a fixed set of values, because strangers choose the words.
"""
