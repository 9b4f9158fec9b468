"""The program: python -m tenon, and the console script."""

import os
import signal
import sys


def main() -> None:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "tenon")
    # Python ignores these for itself, and a program that is started inherits that.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"tenon: {program}: {e.strerror}")


if __name__ == "__main__":
    main()
