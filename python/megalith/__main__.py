"""The program `megalith`, started through Python: `python -m megalith train run.yaml`."""

import os
import sys


def main():
    from .program import environment, program_path

    try:
        path = program_path()
        variables = environment()
    except ImportError as error:
        print(f"megalith: {error}", file=sys.stderr)
        return 2
    os.execve(path, [path, *sys.argv[1:]], variables)


if __name__ == "__main__":
    sys.exit(main())
