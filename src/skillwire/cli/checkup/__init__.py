"""What `skillwire doctor` looks at: each check says in words what it found, and what to do about it."""
