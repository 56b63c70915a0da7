"""``python -m procguard``: the same as the command ``procguard``."""

from platform_launch.cli.procguard import main

if __name__ == "__main__":
    raise SystemExit(main())
