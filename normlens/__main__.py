"""``python -m normlens`` is the ``normlens`` command."""

from normlens.cli import main

main()
