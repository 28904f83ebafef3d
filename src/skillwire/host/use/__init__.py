"""What an agent does with a skill: find, explain, fetch, load, present, gate and run."""
