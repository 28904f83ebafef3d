"""Older generations of the wire, spoken beside the released extension by servers that are told to.

Each is a `Compat`: it answers what its own clients ask, from the same snapshot
as everything else, and never changes a byte of what others get.
"""
