from coterie.cli.entry import main

main()
