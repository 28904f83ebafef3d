"""Servers to compare with, each a program of its own: the floors, and other people's skill servers.

Those that listen write one line with their address to standard error and then
serve until they are terminated; those on a pipe serve until it is closed.
"""
