"""The command line: one module per command, and what they share.

Only this package prints, reads arguments, and configures logging. Data goes
to standard output and messages to standard error. A command's module is
imported when the command is called, so no command pays for the imports of another.
"""
