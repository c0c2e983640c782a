from coterie.cli.entry import main

if __name__ == "__main__":  # and not in a worker that was started by this
    main()
