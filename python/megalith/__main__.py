"""The program `megalith`, started through Python: `python -m megalith train run.yaml`."""

import os
import sys


def main():
    from .program import program_path

    path = program_path()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
