"""Web sites as a place skills come from: fetching their index and artifacts without being led astray."""
