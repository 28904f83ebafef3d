"""Older dialects, served in addition to the released extension when enabled.

Each is a `DialectServer`: it answers the requests of its own clients from the
same snapshot, and never changes the answers to other clients.
"""
