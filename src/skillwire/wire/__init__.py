"""The wire format: names, JSON structures and limits of each protocol dialect.

Each dialect is a small module that converts values of `core` to JSON and back.
Nothing here depends on sources, servers or hosts, and nothing is asynchronous.
"""
