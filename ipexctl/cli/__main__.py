from ipexctl.cli import main

main()
