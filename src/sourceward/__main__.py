from sourceward.cli import main

main()
