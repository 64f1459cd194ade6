"""Run the command line as a module: ``python -m eventlog --help``. The code is in ``eventlog.cli``."""

from eventlog.cli import main

if __name__ == "__main__":
    main()
