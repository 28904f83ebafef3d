"""The command line: one module per command, and what they share.

Only this room prints, reads arguments, and configures logging. Data goes to
standard output and words to standard error. A module is loaded when its
command is called, so no command waits for what another one needs.
"""
