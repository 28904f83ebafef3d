"""What goes over the wire: names, shapes and limits of each protocol dialect.

Each dialect is a small module that turns values of `core` into JSON and back.
Nothing here knows about sources, servers or hosts, and nothing here waits.
"""
