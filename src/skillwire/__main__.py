"""`python -m skillwire` is the same as `skillwire`."""

from skillwire.cli.common import main

if __name__ == "__main__":
    main()
