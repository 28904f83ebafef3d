"""One sandbox: how it is started, what holds it, what is inside of it, and how it ends."""
