"""Authentication and authorization, decided once per request, before any lookup.

A credential becomes a `Caller`, the rules map a caller to a `Visibility`, and
the visibility selects the view that answers: a server of its own that holds
only the visible skills. Results are therefore never filtered afterwards.
Nothing here reads the content of skills.
"""
