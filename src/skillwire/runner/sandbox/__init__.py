"""The sandbox: starting it, confining it, running a script in it, and ending it."""
