"""`python -m mosaic` is `mosaic`."""

from mosaic.cli import main

main()
