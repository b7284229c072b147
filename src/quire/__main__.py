"""`python -m quire`: the same command, where no script is on the path."""

from quire.cli.main import main

if __name__ == "__main__":
    main()
