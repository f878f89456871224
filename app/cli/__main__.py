"""`python -m app.cli` is `gpucast`."""

from app.cli import main

main()
