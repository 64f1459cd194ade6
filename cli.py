"""Run the command line from a checkout: ``python cli.py --help``. The code is in ``eventlog.cli``."""

from eventlog.cli import main

if __name__ == "__main__":
    main()
