"""`python -m agent_context.cli`."""

from agent_context.cli import main

if __name__ == "__main__":
    main()
