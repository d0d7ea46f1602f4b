"""`python -m nafaudit`: the command line where the script is not on the path."""

from nafaudit.cli.main import main

main()
